"""How many bytes values will take, before anything is run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import numpy as np
import onnx
import onnx.shape_inference

from modelexport.graph.axis_sizes import computed_size, dims_of


def value_sizes(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Of what the main graph's nodes make, those values whose shape follows from the inputs that the graph is fed.

    Shapes are inferred. Where that is not possible, the file itself may state them, in terms of the axes of its inputs.
    """
    stated = _sizes(proto.graph.value_info, dict(_axes(proto, feed)))
    found = {**dict(stated), **dict(_sizes(_inferred(proto, feed), {}))}
    return {name: found[name] for node in proto.graph.node for name in node.output if name in found}


def _axes(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> Iterator[tuple[str, int]]:
    for value in proto.graph.input:
        if value.name in feed:
            pairs = zip(dims_of(value) or (), feed[value.name].shape, strict=False)
            yield from ((dim, size) for dim, size in pairs if isinstance(dim, str) and dim)


def _inferred(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> Iterator[onnx.ValueInfoProto]:
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.value_info[:]  # names of axes that are stated there would stay names
    for value in [*model.graph.input, *model.graph.output]:
        _fix_shape(value, feed)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001 - it has no error class of its own, and an estimate can be done without
        return
    yield from model.graph.value_info
    yield from model.graph.output


def _fix_shape(value: onnx.ValueInfoProto, feed: Mapping[str, np.ndarray]) -> None:
    value.type.tensor_type.ClearField("shape")
    if value.name in feed:
        shape = value.type.tensor_type.shape
        shape.SetInParent()
        for size in feed[value.name].shape:
            shape.dim.add(dim_value=size)


def _sizes(values: Iterable[onnx.ValueInfoProto], axes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for value in values:
        kind = value.type.tensor_type
        if kind.elem_type and kind.HasField("shape"):
            dims = [_size(dim, axes) for dim in kind.shape.dim]
            if None not in dims:
                yield value.name, _width(kind.elem_type) * math.prod(dim for dim in dims if dim is not None)


@cache
def _width(elem_type: int) -> int:
    return onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize


def _size(dim: onnx.TensorShapeProto.Dimension, axes: Mapping[str, int]) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") else computed_size(dim.dim_param, axes)
