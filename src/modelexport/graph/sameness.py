"""Whether two files say the same, but for names of nodes, metadata, and how they lie on the disk."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from modelexport.graph.contents import contents
from modelexport.graph.opened import ModelFile


def are_same(one: ModelFile, other: ModelFile) -> bool:
    """The same graph, versions, shapes and weights. Weights are read only where everything else is equal."""
    if one.graph.fingerprint != other.graph.fingerprint or _headers(one.proto) != _headers(other.proto):
        return False
    small = [tensor.content for tensor in one.graph.initializers.values()]
    return small == [other.graph.initializers[name].content for name in one.graph.initializers] and _same_data(
        one, other
    )


def _headers(proto: onnx.ModelProto) -> tuple[frozenset[bytes], ...]:
    """What the fingerprint of a graph leaves out: versions, and the types and shapes of values."""
    graph = proto.graph
    values = (_written(one) for one in (graph.value_info, graph.input, graph.output))
    return (_written(proto.opset_import), *values)


def _written(messages: Iterable[onnx.ValueInfoProto | onnx.OperatorSetIdProto]) -> frozenset[bytes]:
    return frozenset(message.SerializeToString(deterministic=True) for message in messages)


def _same_data(one: ModelFile, other: ModelFile) -> bool:
    theirs = dict(contents(other))
    return all(np.array_equal(_bits(array), _bits(theirs[name])) for name, array in contents(one))


def _bits(array: np.ndarray) -> np.ndarray:
    """What is compared bit by bit is equal to itself, NaN as well."""
    return np.frombuffer(np.ascontiguousarray(array).data, np.uint8) if array.size else np.empty(0, np.uint8)
