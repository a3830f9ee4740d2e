"""Models that generate: tiny models of many families, and what their packages do."""
