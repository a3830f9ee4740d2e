"""Index of a model: nodes of every graph in it, and who produces and who consumes each value. Read-only, def-use.

Strategies, lineage and analysis read this and never protobuf. Building it touches each node once and no weight data.

Ids. A value is called by its name in the main graph, and behind the id of its graph elsewhere. A node is called by its
first output, because names of outputs outlive names of nodes:

    main graph            y = If(c)              node key y, value ids c, y
    subgraph of the If    t = Add(x, k)          graph id y|then_branch, node key y|then_branch|t, reads x of outside
    function              o = Relu(i)            graph id local::Block, node key local::Block|o

`edges_of` gives the same edges to a record, which knows nothing of ONNX.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import onnx

from modelexport.graph import protos
from modelexport.graph.algorithms import group_by_key
from modelexport.graph.file.weights import storage_bytes
from modelexport.record.provenance import Edges

MAIN = ""
# Keeps the parts of a node key apart: owner of the body, attribute that holds it, first output inside.
KEY_SEPARATOR = "|"

FLOATS = frozenset(map(onnx.TensorProto.DataType.Value, ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"]))

SHAPE_READERS = frozenset({"Shape", "Size"})
# Operators that count up to a size.
_NUMBERING = frozenset({"Range", "EyeLike"})


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One ONNX node. Inputs and outputs are value ids: plain names in the main graph, prefixed by the graph in bodies.

    key       the graph and the first output: what identifies a node, because output names outlive node names
    graph     the id of the graph that holds it: `""`, or `<owner key>|<attribute>`, or `<domain>::<function>`
    position  its place in the order in which the file lists nodes, or in which they can run if that is another one
    constant  the content, for a node that only holds a small tensor
    operator  what to ask for traits with (`graph/operators.py`): in an unknown domain, nothing is known of an `Add`
    """

    key: str
    name: str
    op_type: str
    domain: str
    graph: str
    position: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: bytes
    constant: bytes | None
    metadata: Mapping[str, str]
    overload: str = ""
    operator: str = field(init=False)

    def __post_init__(self) -> None:
        # Asked many times of every node.
        object.__setattr__(self, "operator", protos.operator_name(self.op_type, self.domain))

    @property
    def function(self) -> str:
        """The id of the function that it calls, if the model has one of its name."""
        return _function_id(self.domain, self.op_type, self.overload)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An initializer's header. `content` is its data, only where that is small enough to lie in the graph itself."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    content: bytes | None

    @property
    def nbytes(self) -> int:
        """As it is stored: four bits are half a byte, and of strings nobody knows."""
        return storage_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class Graph:
    """All nodes of a model in file order, bodies right after the node that owns them.

    body_owner    id of a subgraph, mapped to the key of the node that holds it
    body_outputs  id of a graph (the main one, a subgraph, a function), mapped to the ids of the values that it returns
    body_inputs   the same, to those that it is given
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Tensor]
    body_owner: Mapping[str, str]
    body_outputs: Mapping[str, tuple[str, ...]]
    body_inputs: Mapping[str, tuple[str, ...]]

    @cached_property
    def fed_inputs(self) -> tuple[str, ...]:
        """Inputs that a run must be given: a weight that is listed among them, as old files do, is a default."""
        return tuple(name for name in self.inputs if name not in self.initializers)

    @cached_property
    def by_key(self) -> Mapping[str, Node]:
        return {node.key: node for node in self.nodes}

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        return {output: node for node in self.nodes for output in node.outputs if output}

    @cached_property
    def uses(self) -> Mapping[str, tuple[tuple[Node, int], ...]]:
        """By value: the nodes that read it, each with the index of the input, in file order."""
        uses: dict[str, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                if value:  # an input that is left out has an empty name, and is no value
                    uses.setdefault(value, []).append((node, index))
        return {value: tuple(readers) for value, readers in uses.items()}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """By value: the nodes that read it, each once, in file order."""
        return {
            value: tuple(dict.fromkeys([reader for reader, _ in uses])) if len(uses) > 1 else (uses[0][0],)
            for value, uses in self.uses.items()
        }

    @cached_property
    def subgraphs(self) -> Mapping[str, tuple[str, ...]]:
        """By the key of a node that holds subgraphs: their ids."""
        return group_by_key((owner, graph_id) for graph_id, owner in self.body_owner.items())

    @cached_property
    def members(self) -> Mapping[str, tuple[Node, ...]]:
        """By the id of a graph, a body or a function: the nodes that lie in it directly, in the order of the file."""
        return group_by_key((node.graph, node) for node in self.nodes)

    @cached_property
    def running_order(self) -> tuple[Node, ...]:
        """Every node after what it is computed from, bodies before their owner; functions first, main graph last."""
        functions = [graph_id for graph_id in self.members if graph_id != MAIN and graph_id not in self.body_owner]
        return tuple(node for graph_id in (*functions, MAIN) for node in self._run(graph_id))

    def _run(self, graph_id: str) -> Iterator[Node]:
        for node in self.members.get(graph_id, ()):
            for body in self.subgraphs.get(node.key, ()):
                yield from self._run(body)
            yield node

    @cached_property
    def callers(self) -> Mapping[str, tuple[str, ...]]:
        """By the id of a body or a function: the keys of the nodes that run it."""
        calls = group_by_key((node.function, node.key) for node in self.nodes if node.function in self.body_outputs)
        inside = (graph_id for graph_id in self.body_outputs if graph_id != MAIN)
        # A function that nobody calls is there too, with no callers; a body is run by the node that holds it alone.
        return {
            graph_id: (self.body_owner[graph_id],) if graph_id in self.body_owner else calls.get(graph_id, ())
            for graph_id in inside
        }

    @cached_property
    def computed(self) -> frozenset[str]:
        """Values (and so keys of nodes) that depend on the content of what the model is fed, not merely its shape."""
        dependent = set(self.fed_inputs)
        for node in self.nodes:
            inside = self.body_owner.get(node.graph) in dependent
            if node.operator not in SHAPE_READERS and (inside or any(value in dependent for value in node.inputs)):
                dependent.update(output for output in node.outputs if output)
                # A subgraph may read values that the node which holds it does not.
                dependent.update(value for owner in self.enclosing_nodes(node) for value in owner.outputs if value)
        return frozenset(dependent)

    @cached_property
    def tables(self) -> frozenset[str]:
        """Values that are numbered from sizes of what the model is fed, and not from its content: positions, distances.

        Their numbers tell more than sizes do, which are equal by chance.
        """
        varying, tables = set(self.fed_inputs), set[str]()
        for node in self.nodes:
            if varying.isdisjoint(node.inputs):
                continue
            varying.update(filter(None, node.outputs))
            if node.operator in _NUMBERING or not tables.isdisjoint(node.inputs):
                tables.update(filter(None, node.outputs))
        return frozenset(tables - self.computed)

    def enclosing_nodes(self, node: Node) -> Iterator[Node]:
        """The nodes in whose subgraphs a node is, innermost first."""
        # The main graph has no owner, though a node without outputs and name has the empty key.
        while node.graph in self.body_owner:
            node = self.by_key[self.body_owner[node.graph]]
            yield node

    def subgraph_nodes(self, node: Node) -> Iterator[Node]:
        """The nodes in the subgraphs of a node, however deep."""
        waiting = list(self.subgraphs.get(node.key, ()))
        while waiting:
            for member in self.members.get(waiting.pop(0), ()):
                yield member
                waiting += self.subgraphs.get(member.key, ())

    @cached_property
    def fingerprint(self) -> str:
        """Ties a record to a graph: everything but node names, metadata and weight data goes into it."""
        digest = hashlib.sha256()
        for node in self.nodes:
            digest.update(repr((node.key, node.op_type, node.domain, node.inputs, node.outputs)).encode())
            digest.update(node.attributes + node.overload.encode())
        headers = sorted((tensor.name, tensor.dtype, tensor.shape) for tensor in self.initializers.values())
        digest.update(repr((headers, self.inputs, self.outputs)).encode())
        return digest.hexdigest()

    def successors(self, node: Node) -> Iterator[Node]:
        """Nodes that read what this one makes; for a value that a body returns, the node that owns the body."""
        for output in node.outputs:
            yield from self.consumers.get(output, ())
        owner = self.body_owner.get(node.graph)
        if owner is not None and owner in self.by_key and set(node.outputs) & set(self.body_outputs[node.graph]):
            yield self.by_key[owner]

    def predecessors(self, node: Node) -> Iterator[Node]:
        return (self.producers[value] for value in node.inputs if value in self.producers)


def index_model(model: onnx.ModelProto) -> Graph:
    builder = _Builder()
    builder.add_graph(model.graph, MAIN, {})
    for function in model.functions:
        builder.add_function(function)
    return Graph(
        nodes=tuple(builder.nodes),
        inputs=tuple(value.name for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        initializers=MappingProxyType(builder.initializers),
        body_owner=MappingProxyType(builder.body_owner),
        body_outputs=MappingProxyType(builder.body_outputs),
        body_inputs=MappingProxyType(builder.body_inputs),
    )


class _Builder:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.initializers: dict[str, Tensor] = {}
        self.body_owner: dict[str, str] = {}
        self.body_outputs: dict[str, tuple[str, ...]] = {}
        self.body_inputs: dict[str, tuple[str, ...]] = {}

    def add_graph(self, graph: onnx.GraphProto, graph_id: str, outer: Mapping[str, str]) -> None:
        """`outer` maps names visible from enclosing graphs to value ids."""
        # In the main graph, ids are names.
        names = outer if graph_id == MAIN else {**outer, **_ids_of_own(graph, graph_id)}
        # What has no name cannot be read by a node.
        for tensor in graph.initializer:
            if name := tensor.name:
                value = names.get(name, name)
                content = protos.tensor_content(tensor)
                self.initializers[value] = Tensor(value, tensor.data_type, tuple(tensor.dims), content)
        for sparse in (sparse for sparse in graph.sparse_initializer if sparse.values.name):
            name = names.get(sparse.values.name, sparse.values.name)
            self.initializers[name] = Tensor(name, sparse.values.data_type, tuple(sparse.dims), None)
        self.body_outputs[graph_id] = _with_ids((value.name for value in graph.output), names)
        self.body_inputs[graph_id] = _with_ids((value.name for value in graph.input if value.name), names)
        for node in protos.in_order(graph.node):
            self.add_node(node, graph_id, names)

    def add_function(self, function: onnx.FunctionProto) -> None:
        graph_id = function_id(function)
        own = [*function.input, *(output for node in function.node for output in node.output)]
        names = {name: value_id(graph_id, name) for name in own if name}
        self.body_outputs[graph_id] = tuple(names.get(name, name) for name in function.output)
        self.body_inputs[graph_id] = tuple(names[name] for name in function.input if name)
        for node in protos.in_order(function.node):
            self.add_node(node, graph_id, names)

    def add_node(self, proto: onnx.NodeProto, graph_id: str, names: Mapping[str, str]) -> None:
        key = node_key(proto, graph_id)
        self.nodes.append(
            Node(
                key,
                proto.name,
                proto.op_type,
                proto.domain,
                graph_id,
                len(self.nodes),
                _with_ids(proto.input, names),
                _with_ids(proto.output, names),
                protos.attributes_of(proto),
                protos.constant_content(proto),
                {prop.key: prop.value for prop in proto.metadata_props},
                proto.overload,
            )
        )
        for body_id, body in subgraphs_with_ids(proto, key):
            self.body_owner[body_id] = key
            self.add_graph(body, body_id, names)


def _ids_of_own(graph: onnx.GraphProto, graph_id: str) -> dict[str, str]:
    """By name: the ids of the values that a subgraph declares itself."""
    own = [value.name for value in graph.input]
    own += [tensor.name for tensor in graph.initializer]
    # ONNX has no name for a sparse tensor: it goes by that of its values.
    own += [tensor.values.name for tensor in graph.sparse_initializer]
    own += [output for node in graph.node for output in node.output]
    return {name: value_id(graph_id, name) for name in own if name}


def _with_ids(values: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple([names.get(name, name) for name in values]) if names else tuple(values)


def node_key(proto: onnx.NodeProto, graph_id: str) -> str:
    # A node without outputs is not valid, but files have them: then its name has to do.
    outputs = proto.output
    return value_id(graph_id, (outputs[0] if outputs else "") or next(filter(None, outputs), proto.name))


def function_id(function: onnx.FunctionProto) -> str:
    return _function_id(function.domain, function.name, function.overload)


def called_id(node: onnx.NodeProto) -> str:
    return _function_id(node.domain, node.op_type, node.overload)


def _function_id(domain: str, name: str, overload: str) -> str:
    return f"{domain}::{name}:{overload}" if overload else f"{domain}::{name}"


def walk_nodes(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    """Every node of every graph with its key, in the order of the index."""
    yield from walk_graph_nodes(model.graph.node, MAIN)
    for function in model.functions:
        yield from walk_graph_nodes(function.node, function_id(function))


def walk_graph_nodes(nodes: Sequence[onnx.NodeProto], graph_id: str) -> Iterator[tuple[str, onnx.NodeProto]]:
    for proto in protos.in_order(nodes):
        key = node_key(proto, graph_id)
        yield key, proto
        for body_id, body in subgraphs_with_ids(proto, key):
            yield from walk_graph_nodes(body.node, body_id)


def subgraphs_with_ids(proto: onnx.NodeProto, key: str) -> Iterator[tuple[str, onnx.GraphProto]]:
    for attribute in proto.attribute or ():
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield f"{key}{KEY_SEPARATOR}{attribute.name}", attribute.g
        for position, body in enumerate(attribute.graphs):
            yield f"{key}{KEY_SEPARATOR}{attribute.name}[{position}]", body


def value_id(graph_id: str, name: str) -> str:
    """How a value is called here: by its name, in bodies and functions behind the id of the graph."""
    return f"{graph_id}{KEY_SEPARATOR}{name}" if graph_id else name


def edges_of(graph: Graph) -> Edges:
    callers = graph.callers
    consumers = _consumers(graph, callers)
    producers = {value: (node.key,) for value, node in graph.producers.items()}
    given = {
        value: callers[holder]
        for value in consumers
        if value not in producers and value not in graph.initializers
        for holder in _holders(value, callers)
    }
    return Edges(
        producers=MappingProxyType(producers | given),
        consumers=MappingProxyType(consumers),
        inputs=graph.inputs,
        outputs=graph.outputs,
        initializers=MappingProxyType({name: math.prod(tensor.shape) for name, tensor in graph.initializers.items()}),
        domains=MappingProxyType(
            {node.key: node.domain for node in graph.nodes if node.domain not in protos.ONNX_DOMAINS}
        ),
    )


def _consumers(graph: Graph, callers: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """What the nodes themselves read, and what comes back to them from a body or a function."""
    readers = {value: tuple([node.key for node in nodes]) for value, nodes in graph.consumers.items()}
    returned = ((value, keys) for graph_id, keys in callers.items() for value in graph.body_outputs[graph_id] if value)
    for value, callers_of in group_by_key(returned).items():
        keys = {*readers.get(value, ()), *(key for group in callers_of for key in group)}
        readers[value] = tuple(sorted(keys, key=lambda key: graph.by_key[key].position))
    return readers


def _holders(value: str, callers: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The body or function that a value belongs to; none for a value of the main graph."""
    graph_id = value
    while KEY_SEPARATOR in graph_id:
        graph_id = graph_id.rpartition(KEY_SEPARATOR)[0]
        if graph_id in callers:
            yield graph_id
            return
