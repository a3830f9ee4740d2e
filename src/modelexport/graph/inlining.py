"""Graphs with functions put in the place of their calls, as runtimes do before they run them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node

# Functions that call functions that call functions can unfold to more than any machine holds.
_MOST = 1_000_000


@dataclass(frozen=True)
class Inlined:
    """
    origins  by the key of a node that was put in: the keys of the calls that it is for, from the outside in, and of
             the node of the function that it is a copy of
    """

    graph: Graph
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def inlined(graph: Graph, kept: Collection[str] = ()) -> Inlined:
    """The graph without functions but those that are named in `kept`."""
    functions = {name for name in graph.yields if name != MAIN and name not in graph.owners and name not in kept}
    return _Inliner(graph, functions).result() if functions else Inlined(graph)


@dataclass(frozen=True)
class _Frame:
    """Where nodes are put: the calls around them, of which functions, and what its values are called there.

    place  the key of the innermost call as it is where it was put: a function that is called twice has its calls twice
    """

    calls: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    def value(self, name: str) -> str:
        return self.values.get(name, self.inner(name)) if name and self.calls else name

    def inner(self, name: str) -> str:
        """What lies inside of a function has the name of the call before its own; a graph around it stays the same."""
        return f"{self.place}{KEY_SEPARATOR}{name}" if self.calls and name else name


class _Inliner:
    def __init__(self, graph: Graph, functions: Collection[str]) -> None:
        self._graph = graph
        self._functions = functions
        self._members: dict[str, list[Node]] = {}
        for node in graph.nodes:
            self._members.setdefault(root_of(node.graph, graph), []).append(node)
        self._owners: dict[str, str] = {}
        self._yields: dict[str, tuple[str, ...]] = {}
        self._takes: dict[str, tuple[str, ...]] = {}
        self._origins: dict[str, tuple[str, ...]] = {}

    def result(self) -> Inlined:
        roots = [name for name in self._graph.yields if name not in self._graph.owners and name not in self._functions]
        nodes = [node for root in roots for node in self._put(root, _Frame())]
        placed = tuple(replace(node, position=place) for place, node in enumerate(nodes))
        ends = {root: (self._graph.yields[root], self._graph.takes[root]) for root in roots}
        return Inlined(
            replace(
                self._graph,
                nodes=placed,
                owners=MappingProxyType(self._owners),
                yields=MappingProxyType({**{root: one for root, (one, _) in ends.items()}, **self._yields}),
                takes=MappingProxyType({**{root: one for root, (_, one) in ends.items()}, **self._takes}),
            ),
            self._origins,
        )

    def _put(self, root: str, frame: _Frame) -> Iterator[Node]:
        """The nodes of a graph or a function, with all that is inside of them, where `frame` says."""
        for node in self._members.get(root, ()):
            copied = self._copied(node, root, frame)
            function = f"{node.domain}::{node.op_type}"
            if function in self._functions and not self._is_endless(function, frame):
                yield from self._put(function, self._called(function, node, copied, frame))
            else:
                if frame.calls:
                    self._origins[copied.key] = (*frame.calls, node.key)
                self._put_bodies(node, copied, frame)
                yield copied

    def _is_endless(self, function: str, frame: _Frame) -> bool:
        """Functions cannot call themselves; a call of one that does stays a call."""
        return function in frame.functions or len(self._origins) > _MOST

    def _called(self, function: str, node: Node, copied: Node, frame: _Frame) -> _Frame:
        takes, yields = self._graph.takes[function], self._graph.yields[function]
        given = dict(zip(takes, (*copied.inputs, *[""] * len(takes)), strict=False))
        made = dict(zip(yields, copied.outputs, strict=False))
        return _Frame((*frame.calls, node.key), (*frame.functions, function), {**given, **made}, copied.key)

    def _copied(self, node: Node, root: str, frame: _Frame) -> Node:
        outputs = tuple(map(frame.value, node.outputs))
        first = next(filter(None, outputs), "")
        return replace(
            node,
            key=first or frame.inner(node.key),
            graph=frame.inner(node.graph) if node.graph != root else MAIN if frame.calls else node.graph,
            inputs=tuple(map(frame.value, node.inputs)),
            outputs=outputs,
        )

    def _put_bodies(self, node: Node, copied: Node, frame: _Frame) -> None:
        for body in self._graph.bodies.get(node.key, ()):
            name = frame.inner(body)
            self._owners[name] = copied.key
            self._yields[name] = tuple(map(frame.value, self._graph.yields[body]))
            self._takes[name] = tuple(map(frame.value, self._graph.takes[body]))


def root_of(graph_id: str, graph: Graph) -> str:
    """The main graph or the function that a body is in, however deep."""
    while graph_id in graph.owners:
        graph_id = graph.by_key[graph.owners[graph_id]].graph
    return graph_id
