"""ONNX's own checker, run on a model without its weights.

The checker wants every initializer's data, to look at no more than its size. Here initializers whose data is
elsewhere become graph inputs of the same type and shape, which is all that the rest of the check and shape
inference use.
"""

from __future__ import annotations

import onnx
import onnx.checker
import onnx.shape_inference

from modelexport.graph import external
from modelexport.graph.opened import ModelFile
from modelexport.graph.weights import storage_size


def check_graph(model: ModelFile) -> str | None:
    """What the full check has against a model, in the checker's words; None if nothing."""
    try:
        onnx.checker.check_model(checkable(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error).strip()
    return _wrong_size(model)


def checkable(model: ModelFile) -> onnx.ModelProto:
    """A model that the checker accepts if it would accept this one with all of its data."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    _turn_into_inputs(proto.graph, [tensor for tensor in proto.graph.initializer if _is_elsewhere(model, tensor)])
    for tensor in filter(external.is_external, external.tensors(proto)):
        _fill_with_zeros(tensor)  # in a body or an attribute, where there is no input to turn it into
    return proto


def _is_elsewhere(model: ModelFile, tensor: onnx.TensorProto) -> bool:
    return external.is_external(tensor) or model.is_detached(tensor)


def _turn_into_inputs(graph: onnx.GraphProto, tensors: list[onnx.TensorProto]) -> None:
    gone = {tensor.name for tensor in tensors}
    kept = [tensor for tensor in graph.initializer if tensor.name not in gone]
    known = {value.name for value in graph.input}
    graph.input.extend(_typed_value(tensor) for tensor in tensors if tensor.name not in known)
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _typed_value(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def _fill_with_zeros(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = bytes(storage_size(tensor))


def _wrong_size(model: ModelFile) -> str | None:
    """The checker's complaint about too little data, which it could not make without the data."""
    for tensor in model.proto.graph.initializer:
        needed, data = storage_size(tensor), model.weights.get(tensor.name)
        if data is not None and _is_elsewhere(model, tensor) and data.nbytes < needed:
            return f"initializer {tensor.name!r} has {data.nbytes} bytes of data; shape and type take {needed}"
    return None
