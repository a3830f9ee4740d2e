"""Hand-made networks, each with one thing that exporters find hard; `measure/corpus/models.toml` has a row for each."""
