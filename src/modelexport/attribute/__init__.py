"""Signals become claims, claims one attribution for each node, and nodes get roles."""
