"""Fleets: many models, each step of each in a process of its own. See docs/fleet.md."""
