"""Which nodes of the graph before became which nodes of the graph after."""
