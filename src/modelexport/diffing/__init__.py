"""How two graphs differ: which nodes are the same, what became of the others, and in which module that is."""
