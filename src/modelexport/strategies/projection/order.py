"""Aligning nodes with operators by their order, where nothing better is known.

Exporters list nodes in the order in which operators were issued. Anchors cut both lists into stretches; within one, the
cheapest alignment is taken in which no node goes back: it costs something if an operator does not become such a node,
and if an operator is left without any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from modelexport.graph.index import Node
from modelexport.strategies.projection.anchors import Anchor
from modelexport.strategies.projection.matched import Matched

# What it costs if an operator does not become such a node (though the function that it is a part of may), and if one is
# left without any node: most are not, but those that change nothing often vanish, and those of anchors have a node.
_MISFIT, _PART, _LEFT_OUT, _LEFT_OUT_UNCHANGING = 6, 4, 4, 1


def aligned(matched: Matched, anchors: Mapping[str, Anchor]) -> dict[str, int]:
    """For each node without an anchor, the place of the operator that it goes with."""
    nodes = [node for node in matched.nodes if node.key in matched.graph.computed]
    pinned = {place for anchor in anchors.values() for place in anchor.places}
    found: dict[str, int] = {}
    for stretch, first, last in _stretches(nodes, anchors, len(matched.trace.ops)):
        places = [place for place in range(first, last + 1) if matched.trace.ops[place].inputs]
        costs = [0 if place in pinned else _cost_left_out(matched, place) for place in places]
        found.update(_align(stretch, places, costs, matched))
    return found


def _cost_left_out(matched: Matched, place: int) -> int:
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


def _align(nodes: list[Node], places: list[int], left_out: list[int], matched: Matched) -> Iterator[tuple[str, int]]:
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


def _misfit(node: Node, place: int, matched: Matched) -> int:
    if matched.fits_itself(node, place):
        return 0
    return _PART if matched.fits(node, place) else _MISFIT
