"""What is known of the values of a file, by name: first of its inputs and weights, then of more and more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from modelexport.costing.axes import Axes, Shape, Unknown, sensible, settled
from modelexport.costing.constants import numbers_of
from modelexport.costing.inference import Partial
from modelexport.costing.values import NOTHING, UNDEFINED, Value
from modelexport.graph.index import MAIN, Graph, bodies, value_id, walk_nodes
from modelexport.record.polynomial import Polynomial, Size


class Known:
    def __init__(self, proto: onnx.ModelProto, graph: Graph, at: Mapping[str, int]) -> None:
        fed = [value for value in proto.graph.input if value.name not in graph.initializers]
        self.axes = Axes(fed, at)
        self._stated = dict(_stated(proto))
        self._values: dict[str, Value] = dict(_weights(proto))
        for value in fed:
            self._values[value.name] = Value(value.type.tensor_type.elem_type, self.axes.inputs[value.name])

    def __getitem__(self, name: str) -> Value:
        return self._values.get(name, NOTHING)

    def __setitem__(self, name: str, value: Value) -> None:
        self._values[name] = value

    def all(self, names: Sequence[str]) -> list[Value]:
        return [self[name] for name in names]

    def shaped(self, name: str, shape: Partial | None, dtype: int) -> tuple[int, Shape | None]:
        """Type and shape with what the file states, where nothing is known without; what nobody knows gets a name."""
        stated = self._stated.get(name)
        if stated is not None:
            dtype = stated.type.tensor_type.elem_type or dtype
            shape = self._joined(shape, self.axes.stated(stated))
        # A size below 0 comes from inputs that the model cannot run on.
        if shape is None or any(isinstance(size, int) and size < 0 for size in shape):
            return dtype, None
        return dtype, tuple(self._named(size, name, place) for place, size in enumerate(shape))

    def _joined(self, shape: Partial | None, stated: Partial | None) -> Partial | None:
        if shape is None or stated is None or len(stated) != len(shape):
            return stated if shape is None else shape
        pairs = zip(shape, stated, strict=True)
        return tuple(two if one is None or (two is not None and self._is_open(one)) else one for one, two in pairs)

    def _is_open(self, size: Size) -> bool:
        return isinstance(size, Polynomial) and any(name in self.axes.found for name in size.axes)

    def _named(self, size: Size | None, name: str, place: int) -> Size:
        label, source = f"{name}[{place}]", f"axis {place} of {name}"
        if size is None:
            return self.axes.fresh(label, f"{source}, which depends on what the model is fed")
        try:
            return settled(sensible(size))
        except Unknown:
            return self.axes.fresh(label, f"{source}, which is too long a formula")

    def either(self, values: Sequence[Value], name: str) -> Value:
        """What is true of a value that is one of several; sizes that differ get a name."""
        shapes = [value.shape for value in values]
        first = shapes[0] if shapes else None
        dtype = values[0].dtype if values else UNDEFINED
        if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
            return Value(*self.shaped(name, None, dtype))
        columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
        agreed = tuple(column[0] if len(set(column)) == 1 else None for column in columns)
        return Value(*self.shaped(name, agreed, dtype))


def _weights(proto: onnx.ModelProto) -> Iterator[tuple[str, Value]]:
    for graph_id, graph in _graphs(proto):
        for tensor in graph.initializer:
            name = value_id(graph_id, tensor.name)
            yield name, Value(tensor.data_type, tuple(tensor.dims), numbers_of(tensor), fixed=True, weight=name)


def _stated(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.ValueInfoProto]]:
    for graph_id, graph in _graphs(proto):
        for value in [*graph.value_info, *graph.output]:
            yield value_id(graph_id, value.name), value


def _graphs(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The main graph and all bodies, each with its id."""
    yield MAIN, proto.graph
    for key, node in walk_nodes(proto):
        yield from bodies(node, key)
