"""Chosen nodes, written the way in which other tools want to be told about them."""
