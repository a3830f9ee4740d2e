"""Nodes that draw random numbers each time that a file is run: what they make cannot be compared with another run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
import onnx.numpy_helper

from modelexport.graph.domains import ONNX_DOMAINS
from modelexport.graph.index import MAIN, bodies, function_id, node_key
from modelexport.graph.weights import has_data

DRAWING = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
# Before this opset an attribute said that a Dropout does nothing; for a while it never did anything after that.
_DROPOUT_WITHOUT_FLAG = 7
_RATIO, _TRAINING_MODE = 1, 2
_Stored = Mapping[str, onnx.TensorProto]


@dataclass(frozen=True, slots=True)
class RandomNode:
    """A node that draws random numbers. `key` says where it is."""

    key: str
    name: str
    op_type: str

    def __str__(self) -> str:
        return f"{self.name or self.key} ({self.op_type})"


def random_nodes(proto: onnx.ModelProto) -> tuple[RandomNode, ...]:
    """Those of the main graph, of bodies inside it and of functions, in file order."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    found = list(_drawing(proto.graph.node, MAIN, stored, _opset(proto.opset_import)))
    for function in proto.functions:
        inside = _drawing(function.node, function_id(function), {}, _opset(function.opset_import))
        found.extend(inside)
    return tuple(found)


def _opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    return next((item.version for item in imports if item.domain in ONNX_DOMAINS), 1)


def _drawing(nodes: Iterable[onnx.NodeProto], graph_id: str, outer: _Stored, opset: int) -> Iterator[RandomNode]:
    """`outer` are the stored tensors that the graph can see."""
    nodes = list(nodes)
    stored = {**outer, **dict(_constants(nodes))}
    for node in nodes:
        key = node_key(node, graph_id)
        if node.domain in ONNX_DOMAINS and (node.op_type in DRAWING or _drops(node, stored, opset)):
            yield RandomNode(key, node.name, node.op_type)
        for body_id, body in bodies(node, key):
            inner = {tensor.name: tensor for tensor in body.initializer}
            yield from _drawing(body.node, body_id, {**stored, **inner}, opset)


def _constants(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, onnx.TensorProto]]:
    for node in nodes:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield node.output[0], attribute.t


def _drops(node: onnx.NodeProto, stored: _Stored, opset: int) -> bool:
    """Whether this is a Dropout that is at work. A ratio of zero drops nothing."""
    if node.op_type != "Dropout":
        return False
    if opset < _DROPOUT_WITHOUT_FLAG:
        return not any(attribute.name == "is_test" and attribute.i for attribute in node.attribute)
    return _truth(node, _TRAINING_MODE, stored) is True and _truth(node, _RATIO, stored) is not False


def _truth(node: onnx.NodeProto, place: int, stored: _Stored) -> bool | None:
    """Whether a stored input is anything but zero; None if it is left out, or computed."""
    name = node.input[place] if place < len(node.input) else ""
    tensor = stored.get(name)
    if tensor is None or not has_data(tensor):
        return None
    return bool(onnx.numpy_helper.to_array(tensor).any())
