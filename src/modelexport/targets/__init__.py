"""Targets: what consumers of a package expect of its files, names, configuration and what lies beside them."""
