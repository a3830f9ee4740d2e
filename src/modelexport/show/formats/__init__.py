"""A graph with its record as other viewers draw it."""
