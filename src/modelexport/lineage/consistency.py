"""What can be said against a lineage: work that nobody does any more, and links that do not fit each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from modelexport.graph.filled import is_filled, single
from modelexport.graph.index import Graph, Node
from modelexport.lineage.classes import NOTHING, Classes
from modelexport.lineage.matching import Matching
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
_SHAPE_READERS = frozenset({"Shape", "Size"})


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
        self._graph, self._after = matching.before.graph, matching.after.graph

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
        """Keys of nodes whose numbers have a part in what the graph after returns; all if that is not known."""
        ends, given = (self._classes(values) for values in (self._after.outputs, self._after.inputs))
        roots: Iterable[str] = self._graph.outputs
        if NOTHING not in ends:
            roots = [value for value, place in self._before.of.items() if place in ends]
        return frozenset(
            _upstream(self._graph, roots, {one for one, place in self._before.of.items() if place in given})
        )

    def _classes(self, values: Iterable[str]) -> set[int]:
        """The classes before that values after stand for; NOTHING among them for one that is not known."""
        places = [self._matching.after.of.get(value, NOTHING) for value in values]
        anchors = self._matching.anchors
        return {anchors.get(place) for place in places} | {
            one for place in places for one in anchors.also.get(place, ())
        }

    @cached_property
    def _bypassed(self) -> frozenset[str]:
        """Keys of nodes whose readers now read what they were given."""
        return frozenset(_bypassed(self._matching))


def _upstream(graph: Graph, roots: Iterable[str], given: set[str]) -> Iterator[str]:
    """Keys of nodes that values are made by; what is merely asked for its shape does not count."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        node = graph.producers.get(value)
        if value in given or node is None or node.key in seen:
            continue
        seen.add(node.key)
        yield node.key
        if node.op_type not in _SHAPE_READERS:
            waiting += filter(None, node.inputs)
        inside = (*graph.bodies.get(node.key, ()), f"{node.domain}::{node.op_type}")
        waiting += (one for graph_id in inside for one in graph.yields.get(graph_id, ()))


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
