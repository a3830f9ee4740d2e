"""Planted faults: wrong attributions, put into records that are right, and whether `verify` finds them."""
