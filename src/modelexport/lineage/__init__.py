"""Carrying provenance from one graph to the graph that a tool made of it."""
