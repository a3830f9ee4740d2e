"""What tensors and attributes hold, as bytes that are equal where the content is, however a file stores it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper

from modelexport.graph.domains import ONNX_DOMAINS


def tensor_content(proto: onnx.TensorProto) -> bytes | None:
    """Type, shape and data in one string, so that equal constants compare equal however they are stored."""
    if proto.data_location == onnx.TensorProto.EXTERNAL or not _has_data(proto):
        return None
    if proto.data_type == onnx.TensorProto.STRING:
        data = b"\0".join(proto.string_data)
    else:
        data = onnx.numpy_helper.to_array(proto).tobytes()
    return described(proto.data_type, tuple(proto.dims), data)


def described(dtype: int, shape: tuple[int, ...], data: bytes) -> bytes:
    """Data with its type and shape before it."""
    return repr((dtype, shape)).encode() + data


def type_of(content: bytes | None) -> tuple[int, tuple[int, ...]]:
    """The type and shape that are before the data."""
    if content is None:
        return onnx.TensorProto.UNDEFINED, ()
    dtype, shape = content[1 : _data_start(content) - 1].decode().split(", ", 1)
    sides = shape.strip("() ").split(",")
    return int(dtype), tuple(int(side) for side in sides if side.strip())


def data_of(content: bytes) -> bytes:
    """The data alone."""
    return content[_data_start(content) :]


def _data_start(content: bytes) -> int:
    return content.index(b"))") + 2


def _has_data(proto: onnx.TensorProto) -> bool:
    fields = (
        "raw_data",
        "float_data",
        "int32_data",
        "int64_data",
        "double_data",
        "uint64_data",
        "string_data",
    )
    return any(getattr(proto, name) for name in fields) or 0 in proto.dims


def constant_content(proto: onnx.NodeProto) -> bytes | None:
    """The content of a Constant node that holds numbers, in whichever of its attributes they are."""
    if proto.op_type != "Constant" or proto.domain not in ONNX_DOMAINS:
        return None
    for item in proto.attribute:
        if item.ref_attr_name:  # in a function, whose callers give it
            return None
        if item.name == "value":
            return tensor_content(item.t)
        if item.name in _NUMBERS:
            dtype, array = _NUMBERS[item.name]
            found = np.asarray(onnx.helper.get_attribute_value(item), dtype=array)
            return described(dtype, found.shape, found.tobytes())
    return None


# Attributes of a Constant that hold numbers of a certain type.
_NUMBERS = {
    "value_int": (onnx.TensorProto.INT64, np.int64),
    "value_ints": (onnx.TensorProto.INT64, np.int64),
    "value_float": (onnx.TensorProto.FLOAT, np.float32),
    "value_floats": (onnx.TensorProto.FLOAT, np.float32),
}


def attributes_of(proto: onnx.NodeProto) -> bytes:
    """What the attributes say, in one canonical string; bodies are nodes of their own and left out."""
    kept = [
        item for item in proto.attribute if item.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    ]
    return b"".join(sorted(map(_attribute, kept)))


def _attribute(item: onnx.AttributeProto) -> bytes:
    if item.t.metadata_props or any(tensor.metadata_props for tensor in item.tensors):
        plain = onnx.AttributeProto()
        plain.CopyFrom(item)
        for tensor in (*([plain.t] if plain.HasField("t") else []), *plain.tensors):
            tensor.ClearField("metadata_props")
        item = plain
    return item.SerializeToString(deterministic=True)
