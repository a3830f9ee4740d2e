"""Tools: optimizers, converters and quantizers of others, called by name. A new one is added in `catalogue.py`."""
