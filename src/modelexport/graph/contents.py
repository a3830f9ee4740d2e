"""What the initializers of a file hold, read from where it lies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.numpy_helper

from modelexport.graph.external import is_external
from modelexport.graph.opened import ModelFile

# `dtype.isbuiltin` of the types that numpy itself has; others (bfloat16) were added to it.
_NUMPYS_OWN = 1


def contents(file: ModelFile) -> Iterator[tuple[str, np.ndarray]]:
    """The main graph's initializers by name, one at a time; strings are left out."""
    for tensor in file.proto.graph.initializer:
        if tensor.data_type != onnx.TensorProto.STRING:
            yield tensor.name, content_of(file, tensor)


def content_of(file: ModelFile, tensor: onnx.TensorProto) -> np.ndarray:
    """A view of the file where numpy has the type, else a copy."""
    if not is_apart(file, tensor) or not is_plain(tensor):
        return onnx.numpy_helper.to_array(whole(file, tensor))
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    array: np.ndarray = np.frombuffer(file.weights[tensor.name].raw(), dtype=kind)
    return array.reshape(tuple(tensor.dims))


def whole(file: ModelFile, tensor: onnx.TensorProto) -> onnx.TensorProto:
    """The tensor with its data in it."""
    if not is_apart(file, tensor):
        return tensor
    raw = bytes(file.weights[tensor.name].raw())
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=raw)


def is_apart(file: ModelFile, tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's data is not in the structure itself."""
    return file.is_detached(tensor) or is_external(tensor)


def is_plain(tensor: onnx.TensorProto) -> bool:
    """Whether numpy has the type by itself."""
    return onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).isbuiltin == _NUMPYS_OWN
