"""The files of other viewers: `draw.py` makes one drawing of a file, each format writes it down; see `catalogue.py`."""
