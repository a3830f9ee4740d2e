"""Measurements behind the documentation: the corpus, lineage through tools, strategies, a section for each claim."""
