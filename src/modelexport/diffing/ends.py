"""What two models are given and return: which of these are the same, and what is different about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from modelexport.diffing.attributes import opsets_of
from modelexport.graph.value_types import type_name
from modelexport.record.changes import FieldChange, Renamed

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


def value_type(value: onnx.ValueInfoProto) -> ValueType | None:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return None
    dims = tuple(_dim(dim) for dim in kind.shape.dim) if kind.HasField("shape") else None
    return ValueType(kind.elem_type, dims)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    return dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None


def shapes_differ(one: ValueType, other: ValueType) -> bool:
    """Names of sides are names: they are no difference."""
    if one.dims is None or other.dims is None:
        return False
    return len(one.dims) != len(other.dims) or any(map(_sides_differ, one.dims, other.dims))


def _sides_differ(one: int | str | None, other: int | str | None) -> bool:
    if one is None or other is None:
        return False
    return one != other if isinstance(one, int) and isinstance(other, int) else type(one) is not type(other)


def types_differ(one: ValueType, other: ValueType) -> bool:
    return bool(one.dtype and other.dtype and one.dtype != other.dtype)


_Types = Mapping[str, ValueType | None]


def named_alike(one: _Types, other: _Types) -> dict[str, str]:
    return {name: name for name in one if name in other}


def paired_ends(one: _Types, other: _Types, known: Mapping[str, str]) -> dict[str, str]:
    """What is known; what is left over by type and order."""
    found = dict(known)
    left = [name for name in one if name not in found]
    taken = set(found.values())
    spare = [name for name in other if name not in taken]
    if len(left) == len(spare):
        return {**found, **dict(zip(left, spare, strict=True))}
    for name in left:
        same = next((mine for mine in spare if _are_alike(one[name], other[mine])), None)
        if same is not None:
            found[name] = same
            spare.remove(same)
    return found


def _are_alike(one: ValueType | None, other: ValueType | None) -> bool:
    if one is None or other is None:
        return one is other
    return not types_differ(one, other) and not shapes_differ(one, other)


def end_changes(what: str, one: _Types, other: _Types, pairs: Mapping[str, str]) -> Iterator[FieldChange]:
    """what  input or output"""
    for name, kind in one.items():
        if name not in pairs:
            yield FieldChange(f"{what} {name}", str(kind or "present"), "")
            continue
        now = other[pairs[name]]
        if kind is not None and now is not None and (types_differ(kind, now) or shapes_differ(kind, now)):
            yield FieldChange(f"{what} {name}", str(kind), str(now))
    known = set(pairs.values())
    for name, kind in other.items():
        if name not in known:
            yield FieldChange(f"{what} {name}", "", str(kind or "present"))
    order = [pairs[name] for name in one if name in pairs]
    now_order = [name for name in other if name in known]
    if what == "output" and order != now_order:
        yield FieldChange("order of outputs", ", ".join(order), ", ".join(now_order))


def renamed_ends(what: str, pairs: Mapping[str, str]) -> Iterator[Renamed]:
    return (Renamed(what, name, now) for name, now in pairs.items() if name != now)


# Tools note things about themselves under such keys.
_TOOLS_NOTES = ("pkg.", "onnx.infer", "onnx.quant", "onnxsim.")


def model_changes(
    one: onnx.ModelProto, other: onnx.ModelProto, used: Sequence[frozenset[str]]
) -> Iterator[FieldChange]:
    """Opsets of domains that are used, and metadata that is not a tool's own.

    used  the domains of the operators of both
    """
    mine, theirs = opsets_of(one), opsets_of(other)
    for domain in sorted(mine.keys() & theirs.keys()):
        if mine[domain] != theirs[domain] and (not domain or any(domain in domains for domains in used)):
            yield FieldChange(f"opset {domain or 'ai.onnx'}", str(mine[domain]), str(theirs[domain]))
    before, now = ({item.key: item.value for item in model.metadata_props} for model in (one, other))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and not key.startswith(_TOOLS_NOTES):
            yield FieldChange(f"metadata {key}", before.get(key, ""), now.get(key, ""))
