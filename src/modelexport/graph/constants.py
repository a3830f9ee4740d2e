"""Constants and attributes of an indexed graph, read without protobuf and without weights.

    is_all(tensor, 1)            an initializer of ones: `x * w` does nothing          (lineage: no-ops)
    scalar_contents(0)           what any constant holds that is the number 0, in any type and up to five axes
    constant(graph, "scale")     the numbers of a small constant, flat                 (roles: -0.5 is a square root)
    integers(node, "perm")       an attribute of a node                                (roles: which axis is which)

The index keeps a constant as its type, its shape and its data, or as a digest of these; so two are equal if and only
if their contents are. It keeps attributes as one string, protobuf messages one after the other. Each message begins
with its name, the field of the lowest number, so that is where the string is cut.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper

from modelexport.graph.file.weights import fields
from modelexport.graph.index import Graph, Node, Tensor
from modelexport.graph.outline import digest
from modelexport.graph.protos import data_of, described, type_of

_TYPES = tuple(map(TensorProto.DataType.Value, ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "INT32", "BOOL"]))
# Axes that a single number was ever seen to have.
_MOST_AXES = 5


def is_all(tensor: Tensor, number: int) -> bool:
    """Whether a constant holds nothing but this number; False also where that is not known."""
    return tensor.content is not None and tensor.content in _filled(number, tensor.dtype, tensor.shape)


@cache
def scalar_contents(number: int) -> frozenset[bytes]:
    shapes = [(1,) * axes for axes in range(_MOST_AXES + 1)]
    return frozenset(content for kind in _TYPES for shape in shapes for content in _filled(number, kind, shape))


def _filled(number: int, dtype: int, shape: tuple[int, ...]) -> tuple[bytes, ...]:
    if dtype not in _TYPES:
        return ()
    array = np.full(shape, number).astype(helper.tensor_dtype_to_np_dtype(dtype))
    plain = described(dtype, shape, array.tobytes())
    return plain, digest(plain).encode()


# What attention adds to a score to make it vanish is far below any score.
_VANISHING = -1e3
# Types that numpy has by itself: a kept content is read as it lies.
_READABLE = frozenset(map(TensorProto.DataType.Value, ["FLOAT", "DOUBLE", "FLOAT16", "INT32", "INT64"]))


def constant(graph: Graph, value: str) -> np.ndarray | None:
    """The numbers that a value always holds, flat; None if it is no constant or its content was not kept."""
    maker = graph.producers.get(value)
    content = None if maker is None else maker.constant
    if value in graph.initializers:
        content = graph.initializers[value].content
    if content is None or type_of(content)[0] not in _READABLE:
        return None
    data, dtype = data_of(content), helper.tensor_dtype_to_np_dtype(type_of(content)[0])
    return np.frombuffer(data, dtype) if len(data) % dtype.itemsize == 0 else None


def is_single(graph: Graph, value: str) -> bool:
    """It always holds the same one number."""
    if value in graph.initializers:
        return all(size == 1 for size in graph.initializers[value].shape)
    numbers = constant(graph, value)
    return numbers is not None and numbers.size == 1


def vanishes(graph: Graph, value: str) -> bool:
    """It is a constant that holds a number so low that a softmax makes nothing of it."""
    numbers = constant(graph, value)
    return numbers is not None and numbers.size > 0 and bool(numbers.min() < _VANISHING)


_NAME = onnx.AttributeProto.NAME_FIELD_NUMBER


def integers(node: Node, name: str) -> tuple[int, ...]:
    """An attribute that is an integer or a list of them; empty if the node has none of this name."""
    attribute = _find(node, name)
    if attribute is None:
        return ()
    return (attribute.i,) if attribute.type == onnx.AttributeProto.INT else tuple(attribute.ints)


def integer(node: Node, name: str, default: int = 0) -> int:
    return next(iter(integers(node, name)), default)


def text(node: Node, name: str) -> str:
    attribute = _find(node, name)
    return "" if attribute is None else attribute.s.decode()


def _find(node: Node, name: str) -> onnx.AttributeProto | None:
    if name.encode() not in node.attributes:
        return None
    joined = node.attributes
    starts = [field.start for field in fields(memoryview(joined)) if field.number == _NAME]
    bounds = zip(starts, [*starts[1:], len(joined)], strict=True)
    messages = (onnx.AttributeProto.FromString(joined[start:end]) for start, end in bounds)
    return next((message for message in messages if message.name == name), None)
