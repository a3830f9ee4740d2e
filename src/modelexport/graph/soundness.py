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
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference

from modelexport.errors import FileUnreadable, some_of
from modelexport.graph.file import external
from modelexport.graph.file.reading import ModelFile, initializer_arrays
from modelexport.graph.file.weights import storage_size
from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node


def ensure_sound(proto: onnx.ModelProto, graph: Graph, subject: str) -> None:
    """Raise FileUnreadable for a graph that nothing certain can be said about. `subject` is what it is called."""
    problem = next(_problems(proto, graph), None)
    if problem is not None:
        raise FileUnreadable(
            f"{subject} is not a valid ONNX graph: {problem}", "Make the file again with the tool that wrote it."
        )


def _problems(proto: onnx.ModelProto, graph: Graph) -> Iterator[str]:
    stored = Counter(tensor.name for tensor in proto.graph.initializer)
    yield from (f"there are {count} initializers named {name!r}" for name, count in stored.items() if count > 1)
    given = {*graph.initializers, *(value for values in graph.body_inputs.values() for value in values)}
    made = Counter(output for node in graph.nodes for output in node.outputs if output)
    yield from (f"{count} nodes make the value {_quote_value(value)}" for value, count in made.items() if count > 1)
    yield from (f"a node makes the value {_quote_value(value)}, which is given" for value in made if value in given)
    known = {*given, *made, *(tensor.values.name for tensor in proto.graph.sparse_initializer)}
    for node in graph.nodes:
        strange = [value for value in node.inputs if value and value not in known]
        if strange:
            who = f"the {node.op_type} that makes {_quote_value(node.key)}"
            yield f"{who} reads {_quote_value(strange[0])}, which nobody makes"
    yield from (f"it returns {value!r}, which nobody makes" for value in graph.body_outputs[MAIN] if value not in known)
    if graph.nodes and not graph.body_outputs[MAIN]:
        yield "it returns nothing"
    cycle = find_cycle(graph)
    if cycle:
        yield f"nodes read each other in a circle: {some_of(list(map(_quote_value, cycle)))}"


def find_cycle(graph: Graph) -> tuple[str, ...]:
    """The keys of some nodes that read each other in a cycle; none if there are none.

    An index is in an order in which nodes can run, so that only those of a cycle come before what they read.
    """
    for node in graph.nodes:
        late = any(
            graph.producers[value].position >= node.position for value in node.inputs if value in graph.producers
        )
        way = _way_back(graph, node) if late else ()
        if way:
            return tuple(sorted({_outermost(graph, key) for key in way}))
    return ()


def _way_back(graph: Graph, start: Node) -> tuple[str, ...]:
    """The nodes from one to itself, each of which reads from the next; nothing if there is no such way."""
    inside: dict[str, list[Node]] = {}
    for node in graph.nodes:
        inside.setdefault(graph.body_owner.get(node.graph, ""), []).append(node)
    came_from: dict[str, str] = {}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for above in (*graph.predecessors(here), *inside.get(here.key, ())):
            if above.key == start.key:
                return _steps(came_from, here.key, start.key)
            if above.key not in came_from:
                came_from[above.key] = here.key
                waiting.append(above)
    return ()


def _steps(came_from: Mapping[str, str], end: str, start: str) -> tuple[str, ...]:
    steps = [end]
    while steps[-1] != start:
        steps.append(came_from[steps[-1]])
    return tuple(reversed(steps))


def _outermost(graph: Graph, key: str) -> str:
    return [key, *(owner.key for owner in graph.enclosing_nodes(graph.by_key[key]))][-1]


def _quote_value(value: str) -> str:
    """A value by the name that it has in the file, and where that is."""
    graph_id, _, name = value.rpartition(KEY_SEPARATOR)
    return f"{name!r} in {graph_id!r}" if graph_id else repr(name)


def check_graph(model: ModelFile) -> str | None:
    """What the full check has against a model, in the checker's words; None if nothing."""
    try:
        onnx.checker.check_model(checkable(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error).strip()
    return _wrong_size(model)


def checkable(model: ModelFile) -> onnx.ModelProto:
    """A model that the checker accepts if it would accept this one with all of its data."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    _turn_into_inputs(proto.graph, [tensor for tensor in proto.graph.initializer if _is_elsewhere(model, tensor)])
    for tensor in filter(external.is_external, external.tensors(proto)):
        _fill_with_zeros(tensor)  # in a body or an attribute, where there is no input to turn it into
    return proto


def _is_elsewhere(model: ModelFile, tensor: onnx.TensorProto) -> bool:
    return external.is_external(tensor) or model.is_detached(tensor)


def _turn_into_inputs(graph: onnx.GraphProto, tensors: list[onnx.TensorProto]) -> None:
    gone = {tensor.name for tensor in tensors}
    kept = [tensor for tensor in graph.initializer if tensor.name not in gone]
    known = {value.name for value in graph.input}
    graph.input.extend(_typed_value(tensor) for tensor in tensors if tensor.name not in known)
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _typed_value(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def _fill_with_zeros(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = bytes(storage_size(tensor))


def _wrong_size(model: ModelFile) -> str | None:
    """The checker's complaint about too little data, which it could not make without the data."""
    for tensor in model.proto.graph.initializer:
        needed, data = storage_size(tensor), model.weights.get(tensor.name)
        if data is not None and _is_elsewhere(model, tensor) and data.nbytes < needed:
            return f"initializer {tensor.name!r} has {data.nbytes} bytes of data; shape and type take {needed}"
    return None


def are_same(file: ModelFile, other: ModelFile) -> bool:
    """The same graph, versions, shapes and weights. Weights are read only where everything else is equal."""
    if file.graph.fingerprint != other.graph.fingerprint or _headers(file.proto) != _headers(other.proto):
        return False
    small = [tensor.content for tensor in file.graph.initializers.values()]
    return small == [other.graph.initializers[name].content for name in file.graph.initializers] and _same_data(
        file, other
    )


def _headers(proto: onnx.ModelProto) -> tuple[frozenset[bytes], ...]:
    """What the fingerprint of a graph leaves out: versions, and the types and shapes of values."""
    graph = proto.graph
    values = (_serialize(messages) for messages in (graph.value_info, graph.input, graph.output))
    return (_serialize(proto.opset_import), *values)


def _serialize(messages: Iterable[onnx.ValueInfoProto | onnx.OperatorSetIdProto]) -> frozenset[bytes]:
    return frozenset(message.SerializeToString(deterministic=True) for message in messages)


def _same_data(file: ModelFile, other: ModelFile) -> bool:
    arrays = dict(initializer_arrays(other))
    return all(np.array_equal(_bits(array), _bits(arrays[name])) for name, array in initializer_arrays(file))


def _bits(array: np.ndarray) -> np.ndarray:
    """What is compared bit by bit is equal to itself, NaN as well."""
    return np.frombuffer(np.ascontiguousarray(array).data, np.uint8) if array.size else np.empty(0, np.uint8)
