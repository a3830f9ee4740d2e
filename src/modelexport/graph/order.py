"""Graphs whose nodes come after what they read.

Files have to be in that order, and not all of them are: runtimes sort for themselves, and some tools append what they
add.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from modelexport.graph.index import Graph, Node


def ordered(graph: Graph) -> Graph:
    """The graph with its nodes in an order in which they can run; itself if it is. Cycles are left as they are."""
    if _is_ordered(graph):
        return graph
    nodes = _Order(graph).nodes
    return replace(graph, nodes=tuple(replace(node, position=place) for place, node in enumerate(nodes)))


def cycle_in(graph: Graph) -> tuple[str, ...]:
    """The keys of some nodes that read each other in a circle; none if there are none."""
    return () if _is_ordered(graph) else _Order(graph).cycle


def _is_ordered(graph: Graph) -> bool:
    made: set[str] = set()
    for node in graph.nodes:
        if any(value in graph.producers and value not in made for value in node.inputs):
            return False
        made.update(node.outputs)
    return True


class _Order:
    """
    nodes  each after what it and its bodies read, its bodies right behind it, else as in the file
    cycle  the keys of the first nodes that were found to read each other in a circle
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._members: dict[str, list[Node]] = {}
        for node in graph.nodes:
            self._members.setdefault(node.graph, []).append(node)
        self.cycle: tuple[str, ...] = ()
        roots = [graph_id for graph_id in self._members if graph_id not in graph.owners]
        self.nodes = [node for graph_id in roots for node in self._arranged(graph_id)]

    def _arranged(self, graph_id: str) -> Iterator[Node]:
        done: set[str] = set()
        for node in self._members.get(graph_id, ()):
            for one in self._before(node, done):
                yield one
                for body in self._graph.bodies.get(one.key, ()):
                    yield from self._arranged(body)

    def _before(self, node: Node, done: set[str]) -> Iterator[Node]:
        """A node, and before it what it needs and what is not there yet."""
        path: dict[str, Iterator[Node]] = {}
        waiting = [node]
        while waiting:
            here = waiting[-1]
            if here.key in done:
                waiting.pop()
                continue
            needed = next(path.setdefault(here.key, self._needs(here)), None)
            if needed is None:
                done.add(waiting.pop().key)
                path.pop(here.key)
                yield here
            elif needed.key in path:
                keys = list(path)
                self.cycle = self.cycle or tuple(keys[keys.index(needed.key) :])
            elif needed.key not in done:
                waiting.append(needed)

    def _needs(self, node: Node) -> Iterator[Node]:
        """The nodes of the same graph that make what a node reads, or what is read inside of it."""
        for value in self._reads(node):
            maker = self._graph.producers.get(value)
            if maker is not None and maker.graph == node.graph:
                yield maker

    def _reads(self, node: Node) -> Iterator[str]:
        yield from node.inputs
        for body in self._graph.bodies.get(node.key, ()):
            for inner in self._members.get(body, ()):
                yield from self._reads(inner)
