"""Projecting the operators of a run on the nodes of an ONNX graph, without looking at a single name.

1. *Anchors*. A node that makes a value which exactly one module call made in the run is that call's; so is a node that
   reads a weight which one call alone put to use.
2. *Regions*. What lies before an anchor, back to the anchors before it, does the work of what lies there in the run.
3. *Order*. Where ONNX Runtime cannot run the graph there are no values. Weights and the order between them remain, and
   every conclusion is one step less sure.
"""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.graph.index import Graph
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.signals import GraphValues, Trace
from modelexport.strategies.projection.anchors import Anchor, passing_anchors, value_anchors, weight_anchors
from modelexport.strategies.projection.fusion import fused_calls
from modelexport.strategies.projection.matched import Matched
from modelexport.strategies.projection.order import aligned
from modelexport.strategies.projection.regions import Regions

__all__ = ["project"]

# A value is the node's own; a weight may be read by a companion; what is passed on may be passed on once more.
_CERTAINTY = {
    EvidenceKind.VALUE: Confidence.EXACT,
    EvidenceKind.PARAMETER: Confidence.STRONG,
    EvidenceKind.TRACE: Confidence.INFERRED,
}


def project(graph: Graph, hierarchy: Hierarchy, trace: Trace, values: GraphValues, strategy: str) -> dict[str, Claim]:
    """Claims for the nodes of the main graph that the run explains."""
    matched = Matched(graph, trace, values)
    anchors = value_anchors(matched)
    anchors |= weight_anchors(matched, anchors)
    regions = Regions(matched, hierarchy, anchors, strategy)
    fused = {} if values.failure else fused_calls(matched, anchors, regions)
    firm = {
        key: _anchored(anchor, fused.get(key, frozenset({anchor.call})), trace, strategy)
        for key, anchor in (passing_anchors(matched) | anchors).items()
    }
    between = regions.claims()
    certain = {key: claim for key, claim in between.items() if claim.confidence > Confidence.INFERRED}
    claims = {**between, **_by_order(matched, anchors, regions, values, strategy), **certain, **firm}
    return {key: _lowered(claim) for key, claim in claims.items()} if values.failure else claims


def _anchored(anchor: Anchor, calls: frozenset[ModuleCall], trace: Trace, strategy: str) -> Claim:
    issued = Evidence(EvidenceKind.TRACE, trace.source, trace.ops[anchor.places[0]].name)
    return Claim(tuple(sorted(calls)), _CERTAINTY[anchor.evidence.kind], (anchor.evidence, issued), strategy)


def _by_order(
    matched: Matched, anchors: Mapping[str, Anchor], regions: Regions, values: GraphValues, strategy: str
) -> dict[str, Claim]:
    """Claims by order. Where regions are known, it only chooses among what lies in them."""
    places = aligned(matched, anchors)
    kept = {key: place for key, place in places.items() if values.failure or regions.allow(key, place)}
    return {key: _ordered(place, matched.trace, strategy) for key, place in kept.items()}


def _ordered(place: int, trace: Trace, strategy: str) -> Claim:
    op = trace.ops[place]
    return Claim((op.call,), Confidence.INFERRED, (Evidence(EvidenceKind.TRACE, trace.source, "by order"),), strategy)


def _lowered(claim: Claim) -> Claim:
    confidence = Confidence(max(claim.confidence - 1, Confidence.INFERRED))
    return Claim(claim.owners, confidence, claim.evidence, claim.strategy)
