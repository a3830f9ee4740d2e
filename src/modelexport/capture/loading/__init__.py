"""Models from folders, hub names and entry points."""
