"""Types and shapes of a file's values: as it states them, or inferred without reading a weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import onnx
import onnx.shape_inference

from modelexport.graph.check import checkable
from modelexport.graph.index import FLOATS, MAIN, bodies, function_id, node_key, value_id
from modelexport.graph.opened import ModelFile

Types = dict[str, onnx.TypeProto]
# Integers with more axes than this are data, such as token ids; with fewer they may be sizes.
_MOST_AXES_OF_SIZES = 1
# What shape inference calls an axis of which it knows nothing.
_INVENTED = "unk__"
_NAMES = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
_SIZES = frozenset((onnx.TensorProto.INT64, onnx.TensorProto.INT32))


class ValueTypes:
    """By value id, as an index has them. What nobody states is inferred, once, when it is first asked for."""

    def __init__(self, file: ModelFile) -> None:
        self._file = file

    def get(self, value: str) -> onnx.TypeProto | None:
        """Type and shape; None if they cannot be found out."""
        stated = self._stated.get(value)
        if stated is not None and is_shaped(stated):
            return stated
        return self._inferred.get(value) or stated

    def dtype(self, value: str) -> int:
        """Of its elements, as ONNX numbers them; 0 if it is not known."""
        found = self.get(value)
        return found.tensor_type.elem_type if found is not None else onnx.TensorProto.UNDEFINED

    def is_float(self, value: str) -> bool:
        return self.dtype(value) in FLOATS

    def may_be_sizes(self, value: str) -> bool:
        """Whether it has the looks of a shape, or of a part of one: an integer, or a row of them."""
        found = self.get(value)
        if found is None or found.tensor_type.elem_type not in _SIZES:
            return False
        return is_shaped(found) and len(found.tensor_type.shape.dim) <= _MOST_AXES_OF_SIZES

    def dims(self, value: str) -> tuple[int | str, ...] | None:
        """Sizes and names of axes; an axis of which nothing is known is an empty name."""
        found = self.get(value)
        if found is None or not found.tensor_type.HasField("shape"):
            return None
        return tuple(map(_size, found.tensor_type.shape.dim))

    @cached_property
    def _stated(self) -> Types:
        return dict(_typed(self._file.proto))

    @cached_property
    def _inferred(self) -> Types:
        proto = checkable(self._file)
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception:  # noqa: BLE001 - it has no error class of its own; what is stated remains
            return {}
        return dict(_typed(inferred))


def is_shaped(found: onnx.TypeProto) -> bool:
    """Whether a type says how many axes there are; sequences and optionals have none."""
    return not found.HasField("tensor_type") or found.tensor_type.HasField("shape")


def type_name(dtype: int) -> str:
    """`float16`; a number for a type that this version of ONNX does not know."""
    return _NAMES.get(dtype, f"type {dtype}")


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    if dim.HasField("dim_value"):
        return dim.dim_value
    return "" if dim.dim_param.startswith(_INVENTED) else dim.dim_param


def _typed(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TypeProto]]:
    yield from _graph_types(proto.graph, MAIN)
    for function in proto.functions:
        yield from _values(function.value_info, function_id(function))


def _graph_types(graph: onnx.GraphProto, graph_id: str) -> Iterator[tuple[str, onnx.TypeProto]]:
    for tensor in graph.initializer:
        yield value_id(graph_id, tensor.name), onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    for node in graph.node:
        for body_id, body in bodies(node, node_key(node, graph_id)):
            yield from _graph_types(body, body_id)
    yield from _values([*graph.value_info, *graph.input, *graph.output], graph_id)


def _values(values: Iterable[onnx.ValueInfoProto], graph_id: str) -> Iterator[tuple[str, onnx.TypeProto]]:
    for value in values:
        if value.HasField("type") and value.type.WhichOneof("value"):
            yield value_id(graph_id, value.name), value.type
