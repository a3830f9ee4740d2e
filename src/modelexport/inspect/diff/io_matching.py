"""Inputs, outputs and attributes of two models: which are the same, and what is different about them.

    input ids: int64[batch, 128]  →  int64[batch, seq]     axis 1 was fixed and is open now: a difference
    input ids: int64[batch, seq]  →  int64[b, s]           other names of axes alone: none

An attribute that is left out has its default, which depends on the opset: Softmax without `axis` is -1 since opset 13
and 1 before. See https://onnx.ai/onnx/operators/onnx__Softmax.html.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from modelexport.graph.protos import plain_domain, stated_attributes
from modelexport.graph.types import dims_of, type_name
from modelexport.record.results.diff import FieldChange, Renamed


def numbers_text(array: np.ndarray) -> Iterator[str]:
    """Each number of an array, with as many digits as its type takes to be told from its neighbours."""
    return (str(number).removesuffix(".0") for number in array.reshape(-1))


_LONGEST = 8
_BODIES = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


# By domain: the version of its operators that a model uses.
Opsets = Mapping[str, int]


def list_opsets(model: onnx.ModelProto) -> Opsets:
    return {plain_domain(item.domain): item.version for item in model.opset_import}


def compare_attributes(
    node: onnx.NodeProto, other: onnx.NodeProto, opsets: tuple[Opsets, Opsets]
) -> Iterator[FieldChange]:
    """An attribute that is left out has the value that the operator gives it, which is not the same in all opsets."""
    left_values, right_values = (
        {**_default_values(node, versions), **_stated_values(node)}
        for node, versions in zip((node, other), opsets, strict=True)
    )
    stated = stated_attributes(node).keys() | stated_attributes(other).keys()
    for name in sorted(stated & (left_values.keys() | right_values.keys())):
        left, right = left_values.get(name, ""), right_values.get(name, "")
        if left != right:
            yield FieldChange(f"attribute {name}", left, right)


def _stated_values(node: onnx.NodeProto) -> dict[str, str]:
    return {name: _attribute_text(item) for name, item in stated_attributes(node).items() if item.type not in _BODIES}


def _default_values(node: onnx.NodeProto, opsets: Opsets) -> dict[str, str]:
    domain = plain_domain(node.domain)
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return {}
    defaults = ((name, attribute.default_value) for name, attribute in schema.attributes.items())
    return {name: _attribute_text(value) for name, value in defaults if value.name}


def _attribute_text(item: onnx.AttributeProto) -> str:
    if item.ref_attr_name:
        return f"@{item.ref_attr_name}"
    if item.type == onnx.AttributeProto.TENSOR:
        return _tensor_text(item.t)
    value = onnx.helper.get_attribute_value(item)
    if not isinstance(value, int | float | str | bytes) and hasattr(value, "__iter__"):
        return f"[{', '.join(map(_scalar_text, value))}]"
    return _scalar_text(value)


def _scalar_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return next(numbers_text(np.array(value, np.float32))) if isinstance(value, float) else str(value)


def _tensor_text(tensor: onnx.TensorProto) -> str:
    kind = f"{type_name(tensor.data_type)}{list(tensor.dims)}"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return kind
    if tensor.data_type == onnx.TensorProto.STRING:
        return f"{kind} {', '.join(map(_scalar_text, tensor.string_data))}"
    array = onnx.numpy_helper.to_array(tensor)
    if array.size > _LONGEST:
        return f"{kind} {hashlib.sha256(array.tobytes()).hexdigest()[:8]}"
    return f"{kind} {', '.join(numbers_text(array))}"


_Dims = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class ValueType:
    """Of a tensor. A side that is not fixed goes by the name that it has; None if nothing is known of it."""

    dtype: int
    dims: _Dims | None

    def __str__(self) -> str:
        name = type_name(self.dtype)
        if self.dims is None:
            return name
        return f"{name}[{', '.join('?' if dim is None else str(dim) for dim in self.dims)}]"


def read_value_type(value: onnx.ValueInfoProto) -> ValueType | None:
    if not value.type.HasField("tensor_type"):
        return None
    dims = dims_of(value.type)
    return ValueType(value.type.tensor_type.elem_type, dims and tuple(dim if dim != "" else None for dim in dims))


def shapes_differ(stated: ValueType, other: ValueType) -> bool:
    """Names of sides are names: they are no difference."""
    if stated.dims is None or other.dims is None:
        return False
    return len(stated.dims) != len(other.dims) or any(map(_axes_differ, stated.dims, other.dims))


def _axes_differ(stated: int | str | None, other: int | str | None) -> bool:
    if stated is None or other is None:
        return False
    return stated != other if isinstance(stated, int) and isinstance(other, int) else type(stated) is not type(other)


def types_differ(stated: ValueType, other: ValueType) -> bool:
    return bool(stated.dtype and other.dtype and stated.dtype != other.dtype)


_Types = Mapping[str, ValueType | None]


def match_names(left: _Types, other: _Types) -> dict[str, str]:
    return {name: name for name in left if name in other}


def match_rest(left: _Types, other: _Types, known: Mapping[str, str]) -> dict[str, str]:
    """What is known; what is left over by type and order."""
    matches = dict(known)
    unmatched = [name for name in left if name not in matches]
    matched = set(matches.values())
    spare = [name for name in other if name not in matched]
    if len(unmatched) == len(spare):
        return {**matches, **dict(zip(unmatched, spare, strict=True))}
    for name in unmatched:
        same = next((candidate for candidate in spare if _may_match(left[name], other[candidate])), None)
        if same is not None:
            matches[name] = same
            spare.remove(same)
    return matches


def _may_match(stated: ValueType | None, other: ValueType | None) -> bool:
    if stated is None or other is None:
        return stated is other
    return not types_differ(stated, other) and not shapes_differ(stated, other)


def compare_io(what: str, left: _Types, right: _Types, pairs: Mapping[str, str]) -> Iterator[FieldChange]:
    """what  input or output"""
    for name, kind in left.items():
        if name not in pairs:
            yield FieldChange(f"{what} {name}", str(kind or "present"), "")
            continue
        now = right[pairs[name]]
        if kind is not None and now is not None and (types_differ(kind, now) or shapes_differ(kind, now)):
            yield FieldChange(f"{what} {name}", str(kind), str(now))
    known = set(pairs.values())
    for name, kind in right.items():
        if name not in known:
            yield FieldChange(f"{what} {name}", "", str(kind or "present"))
    order = [pairs[name] for name in left if name in pairs]
    now_order = [name for name in right if name in known]
    if what == "output" and order != now_order:
        yield FieldChange("order of outputs", ", ".join(order), ", ".join(now_order))


def list_renamed_io(what: str, pairs: Mapping[str, str]) -> Iterator[Renamed]:
    return (Renamed(what, name, now) for name, now in pairs.items() if name != now)


# Tools note things about themselves under such keys.
_TOOLS_NOTES = ("pkg.", "onnx.infer", "onnx.quant", "onnxsim.")


def compare_headers(
    model: onnx.ModelProto, other: onnx.ModelProto, used: Sequence[frozenset[str]]
) -> Iterator[FieldChange]:
    """Opsets of domains that are used, and metadata that is not a tool's own.

    used  the domains of the operators of both
    """
    left, right = list_opsets(model), list_opsets(other)
    for domain in sorted(left.keys() & right.keys()):
        if left[domain] != right[domain] and (not domain or any(domain in domains for domains in used)):
            yield FieldChange(f"opset {domain or 'ai.onnx'}", str(left[domain]), str(right[domain]))
    before, now = ({item.key: item.value for item in model.metadata_props} for model in (model, other))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and not key.startswith(_TOOLS_NOTES):
            yield FieldChange(f"metadata {key}", before.get(key, ""), now.get(key, ""))
