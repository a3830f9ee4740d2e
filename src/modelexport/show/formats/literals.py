r"""Types, shapes and attributes as text, as far as the file says them.

Attributes are Python literals, so that the text says of which type the value is: `1` is an INT and `1.0` a FLOAT, `'1'`
a STRING, `[1, 2]` INTS (https://onnx.ai/onnx/repo-docs/IR.html#attributes). Strings never contain a double quote, which
Model Explorer drops: it is written `\x22`. What is no literal says what it is: `float[2, 3] sha256:…` for a tensor,
`@alpha` for the attribute of the function around it.

    attribute                     text
    mode = b"nearest"             'nearest'
    value = tensor of 3 elements  int64[3] [1, 2, 3]
    value = tensor of 1 MB        float[512, 512] sha256:9f86d0…

Equal attributes have equal texts, and other attributes other ones, so that two conversions can be compared as text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.numpy_helper

from modelexport.graph.file.external import is_external
from modelexport.graph.index import MAIN, function_id, node_key, subgraphs_with_ids, value_id
from modelexport.graph.types import type_name
from modelexport.show.formats.drawing import Fact, Port


@dataclass(frozen=True, slots=True)
class GraphPart:
    """One graph of a model. `owner` is the key of the node that holds it; empty for the main graph and functions."""

    id: str
    name: str
    owner: str
    proto: onnx.GraphProto | onnx.FunctionProto


def graphs_of(model: onnx.ModelProto) -> Iterator[GraphPart]:
    """The main graph, the bodies in it however deep, and functions with theirs."""
    waiting = [GraphPart(function_id(function), function.name, "", function) for function in reversed(model.functions)]
    waiting.append(GraphPart(MAIN, model.graph.name, "", model.graph))
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [
            GraphPart(body_id, body.name, key, body)
            for node in reversed(part.proto.node)
            if node.attribute
            for key in [node_key(node, part.id)]
            for body_id, body in reversed(list(subgraphs_with_ids(node, key)))
        ]


def typed_ports(parts: Iterable[GraphPart]) -> dict[str, Port]:
    return {port.value: port for part in parts for port in _ports(part)}


def _ports(part: GraphPart) -> Iterator[Port]:
    """Bodies and functions may use a name that the graph around them uses too: the id has the graph in it."""
    proto = part.proto
    infos, stored = list(proto.value_info), []
    # Inputs and outputs of a function are names without a type: it is called with whatever fits.
    if isinstance(proto, onnx.GraphProto):
        infos += (*proto.input, *proto.output)
        stored = [(tensor, tensor.dims) for tensor in proto.initializer]
        # The values of a sparse tensor are those that are not zero; its shape is beside them.
        stored += [(sparse.values, sparse.dims) for sparse in proto.sparse_initializer]
    for info in infos:
        yield Port(value_id(part.id, info.name), *_type(info.type))
    for tensor, dims in stored:
        yield Port(value_id(part.id, tensor.name), type_name(tensor.data_type), f"[{', '.join(map(str, dims))}]")


def _type(proto: onnx.TypeProto) -> tuple[str, str]:
    """As ONNX types nest: `sequence of float[2, 3]`, `optional int64`, `map from string to …`."""
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
    dims = (str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim)
    return f"[{', '.join(dims)}]"


# Tensors with more elements are told apart by a digest.
SHOWN_ELEMENTS = 16
_PLAIN = str.maketrans({"\\": "\\\\", "'": "\\'", '"': "\\x22"})
_KINDS = onnx.AttributeProto  # has the kinds of attributes as constants


def attribute_fact(item: onnx.AttributeProto) -> Fact:
    if item.ref_attr_name:
        return f"@{item.ref_attr_name} ({_KINDS.AttributeType.Name(item.type)})"
    if item.type == _KINDS.INT:
        return item.i
    if item.type == _KINDS.FLOAT:
        return float(item.f)
    return _text(item)


def _text(item: onnx.AttributeProto) -> str:
    """What no literal can say (graphs, sparse tensors, types) is told apart by a digest of its bytes."""
    match item.type:
        case _KINDS.STRING:
            return string_literal(item.s)
        case _KINDS.TENSOR:
            return tensor_text(item.t)
        case _KINDS.INTS:
            texts = list(map(str, item.ints))
        case _KINDS.FLOATS:
            texts = list(map(float_literal, item.floats))
        case _KINDS.STRINGS:
            texts = list(map(string_literal, item.strings))
        case _KINDS.TENSORS:
            texts = list(map(tensor_text, item.tensors))
        case _:
            serialized = item.SerializeToString(deterministic=True)
            return f"{_KINDS.AttributeType.Name(item.type)} sha256:{_digest(serialized)}"
    # An empty list does not show what it is a list of.
    return f"[{', '.join(texts)}]" if texts else f"{_KINDS.AttributeType.Name(item.type).lower()} []"


def fact_text(fact: Fact) -> str:
    return float_literal(fact) if isinstance(fact, float) else str(fact)


def float_literal(number: float) -> str:
    """`inf` and `nan` are no literals of Python, but every reader knows what they mean."""
    return repr(float(number)) if math.isfinite(number) else str(float(number))


def string_literal(data: bytes) -> str:
    """In single quotes; with a `b` before them if it is not UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "b'" + "".join(map(_byte, data)) + "'"
    visible = (
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text.translate(_PLAIN)
    )
    return f"'{''.join(visible)}'"


def strings_literal(texts: Iterable[str]) -> str:
    return f"[{', '.join(string_literal(text.encode('utf-8', 'surrogatepass')) for text in texts)}]"


def _byte(byte: int) -> str:
    plain = 0x20 <= byte < 0x7F and chr(byte) not in "\\'\""
    return chr(byte) if plain else f"\\x{byte:02x}"


def tensor_text(tensor: onnx.TensorProto) -> str:
    """Type and shape, and the elements if there are few of them; of many, a digest of their bytes."""
    head = f"{type_name(tensor.data_type)}[{', '.join(map(str, tensor.dims))}]"
    if is_external(tensor):
        location = {entry.key: entry.value for entry in tensor.external_data}
        return f"{head} in {string_literal(location.get('location', '').encode())} at {location.get('offset', '0')}"
    if tensor.data_type == onnx.TensorProto.STRING:
        texts = list(map(string_literal, tensor.string_data))
        if len(texts) <= SHOWN_ELEMENTS:
            return f"{head} [{', '.join(texts)}]"
        # With their lengths: ["ab", "c"] and ["a", "bc"] are not the same.
        parts = (len(text).to_bytes(8, "little") + text for text in tensor.string_data)
        return f"{head} sha256:{_digest(b''.join(parts))}"
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError):  # damaged: fewer bytes than its shape says, or no known type
        return f"{head} sha256:{_digest(tensor.SerializeToString(deterministic=True))}"
    return f"{head} {_elements(array)}" if array.size <= SHOWN_ELEMENTS else f"{head} sha256:{_digest(array.tobytes())}"


def _elements(array: np.ndarray) -> str:
    """numpy has no bfloat16 and no types of 8 and 4 bits of its own: those of ml_dtypes are widened first."""
    if array.dtype.kind not in "biufc":  # those that numpy does not have by itself
        array = array.astype(np.int64 if "int" in array.dtype.name else np.float64)
    return repr(array.ravel().tolist())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
