"""What two nodes of one operator say about how they work."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from modelexport.diffing.writing import written
from modelexport.graph.domains import plain_domain
from modelexport.graph.value_types import type_name
from modelexport.record.changes import FieldChange

_LONGEST = 8
_BODIES = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


# By domain: the version of its operators that a model uses.
Opsets = Mapping[str, int]


def opsets_of(model: onnx.ModelProto) -> Opsets:
    return {plain_domain(item.domain): item.version for item in model.opset_import}


def attribute_changes(
    one: onnx.NodeProto, other: onnx.NodeProto, opsets: tuple[Opsets, Opsets]
) -> Iterator[FieldChange]:
    """An attribute that is left out has the value that the operator gives it, which is not the same in all opsets."""
    mine, theirs = (
        {**_defaults(node, versions), **_values(node)} for node, versions in zip((one, other), opsets, strict=True)
    )
    stated = {item.name for node in (one, other) for item in node.attribute}
    for name in sorted(stated & (mine.keys() | theirs.keys())):
        left, right = mine.get(name, ""), theirs.get(name, "")
        if left != right:
            yield FieldChange(f"attribute {name}", left, right)


def _values(node: onnx.NodeProto) -> dict[str, str]:
    return {item.name: _written(item) for item in node.attribute if item.type not in _BODIES}


def _defaults(node: onnx.NodeProto, opsets: Opsets) -> dict[str, str]:
    domain = plain_domain(node.domain)
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
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
    if not isinstance(value, int | float | str | bytes) and hasattr(value, "__iter__"):
        return f"[{', '.join(map(_scalar, value))}]"
    return _scalar(value)


def _scalar(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return next(written(np.array(value, np.float32))) if isinstance(value, float) else str(value)


def _tensor(tensor: onnx.TensorProto) -> str:
    kind = f"{type_name(tensor.data_type)}{list(tensor.dims)}"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return kind
    if tensor.data_type == onnx.TensorProto.STRING:
        return f"{kind} {', '.join(map(_scalar, tensor.string_data))}"
    array = onnx.numpy_helper.to_array(tensor)
    if array.size > _LONGEST:
        return f"{kind} {hashlib.sha256(array.tobytes()).hexdigest()[:8]}"
    return f"{kind} {', '.join(written(array))}"
