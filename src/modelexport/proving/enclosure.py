"""Which proved nodes come next, upwards and downwards from each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

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


def _holders_first(graph: Graph) -> Iterable[Node]:
    """From the last node to the first; the way out of a body leads through the node that holds it, so that comes first.

    A file lists the nodes of a body behind it.
    """
    bodies: list[Node] = []
    for node in reversed(graph.nodes):
        if node.graph in graph.owners:
            bodies.append(node)
        else:
            yield node
            yield from bodies
            bodies.clear()


def _frontiers(
    nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]], proved: _Proved
) -> Mapping[str, Frontier]:
    found: dict[str, Frontier] = {}
    for node in nodes:
        reached = (proved.get(other.key) or found.get(other.key, frozenset()) for other in neighbours(node))
        found[node.key] = frozenset[ModuleCall]().union(*reached)
    return found
