"""Nodes that do the work of several calls: never label one with a single one of its sources."""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.graph.index import Node
from modelexport.record.evidence import EvidenceKind
from modelexport.record.hierarchy import ModuleCall
from modelexport.strategies.projection.anchors import Anchor
from modelexport.strategies.projection.matched import Matched
from modelexport.strategies.projection.regions import Regions


def fused_calls(matched: Matched, anchors: Mapping[str, Anchor], regions: Regions) -> dict[str, frozenset[ModuleCall]]:
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


def _unaccounted(node: Node, anchor: Anchor, matched: Matched, regions: Regions) -> list[int]:
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


def _let_through(node: Node, matched: Matched) -> list[int]:
    """Operators that let a node's value through by weights that change nothing, if no node does that after it."""
    if any(matched.passes_on(reader) for reader in matched.graph.successors(node)):
        return []
    passers = [place for name in node.outputs for place in matched.passers(name)]
    return [place for place in passers if not matched.weights.isdisjoint(matched.trace.ops[place].inputs)]


def _work(places: list[int], matched: Matched) -> list[int]:
    """Operators that depend on what the model is given; those that rearrange it only if there are no others."""
    ops = matched.trace.ops
    on_data = [place for place in places if not matched.from_data.isdisjoint(ops[place].inputs)]
    return [place for place in on_data if not matched.rearranges(place)] or on_data
