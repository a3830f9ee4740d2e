"""The query language: text, expression, predicate, answer."""
