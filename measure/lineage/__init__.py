"""Models × exporters × tools, and how much of the truth `relink` finds again: `make lineage`."""
