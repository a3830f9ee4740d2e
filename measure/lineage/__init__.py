"""The lineage matrix: models × exporters × tools, and how much of the truth is found again. See docs/lineage.md."""
