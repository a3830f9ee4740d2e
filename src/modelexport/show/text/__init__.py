"""Results as tables and lines for people, one file for each group of verbs; `console.py` has what all of them use."""
