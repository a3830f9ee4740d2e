"""Fingerprints in tests: whether two tensors hold the same."""

from __future__ import annotations

from modelexport.graph.fingerprint import distance
from modelexport.record.signals import Fingerprint


def same_content(a: Fingerprint, b: Fingerprint, tolerance: float) -> bool:
    return a.shape == b.shape and a.kind == b.kind and distance(a, b) <= tolerance
