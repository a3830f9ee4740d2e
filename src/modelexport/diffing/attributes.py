"""What two nodes of one operator say about how they work."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from modelexport.record.changes import FieldChange

_LONGEST = 8
_BODIES = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def attribute_changes(one: onnx.NodeProto, other: onnx.NodeProto) -> Iterator[FieldChange]:
    """An attribute that is left out has the value that the operator gives it."""
    mine, theirs = _values(one), _values(other)
    usual = _defaults(one)
    for name in sorted(mine.keys() | theirs.keys()):
        left, right = mine.get(name, usual.get(name)), theirs.get(name, usual.get(name))
        if left != right:
            yield FieldChange(f"attribute {name}", left or "", right or "")


def _values(node: onnx.NodeProto) -> dict[str, str]:
    return {item.name: _written(item) for item in node.attribute if item.type not in _BODIES}


def _defaults(node: onnx.NodeProto) -> dict[str, str]:
    try:
        schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    except onnx.defs.SchemaError:
        return {}
    defaults = ((name, one.default_value) for name, one in schema.attributes.items())
    return {name: _written(value) for name, value in defaults if value.name}


def _written(item: onnx.AttributeProto) -> str:
    if item.ref_attr_name:
        return f"@{item.ref_attr_name}"
    if item.type == onnx.AttributeProto.TENSOR:
        return _tensor(item.t)
    value = onnx.helper.get_attribute_value(item)
    if isinstance(value, (list, tuple)) or hasattr(value, "__len__") and not isinstance(value, (str, bytes)):
        return f"[{', '.join(map(_scalar, value))}]"
    return _scalar(value)


def _scalar(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _tensor(tensor: onnx.TensorProto) -> str:
    kind = f"{onnx.TensorProto.DataType.Name(tensor.data_type).lower()}{list(tensor.dims)}"
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.data_type == onnx.TensorProto.STRING:
        return kind
    array = onnx.numpy_helper.to_array(tensor).reshape(-1)
    if array.size > _LONGEST:
        return f"{kind} {hash(array.tobytes()) & 0xFFFFFF:06x}"
    return f"{kind} {', '.join(_scalar(value) for value in array.tolist())}"
