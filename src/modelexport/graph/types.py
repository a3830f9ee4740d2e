"""Types and shapes of a file's values: as it states them, or inferred without reading a weight; and sizes of open axes.

    ValueTypes(file).dims("logits")        ("batch", 1000)     names of open axes; "" for an axis without a name
    dims_of(value.type)                    the same of one declaration
    AxisSizes(inputs, {"ids": (2, 16)})    shapes to make inputs of: what is given decides axes of the same name
    value_sizes(model, feed)               bytes of each value, before anything is run

An axis can be arithmetic on others (`past + 1`); `computed_size` evaluates it. In terms of polynomials, which `cost`
needs, see `inspect/cost/values.py`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache, cached_property

import numpy as np
import onnx

from modelexport.errors import InputError
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.index import FLOATS, MAIN, function_id, node_key, subgraphs_with_ids, value_id
from modelexport.graph.inference import infer_shapes
from modelexport.graph.soundness import checkable
from modelexport.record.package import Axis

Types = dict[str, onnx.TypeProto]
# Integers with more axes than this are data, such as token ids; with fewer they may be sizes.
_MOST_AXES_OF_SIZES = 1
# What ONNX's shape inference calls an axis of which it knows nothing: unk__0, unk__1, …
_INVENTED = "unk__"
_NAMES = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
_SIZES = frozenset((onnx.TensorProto.INT64, onnx.TensorProto.INT32))


class ValueTypes:
    """By value id, as an index has them. What nobody states is inferred, once, when it is first asked for."""

    def __init__(self, file: ModelFile) -> None:
        self._file = file

    def get(self, value: str) -> onnx.TypeProto | None:
        """Type and shape; None if they cannot be found out."""
        stated = self._stated.get(value)
        if stated is not None and is_shaped(stated):
            return stated
        return self._inferred.get(value) or stated

    def dtype(self, value: str) -> int:
        """Of its elements, as ONNX numbers them; 0 if it is not known."""
        kind = self.get(value)
        return onnx.TensorProto.UNDEFINED if kind is None else kind.tensor_type.elem_type

    def is_float(self, value: str) -> bool:
        return self.dtype(value) in FLOATS

    def may_be_sizes(self, value: str) -> bool:
        """Whether it has the looks of a shape, or of a part of one: an integer, or a row of them."""
        kind = self.get(value)
        if kind is None or kind.tensor_type.elem_type not in _SIZES:
            return False
        return is_shaped(kind) and len(kind.tensor_type.shape.dim) <= _MOST_AXES_OF_SIZES

    def dims(self, value: str) -> tuple[int | str, ...] | None:
        """Sizes and names of axes; an axis of which nothing is known is an empty name."""
        kind = self.get(value)
        return None if kind is None else dims_of(kind)

    @cached_property
    def _stated(self) -> Types:
        return dict(stated_types(self._file.proto))

    @cached_property
    def _inferred(self) -> Types:
        inferred = infer_shapes(checkable(self._file))
        return {} if inferred is None else dict(stated_types(inferred))


def is_shaped(kind: onnx.TypeProto) -> bool:
    """Whether a type says how many axes there are; sequences and optionals have none."""
    return not kind.HasField("tensor_type") or kind.tensor_type.HasField("shape")


def type_name(dtype: int) -> str:
    """`float16`; a number for a type that this version of ONNX does not know."""
    return _NAMES.get(dtype, f"type {dtype}")


def float_types(proto: onnx.ModelProto) -> frozenset[int]:
    """The types of floats in a file, as far as it states them: weights, inputs, outputs and values in between."""
    return FLOATS & {kind.tensor_type.elem_type for _, kind in stated_types(proto)}


def stated_types(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TypeProto]]:
    """By value id, what weights and declarations say."""
    yield from _graph_types(proto.graph, MAIN)
    for function in proto.functions:
        yield from _values(function.value_info, function_id(function))


def _graph_types(graph: onnx.GraphProto, graph_id: str) -> Iterator[tuple[str, onnx.TypeProto]]:
    for tensor in graph.initializer:
        yield value_id(graph_id, tensor.name), onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    for node in graph.node:
        for body_id, body in subgraphs_with_ids(node, node_key(node, graph_id)):
            yield from _graph_types(body, body_id)
    yield from _values([*graph.value_info, *graph.input, *graph.output], graph_id)


def _values(values: Iterable[onnx.ValueInfoProto], graph_id: str) -> Iterator[tuple[str, onnx.TypeProto]]:
    for value in values:
        if value.HasField("type") and value.type.WhichOneof("value"):
            yield value_id(graph_id, value.name), value.type


Shape = tuple[int, ...]
Dims = tuple[int | str, ...]

# A batch of one always fits; a signal or a picture must be long enough for what makes it shorter.
_BATCH, _SEQUENCE, _SIGNAL, _PICTURE = 1, 16, 4096, 224
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def dims_of(kind: onnx.TypeProto, *, zero_is_open: bool = False) -> Dims | None:
    """Sizes, and the names of those that are open, empty for no name; None if not even their number is known.

    zero_is_open  an axis of size 0 is one that nobody has set, as in files of old exporters: a model can be fed no such
                  input. Elsewhere 0 is a size: a tensor without elements
    """
    shape = kind.tensor_type.shape if kind.tensor_type.HasField("shape") else None
    return None if shape is None else tuple(_axis(dim, zero_is_open=zero_is_open) for dim in shape.dim)


def _axis(dim: onnx.TensorShapeProto.Dimension, *, zero_is_open: bool) -> int | str:
    if dim.HasField("dim_value") and (dim.dim_value > 0 or not zero_is_open):
        return dim.dim_value
    return "" if dim.dim_param.startswith(_INVENTED) else dim.dim_param


def input_dims(value: onnx.ValueInfoProto) -> Dims | None:
    return dims_of(value.type, zero_is_open=True)


def fill_sizes(proto: onnx.ModelProto, sizes: Mapping[str, Mapping[int, int]]) -> onnx.ModelProto:
    """The model with sizes for axes of inputs that it leaves open, and for all axes of the same name.

    past [batch, 2, past_length, head], {"past": {3: 16}}     past [batch, 2, past_length, 16]
    """
    inputs = {value.name: input_dims(value) or () for value in proto.graph.input}
    filled = {
        (name, axis): size
        for name, axes in sizes.items()
        for axis, size in axes.items()
        if axis < len(inputs.get(name, ())) and isinstance(inputs[name][axis], str)
    }
    if not filled:
        return proto
    named = {inputs[name][axis]: size for (name, axis), size in filled.items() if inputs[name][axis]}
    model = deepcopy(proto)
    for value in [*model.graph.input, *model.graph.output]:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            size = filled.get((value.name, axis)) or (named.get(dim.dim_param) if dim.dim_param else None)
            if size is not None and not dim.dim_value:
                dim.dim_value = size
    return model


def dynamic_axes_of(model: onnx.ModelProto, axes: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
    """Those of the axes that the model's inputs really leave open."""
    dims = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    dynamic = {
        name: {
            axis: label
            for axis, label in wanted.items()
            if axis < len(dims[name]) and dims[name][axis].HasField("dim_param")
        }
        for name, wanted in axes.items()
        if name in dims
    }
    return {name: kept for name, kept in dynamic.items() if kept}


