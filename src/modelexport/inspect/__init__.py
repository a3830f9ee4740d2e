"""Questions about a file: analyze, validate, compare, query, cost, profile, diff."""
