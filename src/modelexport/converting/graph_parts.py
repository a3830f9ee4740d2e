"""The graphs of a model, and the types and shapes of their values as far as the file says them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx

from modelexport.converting.drawing import Port
from modelexport.graph.index import MAIN, bodies, function_id, node_key, value_id
from modelexport.graph.value_types import type_name


@dataclass(frozen=True, slots=True)
class GraphPart:
    """One graph of a model. `owner` is the key of the node that holds it; empty for the main graph and functions."""

    id: str
    name: str
    owner: str
    proto: onnx.GraphProto | onnx.FunctionProto


def graphs_of(model: onnx.ModelProto) -> Iterator[GraphPart]:
    """The main graph, the bodies in it however deep, and functions with theirs."""
    waiting = [GraphPart(function_id(one), one.name, "", one) for one in reversed(model.functions)]
    waiting.append(GraphPart(MAIN, model.graph.name, "", model.graph))
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [
            GraphPart(body_id, body.name, key, body)
            for node in reversed(part.proto.node)
            if node.attribute
            for key in [node_key(node, part.id)]
            for body_id, body in reversed(list(bodies(node, key)))
        ]


def typed_ports(parts: Iterable[GraphPart]) -> dict[str, Port]:
    """By value id."""
    return {port.value: port for part in parts for port in _ports(part)}


def _ports(part: GraphPart) -> Iterator[Port]:
    yield from _declared(part.proto.value_info, part.id)
    if isinstance(part.proto, onnx.FunctionProto):
        return
    yield from _declared((*part.proto.input, *part.proto.output), part.id)
    for tensor in part.proto.initializer:
        yield _stored(tensor.name, tensor.data_type, tensor.dims, part.id)
    for sparse in part.proto.sparse_initializer:
        yield _stored(sparse.values.name, sparse.values.data_type, sparse.dims, part.id)


def _declared(infos: Iterable[onnx.ValueInfoProto], graph_id: str) -> Iterator[Port]:
    for info in infos:
        yield Port(value_id(graph_id, info.name), *_type(info.type))


def _stored(name: str, dtype: int, dims: Sequence[int], graph_id: str) -> Port:
    return Port(value_id(graph_id, name), type_name(dtype), f"[{', '.join(map(str, dims))}]")


def _type(proto: onnx.TypeProto) -> tuple[str, str]:
    match proto.WhichOneof("value"):
        case "tensor_type":
            return type_name(proto.tensor_type.elem_type), _shape(proto.tensor_type)
        case "sparse_tensor_type":
            return f"sparse {type_name(proto.sparse_tensor_type.elem_type)}", _shape(proto.sparse_tensor_type)
        case "sequence_type":
            return f"sequence of {_joined(proto.sequence_type.elem_type)}", ""
        case "optional_type":
            return f"optional {_joined(proto.optional_type.elem_type)}", ""
        case "map_type":
            key = type_name(proto.map_type.key_type)
            return f"map from {key} to {_joined(proto.map_type.value_type)}", ""
    return "", ""


def _joined(proto: onnx.TypeProto) -> str:
    return "".join(_type(proto))


def _shape(tensor: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor) -> str:
    """Empty if not even the number of axes is known."""
    if not tensor.HasField("shape"):
        return ""
    return f"[{', '.join(map(_dim, tensor.shape.dim))}]"


def _dim(dim: onnx.TensorShapeProto.Dimension) -> str:
    return str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
