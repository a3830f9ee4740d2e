"""What can be said against a lineage: work that nobody does any more, and links that do not fit each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from modelexport.graph.filled import is_filled, single
from modelexport.graph.index import Graph, Node
from modelexport.lineage.classes import NOTHING, Classes
from modelexport.lineage.matching import Matching
from modelexport.lineage.needed import needed_keys
from modelexport.lineage.operators import is_moving, is_passing, is_rearranging, is_view
from modelexport.record.lineage import Consistency, Link, Relation

_SAME = (Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN, Relation.SPLIT)
# The number that leaves the others as they are, and the inputs that may be it.
_NEUTRAL = {
    "Add": (0, (0, 1)),
    "Sub": (0, (1,)),
    "Mul": (1, (0, 1)),
    "Div": (1, (1,)),
    "Pow": (1, (1,)),
    "And": (1, (0, 1)),
    "Or": (0, (0, 1)),
}


def consistency(matching: Matching, nodes: Mapping[str, Link], folded: Mapping[str, Link]) -> Consistency:
    before = matching.before.graph
    computing = [node.key for node in before.nodes if node.key in before.computed]
    covered = {key for link in nodes.values() for key in link.sources}
    constant = {key for link in folded.values() for key in link.sources}
    gone = [key for key in computing if key not in covered and key not in constant]
    removal = _Removal(matching)
    removed = {key for key in gone if removal.is_justified(before.by_key[key])}
    return Consistency(
        nodes=len(computing),
        folded=tuple(key for key in computing if key not in covered and key in constant),
        removed=tuple(key for key in gone if key in removed),
        unexplained=tuple(key for key in gone if key not in removed),
        disorder=tuple(_disorder(before, matching.after.graph, nodes)),
        strayed=tuple(_strayed(matching, nodes)),
    )


class _Removal:
    """Whether a node that nobody stands for could be taken out: it did nothing, or nobody needs what it made."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._before = matching.before
        self._graph = matching.before.graph

    def is_justified(self, node: Node) -> bool:
        if is_passing(node) or is_view(node) or self._is_neutral(node) or node.key not in self._needed:
            return True
        moves = is_moving(node) or is_rearranging(node) or (node.op_type == "Concat" and len(node.inputs) == 1)
        return moves and node.key in self._bypassed

    def _is_neutral(self, node: Node) -> bool:
        number, places = _NEUTRAL.get(node.op_type, (0, ()))
        return any(self._holds(node.inputs[place], number) for place in places if place < len(node.inputs))

    def _holds(self, value: str, number: int) -> bool:
        tensor = self._graph.initializers.get(value)
        if tensor is not None:
            return is_filled(tensor, number)
        return self._before.constants.get(self._before.of.get(value, NOTHING)) in single(number)

    @cached_property
    def _needed(self) -> frozenset[str]:
        return needed_keys(self._matching)

    @cached_property
    def _bypassed(self) -> frozenset[str]:
        """Keys of nodes whose readers now read what they were given."""
        return frozenset(_bypassed(self._matching))


def _bypassed(matching: Matching) -> Iterator[str]:
    before, after, anchors = matching.before, matching.after, matching.anchors
    for key, origin in {**matching.works, **matching.matches}.items():
        node = after.graph.by_key[key]
        for here, there in zip(after.inputs(node), before.inputs(origin), strict=False):
            yield from (one.key for one in before.between(anchors.get(here), there))
    for place, others in anchors.also.items():
        for other in others:
            known = anchors.get(place)
            yield from (one.key for one in before.between(known, other) or before.between(other, known))


def _disorder(before: Graph, after: Graph, nodes: Mapping[str, Link]) -> Iterator[tuple[str, str]]:
    """Edges that run against the order of the graph before: who makes a value, and who reads it.

    What only hands on may stand anywhere between a value and those that read it.
    """

    def place(node: Node) -> int | None:
        link = nodes.get(node.key)
        one = link is not None and link.relation in _SAME and len(link.sources) == 1 and not is_passing(node)
        return before.by_key[link.sources[0]].position if link is not None and one else None

    for node in after.nodes:
        end = place(node)
        for maker in after.predecessors(node) if end is not None else ():
            start = place(maker)
            if start is not None and end is not None and start > end:
                yield maker.key, node.key


def _strayed(matching: Matching, nodes: Mapping[str, Link]) -> Iterator[str]:
    """Nodes that read a weight which none of their sources read, if any of them read one."""
    before, after, anchors = matching.before, matching.after, matching.anchors
    for node in after.nodes:
        link = nodes.get(node.key)
        if link is None or link.relation is Relation.INTRODUCED:
            continue
        single = {place for place in after.constant_inputs(node) if after.size(place) <= 1}
        weights = [place for place in _constants(after, node) if place in anchors and place not in single]
        origins = [before.graph.by_key[key] for key in link.sources]
        theirs = {place for origin in origins for place in _constants(before, origin)}
        if weights and theirs and not any(anchors.is_like(anchors.get(place), theirs) for place in weights):
            yield node.key


def _constants(classes: Classes, node: Node) -> Iterable[int]:
    """What a node reads that is no data, be it through nodes that work on constants alone."""
    return dict.fromkeys((*classes.constant_inputs(node), *classes.weights(node)))
