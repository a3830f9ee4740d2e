"""Optimizers, converters and quantizers, called by name."""
