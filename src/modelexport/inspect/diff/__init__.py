"""Graph diff: how two files differ, node by node and module by module. The story is in `differences.py`."""
