"""Value table: what is known of the values of a file, by name; first of its inputs and weights, then of more and more.

Three sources say what a value is, in this order: the rules of the operator that makes it, ONNX's own inference of that
one node (https://onnx.ai/onnx/api/shape_inference.html) with open sizes put in as names, and what the file states of
it. A size that none of them knows gets a name of its own, after the value and the axis (`nonzero[1]`): it depends on
what the model is fed.

    ids: [batch, seq]   NonZero   (2, ?)           ONNX's inference knows the 2
    the file states     [2, n]                     `n` is no axis of an input: it says nothing
    table               (2, nonzero[1])            what comes after is counted in terms of nonzero[1]

Inference is asked for one node at a time and never for the file: that would copy all weights, and everything behind an
operator that ONNX does not know would be unknown, where our rules may know it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference

from modelexport.graph.file.weights import has_data
from modelexport.graph.index import MAIN, Graph, subgraphs_with_ids, value_id, walk_nodes
from modelexport.graph.protos import find_attribute
from modelexport.inspect.cost.values import (
    MOST_NUMBERS,
    NOTHING,
    UNDEFINED,
    Axes,
    OperatorCall,
    Shape,
    Unknown,
    Value,
    as_number,
    limit_length,
)
from modelexport.record.polynomial import Polynomial, Size

Partial = tuple[Size | None, ...]
_INT64 = onnx.TensorProto.INT64
_LARGEST_VERSION = 2**31 - 1


def infer_outputs(op: OperatorCall, node: onnx.NodeProto) -> list[tuple[int, Partial | None]]:
    """Type and shape of each output; None where a size is not known, nothing if ONNX does not know the operator."""
    schema = _schema(op.op_type, op.opset, op.domain)
    if schema is None or any(value is not None and value.dtype == UNDEFINED for value in op.inputs):
        return []
    names: dict[str, Size] = {}
    inputs = [(name, value) for name, value in zip(node.input, op.inputs, strict=False) if name and value is not None]
    types = {name: _type_with_names(value, names) for name, value in inputs}
    data = {name: tensor for name, value in inputs if (tensor := _data(value)) is not None}
    opsets, ir = [onnx.helper.make_opsetid(op.domain, op.opset)], onnx.IR_VERSION
    try:
        result = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=opsets, ir_version=ir)
    except Exception:  # noqa: BLE001 - it has no error class of its own, and a shape may remain unknown
        return []
    return [_read_type(result.get(name), names) for name in node.output]


@cache
def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    """The newest that is not newer than the opset; None for operators of runtimes and of users."""
    try:
        # Files state any number, and ONNX takes those of 32 bits.
        return onnx.defs.get_schema(op_type, min(max(opset, 0), _LARGEST_VERSION), domain)
    except onnx.defs.SchemaError:
        return None


def _type_with_names(value: Value, names: dict[str, Size]) -> onnx.TypeProto:
    """Open sizes go in as names, by which `names` finds them again in what comes out. Equal sizes have one name."""
    shape = value.shape
    names.update({size.expression: size for size in shape or () if isinstance(size, Polynomial)})
    dims = None if shape is None else [size if isinstance(size, int) else size.expression for size in shape]
    return onnx.helper.make_tensor_type_proto(value.dtype, dims)


def _data(value: Value) -> onnx.TensorProto | None:
    """Inference reads wanted shapes, axes and repeats, all of which are int64. It cannot read polynomials."""
    if value.content is None or value.dtype != _INT64 or value.shape is None:
        return None
    numbers = value.content.reshape(-1).tolist()
    if not all(isinstance(number, int) for number in numbers):
        return None
    return onnx.helper.make_tensor("", _INT64, list(value.content.shape), numbers)


def _read_type(stated: onnx.TypeProto | None, names: dict[str, Size]) -> tuple[int, Partial | None]:
    """A name that inference made up (`unk__0`) is not in `names`, and says nothing."""
    if stated is None or not stated.HasField("tensor_type"):
        return UNDEFINED, None
    kind = stated.tensor_type
    if not kind.HasField("shape"):
        return kind.elem_type, None
    dims = [dim.dim_value if dim.HasField("dim_value") else names.get(dim.dim_param) for dim in kind.shape.dim]
    return kind.elem_type, tuple(dims)


# Attributes of a Constant that are no tensors, and the types that they make
# (https://onnx.ai/onnx/operators/onnx__Constant.html).
_PLAIN_VALUES = {
    **dict.fromkeys(("value_int", "value_ints"), onnx.TensorProto.INT64),
    **dict.fromkeys(("value_float", "value_floats"), onnx.TensorProto.FLOAT),
}


def numbers_of(tensor: onnx.TensorProto) -> np.ndarray | None:
    """The content of a small tensor, if it is not in another file."""
    count = math.prod(tensor.dims)
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.data_type == onnx.TensorProto.STRING:
        return None
    # A file that was read without its weights has tensors of a shape and no data.
    if count > MOST_NUMBERS or (count and not has_data(tensor)):
        return None
    try:
        return onnx.numpy_helper.to_array(tensor).astype(object)
    except (ValueError, TypeError, KeyError):
        return None


def constant_of(proto: onnx.NodeProto) -> Value:
    """What a Constant makes."""
    item = find_attribute(proto, "value", *_PLAIN_VALUES)
    if item is None or item.ref_attr_name:
        return Value(fixed=True)
    if item.name == "value":
        return Value(item.t.data_type, tuple(item.t.dims), numbers_of(item.t), fixed=True)
    numbers = np.asarray(onnx.helper.get_attribute_value(item))
    content = numbers.astype(object) if numbers.size <= MOST_NUMBERS else None
    return Value(_PLAIN_VALUES[item.name], numbers.shape, content, fixed=True)


def plain_attribute(item: onnx.AttributeProto) -> Any:
    """Small tensors as arrays, texts as texts."""
    if item.type == onnx.AttributeProto.TENSOR:
        return None if numbers_of(item.t) is None else onnx.numpy_helper.to_array(item.t)
    value = onnx.helper.get_attribute_value(item)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class ValueTable:
    """By value id. A body that runs twice writes its values twice: the last round is what later nodes read."""

    def __init__(self, proto: onnx.ModelProto, graph: Graph, at: Mapping[str, int]) -> None:
        fed = [value for value in proto.graph.input if value.name not in graph.initializers]
        self.axes = Axes(fed, at)
        self._stated: dict[str, onnx.ValueInfoProto] = {}
        self._values: dict[str, Value] = {}
        for graph_id, body in _graphs(proto):
            self._stated |= {value_id(graph_id, value.name): value for value in [*body.value_info, *body.output]}
            for tensor in body.initializer:
                name, dims = value_id(graph_id, tensor.name), tuple(tensor.dims)
                self._values[name] = Value(tensor.data_type, dims, numbers_of(tensor), fixed=True, weight=name)
        for value in fed:
            self._values[value.name] = Value(value.type.tensor_type.elem_type, self.axes.inputs[value.name])

    def __getitem__(self, name: str) -> Value:
        return self._values.get(name, NOTHING)

    def __setitem__(self, name: str, value: Value) -> None:
        self._values[name] = value

    def all(self, names: Sequence[str]) -> list[Value]:
        return [self[name] for name in names]

    def with_stated(self, name: str, shape: Partial | None, dtype: int) -> tuple[int, Shape | None]:
        """Type and shape with what the file states, where nothing is known without; what nobody knows gets a name."""
        stated = self._stated.get(name)
        if stated is not None:
            dtype = stated.type.tensor_type.elem_type or dtype
            shape = self._merge_stated(shape, self.axes.stated(stated))
        # A size below 0 comes from inputs that the model cannot run on.
        if shape is None or any(isinstance(size, int) and size < 0 for size in shape):
            return dtype, None
        return dtype, tuple(self._named_size(size, name, axis) for axis, size in enumerate(shape))

    def _merge_stated(self, shape: Partial | None, stated: Partial | None) -> Partial | None:
        """What is computed is believed before what is stated, unless it is only that nobody knows."""
        if shape is None or stated is None or len(stated) != len(shape):
            return stated if shape is None else shape
        # Tools that change a graph leave old shapes in it; but they may know the length of a NonZero.
        dependent = self.axes.dependent.keys()
        is_open = [isinstance(size, Polynomial) and not dependent.isdisjoint(size.axes) for size in shape]
        sizes = zip(shape, stated, is_open, strict=True)
        return tuple(
            known if size is None or (known is not None and unclear) else size for size, known, unclear in sizes
        )

    def _named_size(self, size: Size | None, name: str, axis: int) -> Size:
        """The size, or a name for it. A name keeps what comes after countable, in terms of this size."""
        label, source = f"{name}[{axis}]", f"axis {axis} of {name}"
        if size is None:
            return self.axes.fresh(label, f"{source}, which depends on what the model is fed")
        try:
            return as_number(limit_length(size))
        except Unknown:
            return self.axes.fresh(label, f"{source}, which is too long a formula")

    def merge_values(self, values: Sequence[Value], name: str) -> Value:
        """What is true of a value that is one of several; sizes that differ get a name."""
        shapes = [value.shape for value in values]
        first = shapes[0] if shapes else None
        dtype = values[0].dtype if values else UNDEFINED
        if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
            return Value(*self.with_stated(name, None, dtype))
        columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
        agreed = tuple(column[0] if len(set(column)) == 1 else None for column in columns)
        return Value(*self.with_stated(name, agreed, dtype))


def _graphs(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The main graph and all bodies, each with its id."""
    yield MAIN, proto.graph
    for key, node in walk_nodes(proto):
        yield from subgraphs_with_ids(node, key)
