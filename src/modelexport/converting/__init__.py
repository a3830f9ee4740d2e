"""A graph and its record in the formats of other people's viewers; one file for each format."""
