"""Function inlining: the bodies of model-local functions in the place of their calls, as runtimes do before they run.

    y = Block(x; alpha=2)              with Block(a) {              y|Block|b = Exp(x)
    z = Block(y)                           b = Exp(a)               y         = LeakyRelu(y|Block|b; alpha=2)
                                           return LeakyRelu(b) }    z|Block|b = Exp(y) …

A value inside of a function is called after the call that it is for, and every node remembers its origin: the calls
around it, from the outside in, and the node of the function that it is a copy of. An attribute of a function's node may
refer to one of the call (`ref_attr_name`); `InlinedModel` gives nodes with the values that these references have.
See https://github.com/onnx/onnx/blob/main/docs/IR.md, "Functions".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType

import onnx
import onnx.helper

from modelexport.graph.algorithms import group_by_key
from modelexport.graph.index import (
    KEY_SEPARATOR,
    MAIN,
    Graph,
    Node,
    Tensor,
    called_id,
    function_id,
    value_id,
    walk_nodes,
)
from modelexport.graph.protos import attributes_of, with_inner

Attributes = Mapping[str, onnx.AttributeProto]
# From the calls around a value and its name in the function to the name that it gets, in the graph of the first call.
Naming = Callable[[Sequence[str], str], str]


@dataclass(frozen=True)
class Inlined:
    """A graph without functions.

    origins    by the key of a node that was put in: the keys of the calls that it is for, from the outside in, and of
               the node of the function that it is a copy of
    subgraphs  by the id of a subgraph that was put in: its id in the function, and what ids of values there became
    """

    graph: Graph
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    subgraphs: Mapping[str, tuple[str, Callable[[str], str]]] = field(default_factory=dict)

    def origin(self, key: str) -> tuple[tuple[str, ...], str]:
        """The keys of the calls that a node is for, and its own key in the file."""
        *calls, own = self.origins.get(key, (key,))
        return tuple(calls), own


def inline_graph(graph: Graph, kept: Collection[str] = (), naming: Naming | None = None) -> Inlined:
    """Without functions, except those in `kept`. Values become `<key of the call>|<name>` where `naming` is None."""
    functions = graph.body_outputs.keys() - graph.body_owner.keys() - {MAIN, *kept}
    # ONNX forbids functions that call themselves; a call of one that does stays a call.
    functions -= find_endless(_calls_by_function(graph, functions))
    return _Inliner(graph, functions, naming).inline() if functions else Inlined(graph)


@dataclass(frozen=True)
class _Frame:
    """A call that is being inlined: where its nodes are put, and what its values are called there.

    calls     keys of the calls around, from the outside in, as they are in the file
    call      the key of the innermost call in the graph without functions: in the file, a call inside of a function is
              one node for all calls of that function
    graph     the graph that this call is in there: the main one, or a subgraph
    values    by the id in the function: the id in the graph; what it is given and returns from the start
    subgraphs ids in the function, and what they are there
    """

    calls: tuple[str, ...] = ()
    call: str = ""
    graph: str = MAIN
    functions: tuple[str, ...] = ()
    values: dict[str, str] = field(default_factory=dict)
    subgraphs: dict[str, str] = field(default_factory=dict)
    naming: Naming | None = None

    def value(self, name: str) -> str:
        if not name or not self.calls:
            return name
        if name not in self.values:
            self.values[name] = self._name_value(name)
        return self.values[name]

    def _name_value(self, name: str) -> str:
        subgraph, _, local = name.rpartition(KEY_SEPARATOR)
        if subgraph in self.subgraphs:
            return value_id(self.subgraphs[subgraph], self.naming(self.calls, local) if self.naming else local)
        if self.naming is None:
            return value_id(self.call, name)
        return value_id(self.graph, self.naming(self.calls, name.removeprefix(self.functions[-1] + KEY_SEPARATOR)))


class _Inliner:
    def __init__(self, graph: Graph, functions: Collection[str], naming: Naming | None) -> None:
        self._graph, self._functions, self._naming = graph, functions, naming
        self._members = group_by_key((root_of(node.graph, graph), node) for node in graph.nodes)
        self._stored = group_by_key((name.rpartition(KEY_SEPARATOR)[0], name) for name in graph.initializers)
        self._initializers: dict[str, Tensor] = {}
        self._body_owner: dict[str, str] = {}
        self._body_outputs: dict[str, tuple[str, ...]] = {}
        self._body_inputs: dict[str, tuple[str, ...]] = {}
        self._origins: dict[str, tuple[str, ...]] = {}
        self._subgraphs: dict[str, tuple[str, Callable[[str], str]]] = {}

    def inline(self) -> Inlined:
        graph = self._graph
        roots = [name for name in graph.body_outputs if name not in graph.body_owner and name not in self._functions]
        outputs, inputs = ({root: ends[root] for root in roots} for ends in (graph.body_outputs, graph.body_inputs))
        nodes = [node for root in roots for node in self._copy_nodes(root, _Frame())]
        return Inlined(
            replace(
                graph,
                nodes=tuple(replace(node, position=position) for position, node in enumerate(nodes)),
                initializers=MappingProxyType({**graph.initializers, **self._initializers}),
                body_owner=MappingProxyType(self._body_owner),
                body_outputs=MappingProxyType(outputs | self._body_outputs),
                body_inputs=MappingProxyType(inputs | self._body_inputs),
            ),
            self._origins,
            self._subgraphs,
        )

    def _copy_nodes(self, root: str, frame: _Frame) -> Iterator[Node]:
        around = frame.graph if frame.calls else root
        for node in self._members.get(root, ()):
            inputs, outputs = tuple(map(frame.value, node.inputs)), tuple(map(frame.value, node.outputs))
            key = next(filter(None, outputs), "") or frame.value(node.key)
            graph_id = frame.subgraphs.get(node.graph, around)
            copied = replace(node, key=key, graph=graph_id, inputs=inputs, outputs=outputs)
            if node.function in self._functions:
                yield from self._inline_call(node, copied, frame)
            else:
                if frame.calls:
                    self._origins[copied.key] = (*frame.calls, node.key)
                self._copy_subgraphs(node, copied, frame)
                yield copied

    def _inline_call(self, call: Node, copied: Node, frame: _Frame) -> Iterator[Node]:
        function = call.function
        formals = self._graph.body_inputs[function]
        values = dict(zip(formals, (*copied.inputs, *[""] * len(formals)), strict=False))
        passed: list[tuple[str, str]] = []
        for inner, outer in zip(self._graph.body_outputs[function], copied.outputs, strict=False):
            if inner in values and outer:  # given and returned as it is, or returned twice
                passed.append((inner, outer))
            elif outer:
                values[inner] = outer
        calls, functions = (*frame.calls, call.key), (*frame.functions, function)
        inside = _Frame(calls, copied.key, copied.graph, functions, values, naming=self._naming)
        yield from self._copy_nodes(function, inside)
        for inner, outer in passed:
            self._origins[outer] = calls
            identity = replace(copied, op_type="Identity", domain="", overload="", attributes=b"", constant=None)
            yield replace(identity, key=outer, inputs=(inside.value(inner),), outputs=(outer,))

    def _copy_subgraphs(self, node: Node, copied: Node, frame: _Frame) -> None:
        """A subgraph is called after its node, and the values inside after it, as in a file without functions."""
        for inner_id in self._graph.subgraphs.get(node.key, ()):
            graph_id = frame.subgraphs[inner_id] = copied.key + inner_id.removeprefix(node.key)
            self._subgraphs[graph_id] = inner_id, frame.value
            self._body_owner[graph_id] = copied.key
            self._body_outputs[graph_id] = tuple(map(frame.value, self._graph.body_outputs[inner_id]))
            self._body_inputs[graph_id] = tuple(map(frame.value, self._graph.body_inputs[inner_id]))
            for name in self._stored.get(inner_id, ()):
                stored = frame.value(name)
                self._initializers[stored] = replace(self._graph.initializers[name], name=stored)


def _calls_by_function(graph: Graph, functions: Collection[str]) -> dict[str, set[str]]:
    called = group_by_key((root_of(node.graph, graph), node.function) for node in graph.nodes)
    return {function: {*called.get(function, ())} & {*functions} for function in functions}


def find_endless(calls: Mapping[str, Collection[str]]) -> set[str]:
    """Functions that call themselves, or one that does: they can never be put in the place of all their calls."""
    endless = set(calls)
    sorter = TopologicalSorter(calls)
    with suppress(CycleError):  # what does not depend on a cycle is sorted all the same
        sorter.prepare()
    while ready := sorter.get_ready():
        sorter.done(*ready)
        endless.difference_update(ready)
    return endless


@dataclass(frozen=True)
class InlinedSize:
    """What a model, or a function, is with functions in the place of their calls.

    nodes       how many there are then
    values      how many names of values they have
    characters  of all these names, those of the calls around included
    depth       the longest chain of calls
    """

    nodes: int = 0
    values: int = 0
    characters: int = 0
    depth: int = 0


def measure_calls(model: onnx.ModelProto) -> InlinedSize:
    """From the functions that call no other up, each once: what doubles thirty times is counted in thirty steps."""
    functions = {function_id(function): function for function in model.functions}
    bodies = {name: function.node for name, function in functions.items()}
    calls = {name: {called_id(node) for node in _all_nodes(nodes)} & bodies.keys() for name, nodes in bodies.items()}
    measured: dict[str, InlinedSize] = {}
    endless = find_endless(calls)
    acyclic = {name: called - endless for name, called in calls.items() if name not in endless}
    for name in TopologicalSorter(acyclic).static_order():
        # A value that is returned as it was given, or twice, becomes an Identity.
        function = functions[name]
        passed = len(function.output) - len({*function.output} - {*function.input})
        body = _measure_nodes(function.node, measured)
        measured[name] = replace(body, nodes=body.nodes + passed)
    # In an endless function all calls of others are inlined too. One that nobody calls is looked at by checkers.
    parts = [_measure_nodes(nodes, measured) for nodes in (model.graph.node, *(bodies[name] for name in endless))]
    parts += measured.values()
    nodes, values, characters, depth = (max(numbers) for numbers in zip(*map(astuple, parts), strict=True))
    return InlinedSize(nodes, values, characters, depth)


def _measure_nodes(nodes: Iterable[onnx.NodeProto], measured: Mapping[str, InlinedSize]) -> InlinedSize:
    count = values = characters = depth = 0
    for node in _all_nodes(nodes):
        function = measured.get(called_id(node))
        values += len(node.input) + len(node.output)
        characters += sum(map(len, node.input)) + sum(map(len, node.output))
        if function is None:
            count += 1
        else:
            count += function.nodes
            values += function.values
            # The name of the call and that of the function go before each name inside.
            prefix = len(next(filter(None, node.output), node.name)) + len(called_id(node)) + 2
            characters += function.characters + function.values * prefix
            depth = max(depth, function.depth + 1)
    # Exponents of exponents: nobody needs the number once it is too large.
    return InlinedSize(*(min(number, _PLENTY) for number in (count, values, characters, depth)))


_PLENTY = 1 << 62


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    return (inner for node in nodes for inner in with_inner(node))


def root_of(graph_id: str, graph: Graph) -> str:
    """The main graph or the function that a subgraph is in, however deep."""
    while graph_id in graph.body_owner:
        graph_id = graph.by_key[graph.body_owner[graph_id]].graph
    return graph_id


class InlinedModel:
    """The nodes of a model without functions, each with its attributes as the calls around it give them."""

    def __init__(self, proto: onnx.ModelProto, inlined: Inlined) -> None:
        self.inlined = inlined
        self._proto = proto
        self._functions = {function_id(function): function for function in proto.functions}

    @cached_property
    def _protos(self) -> Mapping[str, onnx.NodeProto]:
        return dict(walk_nodes(self._proto))

    @cached_property
    def graph(self) -> Graph:
        """Two nodes of one function differ here if their calls give them different attributes."""
        if not self.inlined.origins:
            return self.inlined.graph
        referring = {key for key, proto in self._protos.items() if _has_references(proto)}
        copies = {key for key, origin in self.inlined.origins.items() if origin[-1] in referring}
        if not copies:
            return self.inlined.graph
        nodes = (
            replace(node, attributes=attributes_of(self.node_proto(node))) if node.key in copies else node
            for node in self.inlined.graph.nodes
        )
        return replace(self.inlined.graph, nodes=tuple(nodes))

    def node_proto(self, node: Node) -> onnx.NodeProto:
        """The node as its file or function has it, names included, without references. Raises KeyError if absent."""
        calls, own = self.inlined.origin(node.key)
        proto = self._protos[own]
        if proto.op_type != node.op_type:  # what a function returns as it was given
            return onnx.helper.make_node(node.op_type, node.inputs, node.outputs)
        if not calls or not _has_references(proto):
            return proto
        copied = deepcopy(proto)
        del copied.attribute[:]
        given = call_attributes((self._protos[call] for call in calls), self._functions)
        copied.attribute.extend(resolve_references(proto.attribute, given))
        return copied


def resolve_references(attributes: Iterable[onnx.AttributeProto], given: Attributes) -> Iterator[onnx.AttributeProto]:
    """Attributes as the call has them. One that refers to something the call does not give is not there."""
    for attribute in attributes:
        if not attribute.ref_attr_name:
            yield attribute
        elif attribute.ref_attr_name in given:
            value = deepcopy(given[attribute.ref_attr_name])
            value.name = attribute.name
            yield value


def call_attributes(calls: Iterable[onnx.NodeProto], functions: Mapping[str, onnx.FunctionProto]) -> Attributes:
    """What the last of these calls gives to its function, or else the function's own default.

    calls      each but the first is made in the function that the one before it calls
    """
    given: Attributes = {}
    for call in calls:
        function = functions.get(called_id(call))
        defaults = () if function is None else function.attribute_proto
        given = {item.name: item for item in (*defaults, *resolve_references(call.attribute, given))}
    return given


def _has_references(proto: onnx.NodeProto) -> bool:
    return any(attribute.ref_attr_name for attribute in proto.attribute)
