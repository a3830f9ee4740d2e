"""Models that generate: their steps, their cache, and the ways in which they are called."""
