"""Types and shapes of the main graph's values, as the file states them or as onnx infers them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
import onnx.shape_inference

from modelexport.graph.axis_sizes import Dims, dims_of


@dataclass(frozen=True, slots=True)
class ValueType:
    """`dims` is None if not even the number of axes is known; an axis of which nothing is known is an empty text."""

    dtype: str
    dims: Dims | None


def value_types(proto: onnx.ModelProto) -> dict[str, ValueType]:
    """Of inputs, outputs, initializers and what nodes make; values of which nothing is known are left out."""
    graph = proto.graph
    found = dict(_types([*graph.value_info, *graph.input, *graph.output]))
    made = [output for node in graph.node for output in node.output if output]
    if any(name not in found for name in made):
        found = {**dict(_types(_inferred(proto))), **found}
    stored = {item.name: ValueType(_type_name(item.data_type), tuple(item.dims)) for item in graph.initializer}
    return {**found, **stored}


def _inferred(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # noqa: BLE001 - it has no error class of its own, and a shape can be done without
        return
    yield from inferred.graph.value_info


def _types(values: Iterable[onnx.ValueInfoProto]) -> Iterator[tuple[str, ValueType]]:
    for value in values:
        if value.type.HasField("tensor_type"):
            yield value.name, ValueType(_type_name(value.type.tensor_type.elem_type), _known(dims_of(value)))


def _known(dims: Dims | None) -> Dims | None:
    """onnx names axes of which it knows nothing; such a name says nothing to a reader either."""
    return dims and tuple("" if str(dim).startswith(_INVENTED) else dim for dim in dims)


_INVENTED = "unk__"


def _type_name(number: int) -> str:
    return _NAMES.get(number, str(number))


_NAMES: Mapping[int, str] = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
