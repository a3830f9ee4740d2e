"""Chosen nodes, written as other tools want them."""