def fits(dims: Dims, shape: Sequence[int]) -> bool:
    """Whether a shape has the sizes that are fixed."""
    pairs = zip(dims, shape, strict=False)
    return len(dims) == len(shape) and all(isinstance(dim, str) or dim == size for dim, size in pairs)


# Axes of models that generate: a mask is as long as the cache and what is new together. Ours, and those of others.
_SUMS = {
    Axis.TOTAL: f"{Axis.PAST} + {Axis.SEQUENCE}",
    "total_sequence_length": "past_sequence_length + sequence_length",
}


class AxisSizes:
    """Shapes for inputs. Axes of one name have one size, which those inputs decide whose shape is given."""

    def __init__(self, inputs: Mapping[str, onnx.ValueInfoProto], given: Mapping[str, Shape]) -> None:
        """`given` shapes fit their inputs."""
        self._inputs = inputs
        self._given: dict[str, int] = {}
        for name, shape in given.items():
            for dim, size in zip(input_dims(inputs[name]) or (), shape, strict=False):
                if isinstance(dim, str) and dim and self._given.setdefault(dim, size) != size:
                    sizes = f"has the size {size} in {name!r} and {self._given[dim]} in another input"
                    raise InputError(f"the axis {dim!r} {sizes}", "Axes of one name have one size.")
        self._usual = self._usual_sizes()

    def shape(self, name: str) -> Shape | None:
        """None if the file does not even say how many axes there are."""
        value = self._inputs[name]
        dims = input_dims(value)
        if dims is None:
            return None
        return tuple(self._size(dim, _usual(value, axis)) for axis, dim in enumerate(dims))

    def _usual_sizes(self) -> dict[str, int]:
        """An axis that an integer input has too is a sequence, and no signal."""
        sizes: dict[str, int] = {}
        for value in self._inputs.values():
            for axis, dim in enumerate(input_dims(value) or ()):
                if isinstance(dim, str) and dim:
                    sizes[dim] = min(sizes.get(dim, _SIGNAL), _usual(value, axis))
        return sizes

    def _size(self, dim: int | str, usual: int) -> int:
        if isinstance(dim, int):
            return dim
        if not dim:
            return usual
        if dim in self._given:
            return self._given[dim]
        # A name can be arithmetic on other axes, never on itself.
        known = {name: size for name, size in {**self._usual, **self._given}.items() if name != dim}
        return computed_size(_SUMS.get(dim, dim), known) or self._usual[dim]


