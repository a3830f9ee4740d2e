"""Protobuf messages of a graph: canonical contents, order of nodes, and the subgraphs that control flow nodes hold.

- Canonical contents: `tensor_content`, `attributes_of`. Bytes that are equal where what they say is equal, however a
  file stores it: a float 1.0 as raw data or as a field, attributes in any order.
- Topological order: `in_order`. ONNX demands that nodes come after what they read
  (https://github.com/onnx/onnx/blob/main/docs/IR.md); ONNX Runtime does not mind any order, and some tools append the
  nodes that they add.
- Subgraphs of If, Loop and Scan: what they read from outside (`captured`), how to rename what is in them
  (`rename_captured`), and how to make two of them comparable (`plain_bodies`):

      y = If(c) { then: t = Add(x, k) }     captured: x, k      plain: >0 = Add(<0, <1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
import onnx.numpy_helper

# The domain of ONNX's own operators has two names.
ONNX_DOMAINS = frozenset(("", "ai.onnx"))
# ONNX Runtime's own: its operators, and ONNX's in other layouts of memory.
MS, NCHWC, NHWC = "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"
_KNOWN_DOMAINS = ONNX_DOMAINS | {MS, NCHWC, NHWC}


def plain_domain(domain: str) -> str:
    return "" if domain in ONNX_DOMAINS else domain


def operator_name(op_type: str, domain: str) -> str:
    """`Add` where operators are what their names say; in other domains that can be anything: `my.domain::Add`."""
    return op_type if domain in _KNOWN_DOMAINS else f"{domain}::{op_type}"


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def with_inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """A node and all that are in its bodies, however deep."""
    yield node
    for body in subgraphs(node):
        for inner in body.node:
            yield from with_inner(inner)


def captured(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names that the bodies of a node read from outside of it, in the order in which they first occur."""
    return tuple(dict.fromkeys(name for body in subgraphs(node) for name in _free_names(body, frozenset())))


def _free_names(graph: onnx.GraphProto, known: frozenset[str]) -> Iterator[str]:
    """Free variables: names that are read and not declared in this graph, nor in those around it inside of the node."""
    inside = known | frozenset(declared(graph))
    for node in graph.node:
        yield from (name for name in node.input if name and name not in inside)
        for body in subgraphs(node):
            yield from _free_names(body, inside)
    yield from (value.name for value in graph.output if value.name not in inside)


def declared(graph: onnx.GraphProto) -> Iterator[str]:
    """Names that a graph gives to values of its own."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def stated_attributes(node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
    """By name. For all others the operator's default holds."""
    return {attribute.name: attribute for attribute in node.attribute}


def find_attribute(node: onnx.NodeProto, *names: str) -> onnx.AttributeProto | None:
    """The attribute of the first of these names that the node states; None where the operator's default holds."""
    stated = stated_attributes(node)
    return next((stated[name] for name in names if name in stated), None)


