"""Graphs with functions put in the place of their calls, as runtimes do before they run them.

Attributes that a function is given by those who call it, and that nodes inside of it refer to.

Nodes of functions with what the calls around them say: an attribute that refers to the call's has that value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import onnx

from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node, called_id, function_id, walk_nodes
from modelexport.graph.protos import attributes_of

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

    place  the key of the innermost call in the graph without functions: in the file, a call inside of a function is
           one node for all calls of that function
    graph  the graph that this call is in there: the main one, or a body
    bodies ids of bodies in the function, and what they are there; filled while nodes are put
    """

    calls: tuple[str, ...] = ()
    place: str = ""
    graph: str = MAIN
    functions: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    bodies: dict[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str:
        if not name or not self.calls:
            return name
        body, _, local = name.rpartition(KEY_SEPARATOR)
        if body in self.bodies:
            return f"{self.bodies[body]}{KEY_SEPARATOR}{local}"
        return self.values.get(name, self.inner(name))

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
        around = frame.graph if frame.calls else root
        for node in self._members.get(root, ()):
            copied = self._copied(node, frame.bodies.get(node.graph, around), frame)
            if node.function in self._functions and not self._is_endless(node.function, frame):
                yield from self._put(node.function, self._called(node.function, node, copied, frame))
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
        return _Frame(
            (*frame.calls, node.key), copied.key, copied.graph, (*frame.functions, function), {**given, **made}
        )

    def _copied(self, node: Node, graph_id: str, frame: _Frame) -> Node:
        outputs = tuple(map(frame.value, node.outputs))
        first = next(filter(None, outputs), "")
        return replace(
            node,
            key=first or frame.inner(node.key),
            graph=graph_id,
            inputs=tuple(map(frame.value, node.inputs)),
            outputs=outputs,
        )

    def _put_bodies(self, node: Node, copied: Node, frame: _Frame) -> None:
        """A body is called after its node, and the values inside after the body, as in a file without functions."""
        for body in self._graph.bodies.get(node.key, ()):
            name = frame.bodies[body] = copied.key + body.removeprefix(node.key)
            self._owners[name] = copied.key
            self._yields[name] = tuple(map(frame.value, self._graph.yields[body]))
            self._takes[name] = tuple(map(frame.value, self._graph.takes[body]))


def root_of(graph_id: str, graph: Graph) -> str:
    """The main graph or the function that a body is in, however deep."""
    while graph_id in graph.owners:
        graph_id = graph.by_key[graph.owners[graph_id]].graph
    return graph_id


# By name.
Attributes = Mapping[str, onnx.AttributeProto]


def resolved(attributes: Iterable[onnx.AttributeProto], given: Attributes) -> Iterator[onnx.AttributeProto]:
    """Attributes as the call has them. One that refers to something the call does not give is not there."""
    for one in attributes:
        if not one.ref_attr_name:
            yield one
        elif one.ref_attr_name in given:
            value = onnx.AttributeProto()
            value.CopyFrom(given[one.ref_attr_name])
            value.name = one.name
            yield value


def given_by(
    calls: Iterable[onnx.NodeProto], functions: Mapping[str, onnx.FunctionProto], around: Attributes | None = None
) -> Attributes:
    """What the last of these calls gives to its function, or else the function's own.

    calls      each but the first is made in the function that the one before it calls
    functions  by id
    around     what the function is given that the first call is in
    """
    found = around or {}
    for call in calls:
        function = functions.get(called_id(call))
        usual = () if function is None else function.attribute_proto
        found = {one.name: one for one in (*usual, *resolved(call.attribute, found))}
    return found


def node_protos(
    model: onnx.ModelProto, origins: Mapping[str, Sequence[str]], keys: Iterator[str]
) -> dict[str, onnx.NodeProto]:
    """By the key of a node, functions put in the place of their calls.

    origins  by the key of a node that was put in: the keys of the calls around it and its own, from the outside in
    """
    written = dict(walk_nodes(model))
    functions = {function_id(one): one for one in model.functions}
    found: dict[str, onnx.NodeProto] = {}
    for key in keys:
        *calls, own = origins.get(key, (key,))
        proto = written.get(own)
        if proto is not None:
            around = [written[call] for call in calls if call in written]
            found[key] = _with_attributes(proto, given_by(around, functions)) if around and _refers(proto) else proto
    return found


def with_given(graph: Graph, model: onnx.ModelProto, origins: Mapping[str, Sequence[str]]) -> Graph:
    """The graph, in which nodes differ that are called with different attributes."""
    referring = {key for key, proto in walk_nodes(model) if _refers(proto)}
    wanted = [key for key, found in origins.items() if found[-1] in referring]
    if not wanted:
        return graph
    protos = node_protos(model, origins, iter(wanted))
    nodes: list[Node] = [
        replace(node, attributes=attributes_of(protos[node.key])) if node.key in protos else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def inlined_with_attributes(graph: Graph, model: onnx.ModelProto) -> Inlined:
    """The graph without functions, its nodes with the attributes that the calls around them give."""
    flat = inlined(graph)
    return Inlined(with_given(flat.graph, model, flat.origins), flat.origins) if flat.origins else flat


def _refers(proto: onnx.NodeProto) -> bool:
    return any(item.ref_attr_name for item in proto.attribute)


def _with_attributes(proto: onnx.NodeProto, given: Attributes) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    del made.attribute[:]
    made.attribute.extend(resolved(proto.attribute, given))
    return made
