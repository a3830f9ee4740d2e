"""Strategies: pure functions from signals and a graph to claims. No torch, no files, no printing."""
