"""Aligns one recorded run of a model with a graph, by values, order and parameters."""
