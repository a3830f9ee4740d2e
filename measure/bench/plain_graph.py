"""A model as plain tables, read with nothing but onnx: what a format must not lose.

Shares nothing with modelexport but the documented form of node keys, so that a fault there cannot hide here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper

_OURS = "pkg.modelexport."
_FEW = 16
_KINDS = onnx.AttributeProto

# From the box and its n-th output to the n-th input of another box, and the value that goes there.
Edge = tuple[str, int, str, int, str]
# An attribute as its type and what it holds, in a form that compares equal if both are.
Held = tuple[str, object]


@dataclass(frozen=True)
class PlainNode:
    """A node, or an initializer, input or output, which have a name and a type alone."""

    kind: str
    texts: Mapping[str, str]
    attributes: Mapping[str, Held] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass
class PlainGraph:
    """Nodes by key; `(output)` behind the key of what a graph returns."""

    nodes: dict[str, PlainNode] = field(default_factory=dict)
    edges: set[Edge] = field(default_factory=set)


def plain_graph(path: Path) -> PlainGraph:
    model = onnx.load(path, load_external_data=False)
    found = PlainGraph()
    _add_graph(found, model.graph, "", {})
    for function in model.functions:
        _add_function(found, function)
    return found


def _add_graph(found: PlainGraph, graph: onnx.GraphProto, name: str, outer: Mapping[str, tuple[str, int]]) -> None:
    types = {info.name: _type(info.type) for info in (*graph.value_info, *graph.input, *graph.output)}
    types |= {one.name: _stored(one.data_type, one.dims) for one in graph.initializer}
    types |= {one.values.name: _stored(one.values.data_type, one.dims) for one in graph.sparse_initializer}
    scope = dict(outer)
    stored = [one.name for one in graph.initializer] + [one.values.name for one in graph.sparse_initializer]
    for kind, names in (("constant", stored), ("input", [one.name for one in graph.input])):
        for one in names:
            if one and _key(name, one) not in found.nodes:
                found.nodes[_key(name, one)] = PlainNode(
                    kind, {"name": one}, outputs=(_key(name, one),), types=(types.get(one, ""),)
                )
                scope[one] = _key(name, one), 0
    _add_nodes(found, graph.node, name, scope, types)
    _add_outputs(found, [one.name for one in graph.output], name, scope)


def _add_function(found: PlainGraph, function: onnx.FunctionProto) -> None:
    name = f"{function.domain}::{function.name}" + f":{function.overload}" * bool(function.overload)
    types = {info.name: _type(info.type) for info in function.value_info}
    scope: dict[str, tuple[str, int]] = {}
    for one in function.input:
        found.nodes[_key(name, one)] = PlainNode(
            "input", {"name": one}, outputs=(_key(name, one),), types=(types.get(one, ""),)
        )
        scope[one] = _key(name, one), 0
    _add_nodes(found, function.node, name, scope, types)
    _add_outputs(found, list(function.output), name, scope)


def _add_nodes(
    found: PlainGraph,
    protos: Iterable[onnx.NodeProto],
    name: str,
    scope: dict[str, tuple[str, int]],
    types: Mapping[str, str],
) -> None:
    nodes = list(protos)
    for node in nodes:
        key = _node_key(node, name)
        scope.update({value: (key, place) for place, value in enumerate(node.output) if value})
    for node in nodes:
        key = _node_key(node, name)
        found.nodes[key] = _plain(node, key, name, types)
        for place, value in enumerate(node.input):
            if value:
                source, output = scope[value]
                made = (
                    found.nodes[source].outputs[output] if source in found.nodes else _made(nodes, source, output, name)
                )
                found.edges.add((source, output, key, place, made))
        for attribute in node.attribute:
            for body_name, body in _bodies(attribute, key):
                _add_graph(found, body, body_name, scope)


def _made(nodes: list[onnx.NodeProto], source: str, output: int, name: str) -> str:
    """What a node makes that stands behind its reader."""
    return next(_key(name, node.output[output]) for node in nodes if _node_key(node, name) == source)


def _add_outputs(found: PlainGraph, names: list[str], name: str, scope: Mapping[str, tuple[str, int]]) -> None:
    for one in names:
        source, output = scope[one]
        value = found.nodes[source].outputs[output]
        key = f"{_key(name, one)} (output)"
        found.nodes[key] = PlainNode("output", {"name": one})
        found.edges.add((source, output, key, 0, value))


def _plain(node: onnx.NodeProto, key: str, name: str, types: Mapping[str, str]) -> PlainNode:
    props = {one.key: one.value for one in node.metadata_props}
    texts = {"name": node.name, "op_type": node.op_type, "domain": node.domain, "doc_string": node.doc_string}
    texts["overload"] = node.overload
    return PlainNode(
        kind="operator",
        texts={what: text for what, text in texts.items() if text},
        attributes={one.name: _held(one, key) for one in node.attribute},
        metadata={what: text for what, text in props.items() if not what.startswith(_OURS)},
        known={what.removeprefix(_OURS): text for what, text in props.items() if what.startswith(_OURS)},
        outputs=tuple(_key(name, one) if one else "" for one in node.output),
        types=tuple(types.get(one, "") for one in node.output),
    )


def _key(graph: str, name: str) -> str:
    return f"{graph}|{name}" if graph else name


def _node_key(node: onnx.NodeProto, graph: str) -> str:
    return _key(graph, next((one for one in node.output if one), node.name))


def _bodies(attribute: onnx.AttributeProto, key: str) -> Iterator[tuple[str, onnx.GraphProto]]:
    if attribute.type == _KINDS.GRAPH:
        yield f"{key}|{attribute.name}", attribute.g
    for place, body in enumerate(attribute.graphs):
        yield f"{key}|{attribute.name}[{place}]", body


def _held(item: onnx.AttributeProto, key: str) -> Held:
    kind = _KINDS.AttributeType.Name(item.type)
    if item.ref_attr_name:
        return "reference", (item.ref_attr_name, kind)
    if item.type in (_KINDS.GRAPH, _KINDS.GRAPHS):
        return "graphs", tuple(name for name, _ in _bodies(item, key))
    return kind, _value(item, kind)


def _value(item: onnx.AttributeProto, kind: str) -> object:
    if kind in ("SPARSE_TENSOR", "TYPE_PROTO"):
        return hashlib.sha256(item.SerializeToString(deterministic=True)).hexdigest()
    value = onnx.helper.get_attribute_value(item)
    read: dict[str, Callable[[Any], object]] = {"FLOAT": lambda number: repr(float(number)), "TENSOR": tensor_held}
    one = read.get(kind.removesuffix("S"), lambda held: held)
    return tuple(map(one, value)) if kind.endswith("S") else one(value)


def tensor_held(tensor: onnx.TensorProto) -> tuple[str, str]:
    """Type and shape, and all elements; of many, a digest of their bytes."""
    head = _stored(tensor.data_type, tensor.dims)
    if tensor.data_type == onnx.TensorProto.STRING:
        return head, repr(list(tensor.string_data))
    array = onnx.numpy_helper.to_array(tensor)
    if array.size > _FEW:
        return head, f"sha256:{hashlib.sha256(array.tobytes()).hexdigest()}"
    numbers = array.ravel().tolist()
    if array.dtype.kind not in "biufc":
        numbers = [int(one) if "int" in array.dtype.name else float(one) for one in array.ravel()]
    return head, repr(numbers)


def _stored(dtype: int, dims: Iterable[int]) -> str:
    return f"{onnx.TensorProto.DataType.Name(dtype).lower()}[{', '.join(map(str, dims))}]"


def _type(proto: onnx.TypeProto) -> str:
    """Of a tensor; other types are not compared."""
    if proto.WhichOneof("value") != "tensor_type":
        return ""
    dtype = onnx.TensorProto.DataType.Name(proto.tensor_type.elem_type).lower()
    if not proto.tensor_type.HasField("shape"):
        return dtype
    dims = [
        str(one.dim_value) if one.HasField("dim_value") else one.dim_param or "?" for one in proto.tensor_type.shape.dim
    ]
    return f"{dtype}[{', '.join(dims)}]"
