"""Cutting modules out of a file."""
