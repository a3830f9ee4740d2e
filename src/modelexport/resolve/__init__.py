"""From claims to exactly one attribution per node: the one place with opinions."""
