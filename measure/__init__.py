"""Measurements behind the documentation: the corpus, lineage through tools, strategies, and a section for each claim."""
