"""Projection: the operators of a run, projected on the nodes of an ONNX graph without looking at a single name.

1. *Anchors* (anchor_regions.py). A node that makes a value which exactly one module call made in the run is that
   call's; so is a node that reads a weight which one call alone put to use.
2. *Regions* (anchor_regions.py). What lies before an anchor, back to the anchors before it, does the work of what lies
   there in the run.
3. *Fusions*. A node that does the work of several calls is claimed for all of them, never for one.
4. *Order*. Where ONNX Runtime cannot run the graph there are no values. Weights and the order between them remain, and
   every conclusion is one step less sure.

    run      linear (fc1)   relu (act)   linear (fc2)
    graph    Gemm           Relu         Gemm             values match: three anchors, EXACT
    graph    FusedGemm ──────────┘       Gemm             FusedGemm makes what relu made: fc1 and act, a fusion

`measure_value_overlap` asks first whether the graph was made from this model at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from modelexport.attribute.anchor_regions import (
    Anchor,
    AnchorRegions,
    find_part_anchors,
    find_passing_anchors,
    find_value_anchors,
    find_weight_anchors,
)
from modelexport.attribute.matched_values import MatchedRun, ValueIndex, claim_bodies_by_value, match_values
from modelexport.graph.index import Graph, Node
from modelexport.graph.operators import is_passing, is_rearranging
from modelexport.graph.related import ValueOverlap, value_overlap
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.signals import GraphValues, Trace


def find_fused_calls(
    matched: MatchedRun, anchors: Mapping[str, Anchor], regions: AnchorRegions
) -> dict[str, frozenset[ModuleCall]]:
    """Anchors by value that do what several calls did, and those calls."""
    fused: dict[str, frozenset[ModuleCall]] = {}
    for key, anchor in anchors.items():
        if anchor.evidence.kind is EvidenceKind.VALUE:
            node = matched.graph.by_key[key]
            work = (*anchor.op_indices, *_unaccounted(node, anchor, matched, regions), *_let_through(node, matched))
            calls = matched.calls(work)
            if len(calls) > 1:
                fused[key] = frozenset(calls)
    return fused


def _unaccounted(node: Node, anchor: Anchor, matched: MatchedRun, regions: AnchorRegions) -> list[int]:
    """Work that lies before an anchor and that no other node can be part of."""
    candidates = [able for maker, able in regions.candidates(node, anchor) if not matched.passes_on(maker)]
    # What some node of the graph makes was not made here.
    before = regions.ops_before(anchor.op_indices, matched.held)
    ops = matched.trace.ops
    on_data = [op_index for op_index in before if not matched.from_data.isdisjoint(ops[op_index].inputs)]
    # What only rearranges data counts where there is nothing else: exporters often drop it.
    work = [op_index for op_index in on_data if not matched.rearranges(op_index)] or on_data
    if not candidates:
        return work
    # With other nodes before it, only what becomes such a node is surely its own; a node that nothing becomes by itself
    # was made of several.
    explained = {op_index for able in candidates for op_index in able.op_indices}
    unexplained = [op_index for op_index in work if op_index not in explained]
    fitting = [op_index for op_index in unexplained if matched.fits_itself(node, op_index)]
    return unexplained if matched.is_fusion(node) else fitting


def _let_through(node: Node, matched: MatchedRun) -> list[int]:
    """Operators that let a node's value through by weights that change nothing, if no node does that after it."""
    if any(matched.passes_on(reader) for reader in matched.graph.successors(node)):
        return []
    # A bias of zeros, a norm that was never trained: exporters drop them, and their module is in the node before.
    passers = [op_index for name in node.outputs for op_index in matched.passers(name)]
    return [op_index for op_index in passers if not matched.weights.isdisjoint(matched.trace.ops[op_index].inputs)]


def measure_value_overlap(graph: Graph, trace: Trace, values: GraphValues) -> ValueOverlap:
    distinctive = {name: fingerprint for name, fingerprint in values.prints.items() if fingerprint.distinctive}
    return value_overlap(graph, distinctive, match_values(ValueIndex(trace), distinctive))


# What it costs if an operator does not become such a node (though the function that it is a part of may), and if one is
# left without any node: most are not, but those that change nothing often vanish, and those of anchors have a node.
_MISFIT, _PART, _LEFT_OUT, _LEFT_OUT_UNCHANGING = 6, 4, 4, 1


def align_by_order(matched: MatchedRun, anchors: Mapping[str, Anchor]) -> dict[str, int]:
    """Sequence alignment: for each node without an anchor, the index of the operator that it goes with.

    Both lists are in the order of issue, and anchors cut them into stretches. In each, the cheapest alignment is chosen
    in which no node goes back (dynamic programming, as an edit distance).
    """
    nodes = [node for node in matched.nodes if node.key in matched.graph.computed]
    pinned = {op_index for anchor in anchors.values() for op_index in anchor.op_indices}
    aligned: dict[str, int] = {}
    for stretch, first, last in _stretches(nodes, anchors, len(matched.trace.ops)):
        op_indices = [op_index for op_index in range(first, last + 1) if matched.trace.ops[op_index].inputs]
        free = [op_index for op_index in op_indices if op_index not in pinned]
        costs = {op_index: _LEFT_OUT_UNCHANGING if matched.rearranges(op_index) else _LEFT_OUT for op_index in free}
        aligned.update(_align(stretch, op_indices, [costs.get(op_index, 0) for op_index in op_indices], matched))
    return aligned


