"""Hand-made networks, each with one thing that exporters find hard; `corpus/models.toml` has a row for each."""
