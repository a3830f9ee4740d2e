"""Questions about nodes, in a small language: text is parsed into an expression, an expression becomes a predicate."""
