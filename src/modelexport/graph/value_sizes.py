"""How many bytes values will take, before anything is run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.shape_inference


def value_sizes(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Of the main graph's values, those whose shape follows from the inputs that the graph is fed."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.value_info[:]  # sizes of open axes have names there, which inference would leave as they are
    for value in [*model.graph.input, *model.graph.output]:
        _fix_shape(value, feed)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001 - it has no error class of its own, and an estimate can be done without
        return {}
    return dict(_known(model))


def _fix_shape(value: onnx.ValueInfoProto, feed: Mapping[str, np.ndarray]) -> None:
    value.type.tensor_type.ClearField("shape")
    if value.name in feed:
        shape = value.type.tensor_type.shape
        shape.SetInParent()
        for size in feed[value.name].shape:
            shape.dim.add(dim_value=size)


def _known(model: onnx.ModelProto) -> Iterator[tuple[str, int]]:
    for value in [*model.graph.value_info, *model.graph.output]:
        kind = value.type.tensor_type
        if kind.elem_type and kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            width = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
            yield value.name, width * math.prod(dim.dim_value for dim in kind.shape.dim)
