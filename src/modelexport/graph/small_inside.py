"""A model with the small tensors in it that lie in other files: shapes and axes, which say what a graph does."""

from __future__ import annotations

import onnx

from modelexport.errors import ModelExportError
from modelexport.graph.external import external_data, is_external, tensors
from modelexport.graph.opened import ModelFile
from modelexport.graph.weights import storage_size

_MOST_BYTES = 2048


def small_inside(file: ModelFile) -> onnx.ModelProto:
    """The file's own structure where nothing small is outside. What cannot be read stays outside."""
    if not any(map(_is_small_outside, tensors(file.proto))):
        return file.proto
    found = onnx.ModelProto()
    found.CopyFrom(file.proto)
    for tensor in filter(_is_small_outside, tensors(found)):
        try:
            data = bytes(external_data(tensor, file.directory).raw())
        except ModelExportError:
            continue
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = data
    return found


def _is_small_outside(tensor: onnx.TensorProto) -> bool:
    return is_external(tensor) and storage_size(tensor) <= _MOST_BYTES
