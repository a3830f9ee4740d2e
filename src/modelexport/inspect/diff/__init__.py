"""Graph diff: how two files differ, node by node and module by module.

sides.py             the two files, their constants and modules; inputs and outputs that are the same
match_keys.py        value numbers of nodes that are equal in both graphs
pairing.py           nodes paired one to one
node_diff.py         what differs about paired nodes
weight_diff.py       what differs about their weights, and what was done to these
io_matching.py       inputs, outputs, attributes and opsets
module_alignment.py  which module is which; modules that are gone or new; what they cost
changed_regions.py   what became of nodes without a partner
differences.py       all of it, by module
"""
