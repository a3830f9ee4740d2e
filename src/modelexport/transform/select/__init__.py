"""Select: chosen nodes, written as other tools want them. A new dialect is added in `catalogue.py`."""
