"""Soundness: is it a graph at all, would ONNX's checker accept it, and do two files say the same.

- `ensure_sound`: every value made once, before it is read, no cycle. Whoever asks where nodes come from needs no more;
  ONNX's own checker also wants weights, types and operators.
- `check_graph`: ONNX's checker (https://onnx.ai/onnx/api/checker.html) on a model without its weights. It wants every
  initializer's data, to look at no more than its size. So initializers whose data is elsewhere become inputs of the
  same type and shape, which is all that the rest of the check and shape inference use.
- `are_same`: two files say the same but for names of nodes, metadata, and how they lie on the disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from copy import deepcopy

import numpy as np
import onnx

from modelexport.errors import FileUnreadable, some_of
from modelexport.graph.algorithms import group_by_key
from modelexport.graph.file import external
from modelexport.graph.file.declared import has_recipe
from modelexport.graph.file.reading import ModelFile, has_numbers, initializer_arrays, is_data_outside
from modelexport.graph.file.weights import storage_size
from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node, walk_nodes
from modelexport.graph.inference import check_model
from modelexport.graph.protos import MS, ONNX_DOMAINS

# Operators that ONNX Runtime has in ONNX's domain and ONNX does not; older ones the checker lets pass as experimental.
# https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/core/graph/contrib_ops/contrib_defs.cc
_RUNTIMES_IN_ONNX = frozenset({"SimplifiedLayerNormalization"})


def ensure_sound(proto: onnx.ModelProto, graph: Graph, subject: str) -> None:
    """Raise FileUnreadable for a graph that nothing certain can be said about. `subject` is what it is called."""
    for problem in _problems(proto, graph):
        raise FileUnreadable(
            f"{subject} is not a valid ONNX graph: {problem}", "Make the file again with the tool that wrote it."
        )


def _problems(proto: onnx.ModelProto, graph: Graph) -> Iterator[str]:
    stored = Counter(tensor.name for tensor in proto.graph.initializer)
    yield from (f"there are {count} initializers named {name!r}" for name, count in stored.items() if count > 1)
    if "" in stored:
        yield "an initializer has no name"
    given = {*graph.initializers, *(value for values in graph.body_inputs.values() for value in values)}
    made = Counter(output for node in graph.nodes for output in node.outputs if output)
    yield from (f"{count} nodes make the value {_quote_value(value)}" for value, count in made.items() if count > 1)
    yield from (f"a node makes the value {_quote_value(value)}, which is given" for value in made if value in given)
    known = {*given, *made}
    for node in graph.nodes:
        strange = [value for value in node.inputs if value and value not in known]
        if strange:
            who = f"the {node.op_type} that makes {_quote_value(node.key)}"
            yield f"{who} reads {_quote_value(strange[0])}, which nobody makes"
    yield from (f"it returns {value!r}, which nobody makes" for value in graph.body_outputs[MAIN] if value not in known)
    if graph.nodes and not graph.body_outputs[MAIN]:
        yield "it returns nothing"
    if cycle := find_cycle(graph):
        yield f"nodes read each other in a circle: {some_of(list(map(_quote_value, cycle)))}"


def find_cycle(graph: Graph) -> tuple[str, ...]:
    """The keys of some nodes that read each other in a cycle; none if there are none.

    An index is in an order in which nodes can run, so that only those of a cycle come before what they read.
    """
    for node in graph.nodes:
        late = any(maker.position >= node.position for maker in _find_makers(graph, node))
        way = _way_back(graph, node) if late else ()
        if way:
            # Of a node inside a body, the one in the main graph that holds it: that is what people see in a viewer.
            around = ([graph.by_key[key], *graph.enclosing_nodes(graph.by_key[key])] for key in way)
            return tuple(sorted({owners[-1].key for owners in around}))
    return ()


def _find_makers(graph: Graph, node: Node) -> Iterator[Node]:
    """Of what a node reads, and of what its bodies return as it was made outside of them."""
    yield from graph.predecessors(node)
    for body in graph.subgraphs.get(node.key, ()):
        makers = (graph.producers[value] for value in graph.body_outputs[body] if value in graph.producers)
        yield from (maker for maker in makers if maker.graph != body)


def _way_back(graph: Graph, start: Node) -> tuple[str, ...]:
    """The nodes from one to itself, each of which reads from the next; nothing if there is no such way."""
    inside = group_by_key((graph.body_owner.get(node.graph, ""), node) for node in graph.nodes)
    came_from: dict[str, str] = {}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for above in (*_find_makers(graph, here), *inside.get(here.key, ())):
            if above.key == start.key:
                steps = [here.key]
                while steps[-1] != start.key:
                    steps.append(came_from[steps[-1]])
                return tuple(reversed(steps))
            if above.key not in came_from:
                came_from[above.key] = here.key
                waiting.append(above)
    return ()


def _quote_value(value: str) -> str:
    graph_id, _, name = value.rpartition(KEY_SEPARATOR)
    return f"{name!r} in {graph_id!r}" if graph_id else repr(name)


def check_graph(model: ModelFile, *, stated_shapes: bool = True) -> str | None:
    """What the full check has against a model, in the checker's words; None if nothing.

    stated_shapes  whether shapes of values between nodes are to be right where the file states them
    """
    proto = checkable(model)
    if not stated_shapes:
        for value in proto.graph.value_info:
            value.type.tensor_type.ClearField("shape")
    said = check_model(proto)
    return None if said is None else _say_in_one_line(said)


def _say_in_one_line(text: str) -> str:
    """`No Op registered for F (Bad node spec for node. Name: f OpType: F)`: the checker writes paragraphs."""
    said, *contexts = (" ".join(part.split()) for part in text.split("==> Context:"))
    return said + "".join(f" ({context})" for context in contexts)


def _give_to_runtime(proto: onnx.ModelProto) -> None:
    """Move operators that are ONNX Runtime's own, and that it has in ONNX's domain, to its domain.

    onnxruntime-genai's builder writes such files, and ONNX Runtime runs them. The checker leaves other domains alone.
    """
    nodes = (node for _, node in walk_nodes(proto))
    moved = [node for node in nodes if node.domain in ONNX_DOMAINS and node.op_type in _RUNTIMES_IN_ONNX]
    for node in moved:
        node.domain = MS
    if moved and MS not in {item.domain for item in proto.opset_import}:
        proto.opset_import.append(onnx.helper.make_opsetid(MS, 1))


def checkable(model: ModelFile) -> onnx.ModelProto:
    """A model that the checker accepts if it would accept this one with all of its data."""
    proto = deepcopy(model.proto)
    graph = proto.graph
    elsewhere = [tensor for tensor in graph.initializer if is_data_outside(model, tensor) or has_recipe(tensor)]
    names = {tensor.name for tensor in elsewhere}
    kept = [tensor for tensor in graph.initializer if tensor.name not in names]
    # Before version 4 of the format every initializer had to be an input as well.
    known = {value.name for value in graph.input}
    unknown = [tensor for tensor in elsewhere if tensor.name not in known]
    make = onnx.helper.make_tensor_value_info
    graph.input.extend(make(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in unknown)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    _give_to_runtime(proto)
    # In a body or an attribute there is no input to turn a tensor into: zeros have the same size.
    for tensor in filter(external.is_external, external.tensors(proto)):
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        tensor.raw_data = bytes(storage_size(tensor))
    return proto


def are_same(file: ModelFile, other: ModelFile) -> bool:
    """The same graph, versions, shapes and weights. Weights are read only where everything else is equal."""
    if file.graph.fingerprint != other.graph.fingerprint or _headers(file.proto) != _headers(other.proto):
        return False
    contents = ({name: tensor.content for name, tensor in each.graph.initializers.items()} for each in (file, other))
    if next(contents) != next(contents):
        return False
    arrays = dict(initializer_arrays(other))
    own = {tensor.name for tensor in file.proto.graph.initializer if has_numbers(file, tensor)}
    return own == arrays.keys() and all(
        np.array_equal(_bits(array), _bits(arrays[name])) for name, array in initializer_arrays(file)
    )


def _headers(proto: onnx.ModelProto) -> tuple[frozenset[bytes], ...]:
    """What the fingerprint of a graph leaves out: versions, and the types and shapes of values."""
    graph = proto.graph
    values = (_serialize(messages) for messages in (graph.value_info, graph.input, graph.output))
    return (_serialize(proto.opset_import), *values)


def _serialize(messages: Iterable[onnx.ValueInfoProto | onnx.OperatorSetIdProto]) -> frozenset[bytes]:
    return frozenset(message.SerializeToString(deterministic=True) for message in messages)


def _bits(array: np.ndarray) -> np.ndarray:
    """What is compared bit by bit is equal to itself, NaN as well."""
    return np.frombuffer(np.ascontiguousarray(array).data, np.uint8) if array.size else np.empty(0, np.uint8)
