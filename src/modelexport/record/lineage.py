"""Lineage: which nodes of the graph before became this node of the graph after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from modelexport.record.evidence import Confidence


class Relation(StrEnum):
    """How a node came from its sources."""

    KEPT = "kept"
    RENAMED = "renamed"
    REWRITTEN = "rewritten"
    FUSED = "fused"
    SPLIT = "split"
    SHARED = "shared"
    FOLDED = "folded"
    INTRODUCED = "introduced"


@dataclass(frozen=True, slots=True)
class Link:
    """The keys of the source nodes, in their own graph's order, and the relation to them."""

    sources: tuple[str, ...]
    relation: Relation
    confidence: Confidence = Confidence.EXACT


@dataclass(frozen=True)
class Lineage:
    """Links of every node after, by key, and of every initializer after that was computed before.

    stands_for  initializers after, mapped to the initializers before whose place they took
    """

    nodes: Mapping[str, Link]
    initializers: Mapping[str, Link]
    stands_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
