"""FLOPs, parameters and bytes from shapes alone, in terms of open axes."""
