"""Pairs the nodes of two graphs by what they compute, and puts what differs into modules."""
