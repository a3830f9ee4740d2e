"""Sources: the module tree that a file itself tells of, where no record was made. `find_hierarchy` is in `find.py`."""
