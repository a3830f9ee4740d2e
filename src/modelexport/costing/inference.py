"""ONNX's own shape inference, one node at a time, with sizes that are open put in as names."""

from __future__ import annotations

from functools import cache

import onnx
import onnx.shape_inference

from modelexport.costing.axes import Shape
from modelexport.costing.values import UNDEFINED, Operator, Value
from modelexport.record.polynomial import Polynomial, Size

Partial = tuple[Size | None, ...]
_INT64 = onnx.TensorProto.INT64


def inferred(op: Operator, node: onnx.NodeProto) -> list[tuple[int, Partial | None]]:
    """Type and shape of each output; None where a size is not known, nothing if ONNX does not know the operator."""
    schema = _schema(op.op_type, op.opset, op.domain)
    if schema is None or any(value is not None and value.dtype == UNDEFINED for value in op.inputs):
        return []
    names: dict[str, Size] = {}
    given = [(name, value) for name, value in zip(node.input, op.inputs, strict=False) if name and value is not None]
    types = {name: _type(value, names) for name, value in given}
    data = {name: tensor for name, value in given if (tensor := _data(value)) is not None}
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            node,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(op.domain, op.opset)],
            ir_version=onnx.IR_VERSION,
        )
    except Exception:  # noqa: BLE001 - it has no error class of its own, and a shape may remain unknown
        return []
    return [_read(found.get(name), names) for name in node.output]


@cache
def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def _type(value: Value, names: dict[str, Size]) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(value.dtype, _dims(value.shape, names))


def _dims(shape: Shape | None, names: dict[str, Size]) -> list[int | str] | None:
    return None if shape is None else [size if isinstance(size, int) else _name(size, names) for size in shape]


def _name(size: Polynomial, names: dict[str, Size]) -> str:
    """Equal sizes have one name."""
    name = size.expression
    names[name] = size
    return name


def _data(value: Value) -> onnx.TensorProto | None:
    if value.content is None or value.dtype != _INT64 or value.shape is None:
        return None
    numbers = value.content.reshape(-1).tolist()
    if not all(isinstance(number, int) for number in numbers):
        return None
    return onnx.helper.make_tensor("", _INT64, list(value.content.shape), numbers)


def _read(found: onnx.TypeProto | None, names: dict[str, Size]) -> tuple[int, Partial | None]:
    if found is None or not found.HasField("tensor_type"):
        return UNDEFINED, None
    kind = found.tensor_type
    if not kind.HasField("shape"):
        return kind.elem_type, None
    dims = [dim.dim_value if dim.HasField("dim_value") else names.get(dim.dim_param) for dim in kind.shape.dim]
    return kind.elem_type, tuple(dims)
