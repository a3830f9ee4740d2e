"""What of the graph before has a part in what the graph after returns: some of its outputs may have been cut off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from modelexport.graph.index import SHAPE_READERS, Graph
from modelexport.lineage.classes import NOTHING
from modelexport.lineage.matching import Matching
from modelexport.lineage.operators import is_passing


def needed_keys(matching: Matching) -> frozenset[str]:
    """Keys of nodes whose numbers have a part in what the graph after returns; all of these if that is not known."""
    before, after = matching.before, matching.after.graph
    ends, given = (_classes(values, matching) for values in (after.outputs, after.inputs))
    roots: Iterable[str] = before.graph.outputs
    if NOTHING not in ends:
        roots = [value for value, place in before.of.items() if place in ends]
    starts = {value for value, place in before.of.items() if place in given and not _is_handed_on(value, before.graph)}
    return frozenset(_upstream(before.graph, roots, starts))


def is_cut(matching: Matching) -> bool:
    """Whether the graph after is known to return less, or something that comes earlier."""
    before, after = matching.before, matching.after.graph
    ends = _classes(after.outputs, matching)
    return NOTHING not in ends and not {before.of.get(value, NOTHING) for value in before.graph.outputs} <= ends


def _is_handed_on(value: str, graph: Graph) -> bool:
    maker = graph.producers.get(value)
    return maker is not None and is_passing(maker)


def _classes(values: Iterable[str], matching: Matching) -> set[int]:
    """The classes before that values after stand for; NOTHING among them for one that is not known."""
    places = [matching.after.of.get(value, NOTHING) for value in values]
    anchors = matching.anchors
    return {anchors.get(place) for place in places} | {one for place in places for one in anchors.also.get(place, ())}


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
        if node.op_type not in SHAPE_READERS:
            waiting += filter(None, node.inputs)
        inside = (*graph.bodies.get(node.key, ()), node.function)
        waiting += (one for graph_id in inside for one in graph.yields.get(graph_id, ()))
