"""The public functions, one file for each: they wire the rooms together and decide nothing."""
