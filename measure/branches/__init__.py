"""Networks whose path depends on their inputs, and whether `export` and `verify` notice."""
