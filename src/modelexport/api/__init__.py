"""The public functions. This is the one place that wires the stages together."""