def integer_attribute(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    attribute = find_attribute(node, name)
    return default if attribute is None else attribute.i


def tensor_content(proto: onnx.TensorProto) -> bytes | None:
    """Type, shape and data in one string, so that equal constants compare equal however they are stored."""
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return None
    raw, shape = proto.raw_data, tuple(proto.dims)
    # As numpy would give it back, without making an array of every constant.
    if raw and len(raw) == math.prod(shape) * _BYTES.get(proto.data_type, 0):
        return described(proto.data_type, shape, raw)
    if not _has_data(proto):
        return None
    is_text = proto.data_type == onnx.TensorProto.STRING
    data = b"\0".join(proto.string_data) if is_text else onnx.numpy_helper.to_array(proto).tobytes()
    return described(proto.data_type, shape, data)


_TYPES = onnx.TensorProto
# Of one element, for types that numpy stores as files do.
_BYTES: dict[int, int] = {
    **dict.fromkeys((_TYPES.BOOL, _TYPES.INT8, _TYPES.UINT8), 1),
    **dict.fromkeys((_TYPES.FLOAT16, _TYPES.INT16, _TYPES.UINT16), 2),
    **dict.fromkeys((_TYPES.FLOAT, _TYPES.INT32, _TYPES.UINT32), 4),
    **dict.fromkeys((_TYPES.DOUBLE, _TYPES.INT64, _TYPES.UINT64), 8),
}


def described(dtype: int, shape: tuple[int, ...], data: bytes) -> bytes:
    """Data with its type and shape before it."""
    return repr((dtype, shape)).encode() + data


def type_of(content: bytes | None) -> tuple[int, tuple[int, ...]]:
    if content is None:
        return onnx.TensorProto.UNDEFINED, ()
    dtype, shape = content[1 : _data_start(content) - 1].decode().split(", ", 1)
    sides = shape.strip("() ").split(",")
    return int(dtype), tuple(int(side) for side in sides if side.strip())


def data_of(content: bytes) -> bytes:
    return content[_data_start(content) :]


def _data_start(content: bytes) -> int:
    # Type and shape end with the first double bracket: neither has one inside.
    return content.index(b"))") + 2


def _has_data(proto: onnx.TensorProto) -> bool:
    fields = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
    return any(getattr(proto, name) for name in fields) or 0 in proto.dims


def constant_content(proto: onnx.NodeProto) -> bytes | None:
    """The content of a Constant node that holds numbers, in whichever of its attributes they are."""
    if proto.op_type != "Constant" or proto.domain not in ONNX_DOMAINS:
        return None
    item = find_attribute(proto, "value", *_NUMBERS)
    if item is None or item.ref_attr_name:  # in a function, whose callers give it
        return None
    if item.name == "value":
        return tensor_content(item.t)
    dtype, array = _NUMBERS[item.name]
    numbers = np.asarray(onnx.helper.get_attribute_value(item), dtype=array)
    return described(dtype, numbers.shape, numbers.tobytes())


_NUMBERS = {
    "value_int": (onnx.TensorProto.INT64, np.int64),
    "value_ints": (onnx.TensorProto.INT64, np.int64),
    "value_float": (onnx.TensorProto.FLOAT, np.float32),
    "value_floats": (onnx.TensorProto.FLOAT, np.float32),
}


def attributes_of(proto: onnx.NodeProto) -> bytes:
    """What the attributes say, in one canonical string; bodies are nodes of their own and left out."""
    attributes = proto.attribute
    if not attributes:  # most nodes have none, and asking each costs more than all the others take
        return b""
    # Sorted, because the order of attributes is the exporter's whim and says nothing.
    return b"".join(sorted(_attribute(item) for item in attributes if item.type not in _BODIES))


_BODIES = frozenset((onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS))


def _attribute(item: onnx.AttributeProto) -> bytes:
    # Metadata of tensors is where exporters leave notes, which say nothing of what a node does.
    if (item.HasField("t") and item.t.metadata_props) or any(tensor.metadata_props for tensor in item.tensors):
        item = deepcopy(item)
        for tensor in (*([item.t] if item.HasField("t") else []), *item.tensors):
            tensor.ClearField("metadata_props")
    return item.SerializeToString(deterministic=True)


def in_order(nodes: Sequence[onnx.NodeProto]) -> Sequence[onnx.NodeProto]:
    """The nodes as they are if that is an order to run them in; else each after those that it reads from."""
    if _is_in_order(nodes):
        return nodes
    makers = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    before = [[makers[name] for name in names_read(node) if name in makers] for node in nodes]
    return [nodes[position] for position in _sort_topologically(before)]


def _is_in_order(nodes: Sequence[onnx.NodeProto]) -> bool:
    """From the last node back: none makes what one before it reads. Of a value that is made twice, the last counts."""
    made_later: set[str] = set()
    for node in reversed(nodes):
        made_later.update(node.output)
        made_later.discard("")
        if not made_later.isdisjoint(node.input):
            return False
        if node.attribute and not made_later.isdisjoint(captured(node)):
            return False
    return True


def names_read(node: onnx.NodeProto) -> set[str]:
    """Names that a node, or a body inside of it, reads from outside."""
    return {name for name in node.input if name} | {*captured(node)}


def _sort_topologically(before: Sequence[Sequence[int]]) -> list[int]:
    """Positions, each after those that it needs and otherwise as early as it was. A cycle is left as it is.

    Depth first, with a stack of its own: graphs are deeper than Python's.
    """
    ordered: dict[int, None] = {}
    started: set[int] = set()
    waiting = list(reversed(range(len(before))))
    while waiting:
        position = waiting.pop()
        missing = [maker for maker in before[position] if maker not in ordered and maker not in started]
        if missing and position not in started and position not in ordered:
            started.add(position)
            waiting += [position, *sorted(missing, reverse=True)]
        else:
            ordered.setdefault(position)
    return list(ordered)


Rename = Callable[[str], str]


def has_bodies(node: onnx.NodeProto) -> bool:
    return any(True for _ in subgraphs(node))


def names_inside(node: onnx.NodeProto) -> Iterator[str]:
    """Names that the bodies of a node give to their own values, however deep."""
    for body in subgraphs(node):
        yield from declared(body)
        for inner in body.node:
            yield from names_inside(inner)


def rename_captured(node: onnx.NodeProto, outer: Rename, inner: Rename = str) -> None:
    """Give other names to what the bodies of a node read from outside, and to what is inside of them."""
    for body in subgraphs(node):
        _rename(body, {}, outer, inner)


def plain_bodies(node: onnx.NodeProto) -> None:
    """Take from the bodies of a node all that does not say what they do: names, metadata, documentation."""
    outside = {name: f"<{number}" for number, name in enumerate(captured(node))}
    inside: dict[str, str] = {}

    def inner(name: str) -> str:
        return inside.setdefault(name, f">{len(inside)}")

    for body in subgraphs(node):
        _rename(body, {}, outside.__getitem__, inner)
        _make_plain(body)


def unite_types(node: onnx.NodeProto, others: Sequence[onnx.NodeProto]) -> None:
    """Leave in the bodies of a node the shapes that those of others have as well: it is going to stand for all."""
    for body, *bodies in zip(subgraphs(node), *map(subgraphs, others), strict=True):
        types, *other_types = ([value.type for value in each.value_info] for each in (body, *bodies))
        if any(types != counterpart for counterpart in other_types):
            body.ClearField("value_info")
        for value, *values in zip(_ends(body), *map(_ends, bodies), strict=True):
            if any(value.type != counterpart.type for counterpart in values):
                _forget_shape(value.type)
        for inner, *alike in zip(body.node, *(counterpart.node for counterpart in bodies), strict=True):
            unite_types(inner, alike)


def _ends(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.output]


def _forget_shape(given: onnx.TypeProto) -> None:
    kind = given.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        getattr(given, kind).ClearField("shape")
    elif kind in ("sequence_type", "optional_type"):
        _forget_shape(getattr(given, kind).elem_type)


def _rename(graph: onnx.GraphProto, known: Mapping[str, str], outer: Rename, inner: Rename) -> None:
    names = {**known, **{name: inner(name) for name in declared(graph)}}

    def named(name: str) -> str:
        return names[name] if name in names else outer(name) if name else name

    rename_values(graph, {**{value.name: named(value.name) for value in graph.output}, **names})
    for node in graph.node:
        node.input[:] = map(named, node.input)
        node.output[:] = map(named, node.output)
        for body in subgraphs(node):
            _rename(body, names, outer, inner)


def rename_values(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give other names to values where they are declared beside the nodes; a name that is not there stays."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        tensor.name = names.get(tensor.name, tensor.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = names.get(annotation.tensor_name, annotation.tensor_name)


def _make_plain(graph: onnx.GraphProto) -> None:
    for field in ("name", "doc_string", "metadata_props", "value_info"):
        graph.ClearField(field)
    for value in _ends(graph):
        value.ClearField("doc_string")
        value.ClearField("metadata_props")
        _forget_shape(value.type)  # as outside of bodies, shapes may differ from call to call
    for node in graph.node:
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
        for body in subgraphs(node):
            _make_plain(body)
