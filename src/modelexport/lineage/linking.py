"""Linking every node of a graph to the nodes of the graph that it was made from.

First, values are paired: where the graphs begin and end, constants, names that confirm each other, congruence from all
of these in both directions, names that nobody confirms. Then nodes are linked, each kind of evidence by a linker of its
own, and what is left goes to its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from modelexport.graph.index import Graph
from modelexport.lineage.classes import Classes
from modelexport.lineage.constants import ConstantLinker
from modelexport.lineage.ends import EndLinker
from modelexport.lineage.handed_on import HandedOn, Parts
from modelexport.lineage.links import Links, NodeLinker
from modelexport.lineage.matching import Matching
from modelexport.lineage.names import NameLinker
from modelexport.lineage.neighbours import Neighbours
from modelexport.lineage.placing import Placed, Rearranged
from modelexport.lineage.regions import Regions
from modelexport.lineage.taken_in import Dropped, Idle, Merged, ReadThrough, Weighed
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Link, Relation
from modelexport.record.sketch import Sketches


class ValueLinker(Protocol):
    """One kind of evidence about values."""

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Classes after, each with the class before that it is."""


def matched(before: Graph, after: Graph, sketches: tuple[Sketches, Sketches]) -> Matching:
    matching = Matching(Classes(before), Classes(after))
    matching.anchor_constants(ConstantLinker(matching.before, matching.after, sketches))
    names = NameLinker(matching.before, matching.after, matching.weights_differ)
    # These do not follow from anything else.
    certain: tuple[ValueLinker, ...] = (EndLinker(matching.before, matching.after, names), names)
    for linker in certain:
        for place, other in linker.pairs():
            matching.anchor(place, other, certain=True)
    matching.settle()
    for place, other in names.unconfirmed():
        node, origin = matching.after.makers.get(place), matching.before.makers.get(other)
        if place in matching.anchors or node is None or origin is None:
            continue
        if matching.anchors.agreement(node, origin) is not None or matching.share_weight(node, origin):
            matching.anchor(place, other)
            matching.settle()
    matching.guess()
    return matching


def linked(matching: Matching) -> dict[str, Link]:
    """A link for every node."""
    links, regions = Links(matching), Regions(matching)
    linkers: tuple[NodeLinker, ...] = (
        Placed(links, regions),
        # Who has taken in what is gone: first where nodes stand for several, then what nobody does as yet.
        Merged(links),
        Idle(links),
        Dropped(links),
        ReadThrough(links),
        Weighed(links),
        # These do no work of their own: they take what is left.
        Rearranged(links, regions),
        HandedOn(links),
        Parts(links),
        Neighbours(links),
    )
    for linker in linkers:
        linker.link()
    nothing = Link((), Relation.INTRODUCED, Confidence.NONE)
    return {node.key: links.found.get(node.key, nothing) for node in matching.after.graph.nodes}
