"""Projecting the operators of a run on the nodes of an ONNX graph, without looking at a single name.

1. *Anchors*. A node that makes a value which exactly one module call made in the run is that call's; so is a node that
   reads a weight which one call alone put to use.
2. *Regions*. What lies before an anchor, back to the anchors before it, does the work of what lies there in the run.
3. *Order*. Where ONNX Runtime cannot run the graph there are no values. Weights and the order between them remain, and
   every conclusion is one step less sure.

Nodes that do the work of several calls: never label one with a single one of its sources.

Whether a graph was made from a model: how much of what the one holds the other holds too.

Aligning nodes with operators by their order, where nothing better is known.

Exporters list nodes in the order in which operators were issued. Anchors cut both lists into stretches; within one, the
cheapest alignment is taken in which no node goes back: it costs something if an operator does not become such a node,
and if an operator is left without any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from modelexport.attribute.projection.anchor_regions import (
    Anchor,
    AnchorRegions,
    passing_anchors,
    value_anchors,
    weight_anchors,
)
from modelexport.attribute.projection.matched_values import MatchedRun, ValueIndex, match_values
from modelexport.graph.index import Graph, Node
from modelexport.graph.related import ValueOverlap, value_overlap
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.signals import GraphValues, Trace


def find_fused_calls(
    matched: MatchedRun, anchors: Mapping[str, Anchor], regions: AnchorRegions
) -> dict[str, frozenset[ModuleCall]]:
    """Anchors by value that do what several calls did, and those calls."""
    found: dict[str, frozenset[ModuleCall]] = {}
    for key, anchor in anchors.items():
        if anchor.evidence.kind is EvidenceKind.VALUE:
            node = matched.graph.by_key[key]
            work = (*anchor.places, *_unaccounted(node, anchor, matched, regions), *_let_through(node, matched))
            calls = matched.calls(work)
            if len(calls) > 1:
                found[key] = frozenset(calls)
    return found


def _unaccounted(node: Node, anchor: Anchor, matched: MatchedRun, regions: AnchorRegions) -> list[int]:
    """Work that lies before an anchor and that no other node can be part of."""
    # A node that passes a value on does nobody's work.
    others = [found for other, found in regions.candidates(node, anchor) if not matched.passes_on(other)]
    # What some node of the graph makes was not made here.
    work = _work(regions.ops_before(anchor.places, matched.held), matched)
    if not others:
        return work
    # With other nodes before it, only what becomes such a node is surely its own.
    taken = {place for found in others for place in found.places}
    return [place for place in work if place not in taken and matched.fits_itself(node, place)]


def _let_through(node: Node, matched: MatchedRun) -> list[int]:
    """Operators that let a node's value through by weights that change nothing, if no node does that after it."""
    if any(matched.passes_on(reader) for reader in matched.graph.successors(node)):
        return []
    passers = [place for name in node.outputs for place in matched.passers(name)]
    return [place for place in passers if not matched.weights.isdisjoint(matched.trace.ops[place].inputs)]


def _work(places: list[int], matched: MatchedRun) -> list[int]:
    """Operators that depend on what the model is given; those that rearrange it only if there are no others."""
    ops = matched.trace.ops
    on_data = [place for place in places if not matched.from_data.isdisjoint(ops[place].inputs)]
    return [place for place in on_data if not matched.rearranges(place)] or on_data


def measure_value_overlap(graph: Graph, trace: Trace, values: GraphValues) -> ValueOverlap:
    telling = {name: print_ for name, print_ in values.prints.items() if print_.telling}
    found = match_values(ValueIndex(trace), telling)
    return value_overlap(graph, telling, found)


# What it costs if an operator does not become such a node (though the function that it is a part of may), and if one is
# left without any node: most are not, but those that change nothing often vanish, and those of anchors have a node.
_MISFIT, _PART, _LEFT_OUT, _LEFT_OUT_UNCHANGING = 6, 4, 4, 1


def align_by_order(matched: MatchedRun, anchors: Mapping[str, Anchor]) -> dict[str, int]:
    """For each node without an anchor, the place of the operator that it goes with."""
    nodes = [node for node in matched.nodes if node.key in matched.graph.computed]
    pinned = {place for anchor in anchors.values() for place in anchor.places}
    found: dict[str, int] = {}
    for stretch, first, last in _stretches(nodes, anchors, len(matched.trace.ops)):
        places = [place for place in range(first, last + 1) if matched.trace.ops[place].inputs]
        costs = [0 if place in pinned else _cost_left_out(matched, place) for place in places]
        found.update(_align(stretch, places, costs, matched))
    return found


def _cost_left_out(matched: MatchedRun, place: int) -> int:
    return _LEFT_OUT_UNCHANGING if matched.rearranges(place) else _LEFT_OUT


