"""Inputs for a model that comes without any."""
