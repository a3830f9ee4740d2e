"""Cuts modules out of a file: which nodes, what goes in and out, the record of the part."""