def _stretches(
    nodes: Iterable[Node], anchors: Mapping[str, Anchor], count: int
) -> Iterator[tuple[list[Node], int, int]]:
    """Nodes between two anchors, with the operators of those: the nodes next to an anchor may belong to it."""
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
    """Longest increasing subsequence: the most anchors whose operators are in order; the others were moved."""
    tails: list[int] = []
    lengths: list[int] = []
    for _, anchor in anchors:
        at = bisect_right(tails, anchor.op_indices[0])
        tails[at : at + 1] = [anchor.op_indices[0]]
        lengths.append(at)
    kept: dict[str, int] = {}
    wanted = len(tails) - 1
    for (key, anchor), length in zip(reversed(anchors), reversed(lengths), strict=True):
        if length == wanted:
            kept[key] = anchor.op_indices[0]
            wanted -= 1
    return kept


def _align(
    nodes: list[Node], op_indices: list[int], left_out: list[int], matched: MatchedRun
) -> Iterator[tuple[str, int]]:
    if not op_indices:
        return
    # skipped[j]: what it costs to leave out all operators before j.
    skipped = [0, *accumulate(left_out)]
    best = [skipped[j] + _misfit(nodes[0], op_index, matched) for j, op_index in enumerate(op_indices)]
    steps: list[list[int]] = []
    for node in nodes[1:]:
        best, came = _advance(best, skipped, [_misfit(node, op_index, matched) for op_index in op_indices])
        steps.append(came)
    ends = [cost + skipped[-1] - skipped[j + 1] for j, cost in enumerate(best)]
    chosen = [ends.index(min(ends))]
    for came in reversed(steps):
        chosen.append(came[chosen[-1]])
    yield from ((node.key, op_indices[at]) for node, at in zip(nodes, reversed(chosen), strict=True))


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


def _misfit(node: Node, op_index: int, matched: MatchedRun) -> int:
    if matched.fits_itself(node, op_index):
        return 0
    return _PART if matched.fits(node, op_index) else _MISFIT


# A value is the node's own; a weight may be read by a companion; what is passed on may be passed on once more.
_CERTAINTY = {
    EvidenceKind.VALUE: Confidence.EXACT,
    EvidenceKind.PARAMETER: Confidence.STRONG,
    EvidenceKind.TRACE: Confidence.INFERRED,
}


def project(graph: Graph, hierarchy: Hierarchy, trace: Trace, values: GraphValues, strategy: str) -> dict[str, Claim]:
    matched = MatchedRun(graph, trace, values)
    anchors = find_value_anchors(matched)
    anchors |= find_weight_anchors(matched, anchors)
    anchors |= find_part_anchors(matched, anchors)
    regions = AnchorRegions(matched, hierarchy, anchors, strategy)
    fused = {} if values.failure else find_fused_calls(matched, anchors, regions)
    firm = {
        key: _claim_anchor(anchor, fused.get(key, anchor.calls), trace, strategy)
        for key, anchor in (find_passing_anchors(matched) | anchors).items()
    }
    between = regions.claims()
    certain = {key: claim for key, claim in between.items() if claim.confidence > Confidence.INFERRED}
    bodies = claim_bodies_by_value(matched, values, strategy)
    tables = claim_tables_by_value(matched, strategy)
    by_order = _claim_by_order(matched, anchors, regions, values, strategy)
    claims = {**between, **by_order, **tables, **certain, **firm, **bodies}
    if not values.failure:
        return claims
    lower = {key: Confidence(max(claim.confidence - 1, Confidence.INFERRED)) for key, claim in claims.items()}
    return {key: replace(claim, confidence=lower[key]) for key, claim in claims.items()}


def claim_tables_by_value(matched: MatchedRun, strategy: str) -> dict[str, Claim]:
    """Claims for nodes that make tables from sizes alone, if one call issued such a table in this shape.

    Shape (?) ─► Gather (?) ─► Range (?) ─► Sub (?) ─► MatMul (layer.0)      Sub makes 49 numbers that `encoder` made

    Who casts a table, or looks at it in another shape, may be any that is given it.
    """
    evidence = Evidence(EvidenceKind.VALUE, matched.trace.source, "from sizes")
    claims: dict[str, Claim] = {}
    for node in matched.nodes:
        if node.key not in matched.graph.tables or is_passing(node) or is_rearranging(node):
            continue
        made = [name for name in node.outputs if name in matched.matches and matched.is_long(name)]
        calls = matched.calls(op_index for name in made for op_index in matched.makers(name))
        if len(calls) == 1:
            claims[node.key] = Claim(tuple(calls), Confidence.STRONG, (evidence,), strategy)
    return claims


def _claim_anchor(anchor: Anchor, calls: frozenset[ModuleCall], trace: Trace, strategy: str) -> Claim:
    issued = Evidence(EvidenceKind.TRACE, trace.source, trace.ops[anchor.op_indices[0]].name)
    return Claim(tuple(sorted(calls)), _CERTAINTY[anchor.evidence.kind], (anchor.evidence, issued), strategy)


def _claim_by_order(
    matched: MatchedRun, anchors: Mapping[str, Anchor], regions: AnchorRegions, values: GraphValues, strategy: str
) -> dict[str, Claim]:
    """Claims by order. Where regions are known, it only chooses among what lies in them."""
    op_indices = align_by_order(matched, anchors)
    kept = {key: op_index for key, op_index in op_indices.items() if values.failure or regions.allow(key, op_index)}
    evidence = (Evidence(EvidenceKind.TRACE, matched.trace.source, "by order"),)
    calls = {key: matched.trace.ops[op_index].call for key, op_index in kept.items()}
    return {key: Claim((call,), Confidence.INFERRED, evidence, strategy) for key, call in calls.items()}
