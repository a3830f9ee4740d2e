"""Which proved nodes come next, upwards and downwards from each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from modelexport.graph.index import Graph, Node
from modelexport.record.hierarchy import ModuleCall

Frontier = frozenset[ModuleCall]
_Proved = Mapping[str, Frontier]


def below(graph: Graph, proved: _Proved) -> Mapping[str, Frontier]:
    """By node key: the calls of the first proved nodes on every way down from it."""
    return _frontiers(_holders_first(graph), graph.successors, proved)


def above(graph: Graph, proved: _Proved) -> Mapping[str, Frontier]:
    """By node key: the calls of the first proved nodes on every way up from it."""
    return _frontiers(graph.nodes, graph.predecessors, proved)


def _holders_first(graph: Graph) -> Iterator[Node]:
    """From the last node to the first. The way out of a body leads through the node that holds it: that comes first."""
    inside: dict[str, list[Node]] = {}
    for node in graph.nodes:
        inside.setdefault(node.graph, []).append(node)
    held: dict[str, list[str]] = {}
    for graph_id, holder in graph.owners.items():
        held.setdefault(holder, []).append(graph_id)
    waiting = [node for graph_id in inside if graph_id not in graph.owners for node in inside[graph_id]]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [inner for graph_id in held.get(node.key, ()) for inner in inside.get(graph_id, ())]


def _frontiers(
    nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]], proved: _Proved
) -> Mapping[str, Frontier]:
    found: dict[str, Frontier] = {}
    for node in nodes:
        reached = (proved.get(other.key) or found.get(other.key, frozenset()) for other in neighbours(node))
        found[node.key] = frozenset[ModuleCall]().union(*reached)
    return found
