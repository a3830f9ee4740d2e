"""What the documentation claims, one measurement for each section of the page: `make bench`."""
