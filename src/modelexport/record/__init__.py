"""The values that every stage agrees on: modules, calls, evidence, attributions, tags, and their JSON. Stdlib only."""
