"""One HTML page about a file: its modules, their sizes, what flows between them, and what other verbs found out."""
