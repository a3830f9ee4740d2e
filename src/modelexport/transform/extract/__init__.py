"""Extract: modules of a file as a file of their own. The story is `cut.py`, then `assembly.py`."""
