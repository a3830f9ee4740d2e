"""Numbers that are in the file itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx

from modelexport.costing.values import MOST_NUMBERS, Value
from modelexport.graph.weights import has_data

_PLAIN = {
    "value_int": onnx.TensorProto.INT64,
    "value_ints": onnx.TensorProto.INT64,
    "value_float": onnx.TensorProto.FLOAT,
    "value_floats": onnx.TensorProto.FLOAT,
}


def numbers_of(tensor: onnx.TensorProto) -> np.ndarray | None:
    """The content of a small tensor, if it is not in another file."""
    count = math.prod(tensor.dims)
    outside = tensor.data_location == onnx.TensorProto.EXTERNAL
    if outside or count > MOST_NUMBERS or tensor.data_type == onnx.TensorProto.STRING:
        return None
    if count and not has_data(tensor):
        return None
    try:
        return onnx.numpy_helper.to_array(tensor).astype(object)
    except (ValueError, TypeError, KeyError):
        return None


def constant_of(proto: onnx.NodeProto) -> Value:
    """What a Constant makes."""
    for item in proto.attribute:
        if item.name == "value":
            return Value(item.t.data_type, tuple(item.t.dims), numbers_of(item.t), fixed=True)
        if item.name in _PLAIN:
            given = np.asarray(onnx.helper.get_attribute_value(item))
            content = given.astype(object) if given.size <= MOST_NUMBERS else None
            return Value(_PLAIN[item.name], given.shape, content, fixed=True)
    return Value(fixed=True)


def plain_attribute(item: onnx.AttributeProto) -> Any:
    """Small tensors as arrays, texts as texts."""
    if item.type == onnx.AttributeProto.TENSOR:
        return None if numbers_of(item.t) is None else onnx.numpy_helper.to_array(item.t)
    value = onnx.helper.get_attribute_value(item)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