def _usual(value: onnx.ValueInfoProto, axis: int) -> int:
    dims = input_dims(value) or ()
    element = value.type.tensor_type.elem_type  # 0 where the file does not say
    exact = bool(element) and onnx.helper.tensor_dtype_to_np_dtype(element).kind in "biu"
    if axis == 0 and len(dims) > 1:
        return _BATCH
    if exact:
        return _SEQUENCE
    if len(dims) > 3 and axis >= len(dims) - 2 and all(isinstance(dim, str) for dim in dims[-2:]):
        return _PICTURE
    return _SIGNAL if 1 < len(dims) <= 3 and axis == len(dims) - 1 else _SEQUENCE


def computed_size(dim: str, sizes: Mapping[str, int]) -> int | None:
    """The size of an axis whose name is that of a size, or a sum or product of them (`past + 1`)."""
    term = None if dim in sizes else _term(dim)
    try:
        size = sizes[dim] if term is None else _value(term, sizes)
    except (KeyError, ZeroDivisionError):
        return None
    return size if size > 0 else None


@cache
def _term(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _value(term: ast.expr, sizes: Mapping[str, int]) -> int:
    """Raises KeyError for what is no arithmetic on sizes."""
    if isinstance(term, ast.Name):
        return sizes[term.id]
    if isinstance(term, ast.Constant) and isinstance(term.value, int):
        return term.value
    if isinstance(term, ast.BinOp):
        return int(_OPERATIONS[type(term.op)](_value(term.left, sizes), _value(term.right, sizes)))
    raise KeyError(ast.dump(term))


def value_sizes(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Of what the main graph's nodes make, those values whose shape follows from the inputs that the graph is fed.

    Shapes are inferred. Where that is not possible, the file itself may state them, in terms of the axes of its inputs.
    """
    sizes = dict(_sizes(proto.graph.value_info, dict(_axes(proto, feed))))
    sizes.update(_sizes(_inferred(proto, feed), {}))
    return {name: sizes[name] for node in proto.graph.node for name in node.output if name in sizes}


def _axes(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> Iterator[tuple[str, int]]:
    for value in proto.graph.input:
        if value.name in feed:
            pairs = zip(input_dims(value) or (), feed[value.name].shape, strict=False)
            yield from ((dim, size) for dim, size in pairs if isinstance(dim, str) and dim)


def _inferred(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> Iterator[onnx.ValueInfoProto]:
    model = deepcopy(proto)
    del model.graph.value_info[:]  # names of axes that are stated there would stay names
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.ClearField("shape")
        if value.name in feed:
            dims = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in feed[value.name].shape]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
    inferred = infer_shapes(model)
    if inferred is not None:
        yield from inferred.graph.value_info
        yield from inferred.graph.output


def _sizes(values: Iterable[onnx.ValueInfoProto], axes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for value in values:
        kind = value.type.tensor_type
        if kind.elem_type and kind.HasField("shape"):
            dims = [
                dim.dim_value if dim.HasField("dim_value") else computed_size(dim.dim_param, axes)
                for dim in kind.shape.dim
            ]
            if None not in dims:
                width = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
                yield value.name, width * math.prod(dim for dim in dims if dim is not None)