def _stretches(
    nodes: Iterable[Node], anchors: Mapping[str, Anchor], count: int
) -> Iterator[tuple[list[Node], int, int]]:
    """Nodes between two anchors, with the places of those: the nodes next to an anchor may belong to it."""
    pins = _increasing([(node.key, anchors[node.key]) for node in nodes if node.key in anchors])
    stretch: list[Node] = []
    first = 0
    for node in nodes:
        if node.key in pins:
            if stretch:
                yield stretch, first, max(first, pins[node.key])
            stretch, first = [], pins[node.key]
        elif node.key not in anchors:
            stretch.append(node)
    if stretch:
        yield stretch, first, count - 1


def _increasing(anchors: list[tuple[str, Anchor]]) -> dict[str, int]:
    """The most anchors whose places are in order; the others were moved."""
    tails: list[int] = []
    lengths: list[int] = []
    for _, anchor in anchors:
        at = bisect_right(tails, anchor.places[0])
        tails[at : at + 1] = [anchor.places[0]]
        lengths.append(at)
    kept: dict[str, int] = {}
    wanted = len(tails) - 1
    for (key, anchor), length in zip(reversed(anchors), reversed(lengths), strict=True):
        if length == wanted:
            kept[key] = anchor.places[0]
            wanted -= 1
    return kept


def _align(nodes: list[Node], places: list[int], left_out: list[int], matched: MatchedRun) -> Iterator[tuple[str, int]]:
    """The cheapest alignment in which no node goes back, by dynamic programming."""
    if not places:
        return
    # skipped[j]: what it costs to leave out all operators before j.
    skipped = [0, *accumulate(left_out)]
    best = [skipped[j] + _misfit(nodes[0], place, matched) for j, place in enumerate(places)]
    steps: list[list[int]] = []
    for node in nodes[1:]:
        best, came = _advance(best, skipped, [_misfit(node, place, matched) for place in places])
        steps.append(came)
    ends = [cost + skipped[-1] - skipped[j + 1] for j, cost in enumerate(best)]
    chosen = [ends.index(min(ends))]
    for came in reversed(steps):
        chosen.append(came[chosen[-1]])
    for node, at in zip(nodes, reversed(chosen), strict=True):
        yield node.key, places[at]


def _advance(best: list[int], skipped: list[int], misfits: list[int]) -> tuple[list[int], list[int]]:
    """The least cost with the next node on each operator, and the operator that the node before it was on then."""
    costs: list[int] = []
    came: list[int] = []
    nearest = 0  # the best operator to come from, of those before
    for j, misfit in enumerate(misfits):
        moved = best[nearest] - skipped[nearest + 1] + skipped[j] if j else best[0]
        stays = best[j] <= moved
        costs.append((best[j] if stays else moved) + misfit)
        came.append(j if stays else nearest)
        if best[j] - skipped[j + 1] <= best[nearest] - skipped[nearest + 1]:
            nearest = j
    return costs, came


def _misfit(node: Node, place: int, matched: MatchedRun) -> int:
    if matched.fits_itself(node, place):
        return 0
    return _PART if matched.fits(node, place) else _MISFIT


# A value is the node's own; a weight may be read by a companion; what is passed on may be passed on once more.
_CERTAINTY = {
    EvidenceKind.VALUE: Confidence.EXACT,
    EvidenceKind.PARAMETER: Confidence.STRONG,
    EvidenceKind.TRACE: Confidence.INFERRED,
}


def project(graph: Graph, hierarchy: Hierarchy, trace: Trace, values: GraphValues, strategy: str) -> dict[str, Claim]:
    """Claims for the nodes of the main graph that the run explains."""
    matched = MatchedRun(graph, trace, values)
    anchors = value_anchors(matched)
    anchors |= weight_anchors(matched, anchors)
    regions = AnchorRegions(matched, hierarchy, anchors, strategy)
    fused = {} if values.failure else find_fused_calls(matched, anchors, regions)
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
    matched: MatchedRun, anchors: Mapping[str, Anchor], regions: AnchorRegions, values: GraphValues, strategy: str
) -> dict[str, Claim]:
    """Claims by order. Where regions are known, it only chooses among what lies in them."""
    places = align_by_order(matched, anchors)
    kept = {key: place for key, place in places.items() if values.failure or regions.allow(key, place)}
    return {key: _ordered(place, matched.trace, strategy) for key, place in kept.items()}


def _ordered(place: int, trace: Trace, strategy: str) -> Claim:
    op = trace.ops[place]
    return Claim((op.call,), Confidence.INFERRED, (Evidence(EvidenceKind.TRACE, trace.source, "by order"),), strategy)


def _lowered(claim: Claim) -> Claim:
    confidence = Confidence(max(claim.confidence - 1, Confidence.INFERRED))
    return Claim(claim.owners, confidence, claim.evidence, claim.strategy)
