"""Small constants of a graph: their content, where the index kept it."""

from __future__ import annotations

import numpy as np
import onnx

from modelexport.graph.index import Graph

# What attention adds to a score to make it vanish is far below any score.
_VANISHING = -1e3
_READABLE = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT64,
    }
)


def constant(graph: Graph, value: str) -> np.ndarray | None:
    """The numbers that a value always holds, flat; None if it is no constant or its content was not kept."""
    content = _content(graph, value)
    if content is None:
        return None
    # The index writes type and shape before the data: `(1, (2, 3))`.
    head, _, data = content.partition(b"))")
    dtype = int(head[1 : head.index(b",")])
    if dtype not in _READABLE:
        return None
    numpy_type = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    return np.frombuffer(data, numpy_type) if len(data) % numpy_type.itemsize == 0 else None


def _content(graph: Graph, value: str) -> bytes | None:
    if value in graph.initializers:
        return graph.initializers[value].content
    maker = graph.producers.get(value)
    return None if maker is None else maker.constant


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
