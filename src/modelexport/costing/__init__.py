"""What the nodes and the modules of a graph cost, from shapes alone."""
