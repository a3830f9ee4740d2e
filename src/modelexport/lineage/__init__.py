"""Lineage: which nodes of the graph before became which nodes of the graph after. Start in `descent.trace_lineage`."""
