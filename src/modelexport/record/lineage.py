"""Lineage: which nodes of the graph before became this node of the graph after.

    before   MatMul a ─► Add b          after   Gemm c         c: FUSED from a, b
    before   Softmax a, Softmax b       after   Softmax a      a: SHARED from a, b

Links are written into the record as evidence (`fused from 2`), and read back from there by `descent_of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from modelexport.record.provenance import Attribution, Confidence, EvidenceKind

# Who gives evidence of lineage while a model is exported. Whoever else does is a tool that ran later.
TORCH_OPTIMIZER = "torch optimizer"
TORCHSCRIPT_FOLDING = "torchscript folding"
_FROM = " from "


class Relation(StrEnum):
    """How a node came from its sources.

    KEPT        it is the same, under its name
    RENAMED     it is the same, under another name
    REWRITTEN   another operator, or other attributes, in the place of one node
    FUSED       it does the work of several nodes
    SPLIT       it does a part of the work of one node
    SHARED      it stands for several nodes that made the same
    FOLDED      a constant in the place of what was computed
    INTRODUCED  a tool brought it along: it serves the nodes beside it
    """

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
    """The keys of the source nodes, in their own graph's order, the relation to them, and how sure that is."""

    sources: tuple[str, ...]
    relation: Relation
    confidence: Confidence = Confidence.EXACT

    def __str__(self) -> str:
        return str(Descent(self.relation, len(self.sources)))


@dataclass(frozen=True, slots=True)
class Descent:
    """What the last tool that changed a node made of it, and of how many nodes; kept from one if none did."""

    relation: Relation
    sources: int = 1

    def __str__(self) -> str:
        """As evidence says it, and `_parse_descent` reads it back."""
        return f"{self.relation}{_FROM}{self.sources}" if self.sources > 1 else str(self.relation)


def descent_of(attribution: Attribution) -> Descent | None:
    """As evidence tells it. A new name alone leaves no evidence. None for a node of which nothing is known."""
    if not attribution.owners:
        return None
    details = (item.detail for item in reversed(attribution.evidence) if item.kind is EvidenceKind.LINEAGE)
    return next(filter(None, map(_parse_descent, details)), Descent(Relation.KEPT))


def _parse_descent(detail: str) -> Descent | None:
    """None for what says something else: a strategy gives evidence of this kind too."""
    relation, _, sources = detail.partition(_FROM)
    if relation not in tuple(Relation) or len(sources) > 9 or not (sources or "1").isdecimal():
        return None
    return Descent(Relation(relation), int(sources or 1))


def is_introduced(attribution: Attribution) -> bool:
    """Whether a node does no module's work: the last tool that touched it brought it along for those beside it."""
    last = attribution.evidence[-1] if attribution.evidence else None
    return last is not None and last.kind is EvidenceKind.LINEAGE and last.detail.startswith(Relation.INTRODUCED)


def is_made_by_tool(attribution: Attribution) -> bool:
    """Whether a weight or node is not as it was exported: a tool made it of others, or put it in their place."""
    # What the exporter does to a node belongs to the export: the file is as it was exported.
    exporting = (TORCH_OPTIMIZER, TORCHSCRIPT_FOLDING)
    return any(item.kind is EvidenceKind.LINEAGE and item.source not in exporting for item in attribution.evidence)


def is_changed_by(attributions: Iterable[Attribution], tool: str) -> bool:
    """Whether a tool made something of what it was given, alone or in a chain: `onnxslim` of `onnxslim+ort:all`."""
    chains = {item.source for entry in attributions for item in entry.evidence if item.kind is EvidenceKind.LINEAGE}
    return any(step.partition(":")[0] == tool for chain in chains for step in chain.split("+"))


@dataclass(frozen=True)
class NodeOverlap:
    """How much of two graphs was recognized, node by node; regions and neighbours do not count.

    after   the share of nodes after that do the work of a certain node before; 1 if there are none
    before  the share of nodes before whose work is done by such a node; 1 if there are none
    """

    after: float = 1.0
    before: float = 1.0

    @property
    def degree(self) -> float:
        return math.sqrt(self.after * self.before)

    def __str__(self) -> str:
        return (
            f"{100 * self.after:.1f} % of its nodes do the work of a node there, and {100 * self.before:.1f} % of the "
            "nodes there are found in it"
        )


@dataclass(frozen=True)
class Consistency:
    """What a lineage says about itself.

    nodes        how many nodes before work on what the model is given
    folded       keys of those whose results became constants
    removed      keys of those that could be taken out: they did nothing, or nobody needs what they made
    unexplained  keys of the others that no node after stands for
    disorder     edges after whose ends come from nodes that were in the other order: the maker of a value, and a reader
    strayed      nodes after that read a weight which none of their sources read, by key
    """

    nodes: int = 0
    folded: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    disorder: tuple[tuple[str, str], ...] = ()
    strayed: tuple[str, ...] = ()

    @property
    def covered(self) -> int:
        """Nodes before that live on in some node after."""
        return self.nodes - len(self.folded) - len(self.removed) - len(self.unexplained)


@dataclass(frozen=True)
class Lineage:
    """Links of every node after, by key, and of every initializer after that was computed before.

    stands_for  initializers after, mapped to the initializers before whose place they took
    """

    nodes: Mapping[str, Link]
    initializers: Mapping[str, Link]
    stands_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    consistency: Consistency = Consistency()
    overlap: NodeOverlap = NodeOverlap()

    @property
    def kinship(self) -> NodeOverlap:
        """The name of `overlap` in JSON, and in Python before it was called so."""
        return self.overlap
