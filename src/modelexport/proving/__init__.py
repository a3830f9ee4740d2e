"""Holding a file against what really happened: numbers module by module, and every attribution by values."""
