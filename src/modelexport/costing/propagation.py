"""From the shapes of a model's inputs to those of everything in it, and to the work of every node.

Functions are put in the place of their calls. Of an If, the branch counts that takes more; what a Loop or a Scan runs,
counts as often as it is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from modelexport.costing.axes import Axes, Shape, settled
from modelexport.costing.contents import computed_content
from modelexport.costing.inference import Partial, inferred
from modelexport.costing.shaping import made_shapes
from modelexport.costing.types import made_type
from modelexport.costing.values import MOST_NUMBERS, NOTHING, UNDEFINED, Operator, Unknown, Value
from modelexport.costing.work import Work, work_of
from modelexport.graph.index import MAIN, Graph, Node, bodies, walk_nodes
from modelexport.graph.inlining import inlined
from modelexport.graph.weights import has_data, storage_size
from modelexport.record.cost import ZERO, Kind
from modelexport.record.polynomial import Polynomial, Size, sizes_sum

ONCE = Polynomial.of(1)
# More rounds of a Loop than this are no number of rounds, but no limit.
_NO_LIMIT = 2**31 - 1
# What an open axis is taken to be where two branches are compared.
_USUAL = 64
# What they make is the weight that they read, in another form.
_SAME_WEIGHT = frozenset("Identity Transpose Reshape Cast DequantizeLinear Squeeze Unsqueeze Flatten".split())
_RANDOM = frozenset("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial".split())


@dataclass(frozen=True)
class Piece:
    """The work of one node in one place: a node of a function has one for each call.

    key     that of the node in the file
    calls   keys of the calls of functions around it, from the outside in
    reads   initializers that it reads
    makes   bytes; None if they are not known
    """

    key: str
    calls: tuple[str, ...]
    work: Work
    times: Polynomial
    reads: tuple[str, ...]
    product_weights: tuple[str, ...]
    makes: Polynomial | None


class Propagation:
    def __init__(self, proto: onnx.ModelProto, graph: Graph) -> None:
        found = inlined(graph)
        self._graph, self._origins = found.graph, found.origins
        self._protos = dict(walk_nodes(proto))
        self._functions = {f"{one.domain}::{one.name}": one for one in proto.functions}
        self._opsets = {opset.domain.replace("ai.onnx", ""): opset.version for opset in proto.opset_import}
        self._members: dict[str, list[Node]] = {}
        for node in self._graph.nodes:
            self._members.setdefault(node.graph, []).append(node)
        fed = [value for value in proto.graph.input if value.name not in graph.initializers]
        self.axes = Axes(fed)
        self._stated = dict(_stated(proto))
        self._values = dict(self._first(proto, fed))

    def pieces(self) -> list[Piece]:
        return self._run(MAIN, ONCE)

    def _first(self, proto: onnx.ModelProto, fed: Iterable[onnx.ValueInfoProto]) -> Iterator[tuple[str, Value]]:
        for name, tensor in self._graph.initializers.items():
            yield name, Value(tensor.dtype, tensor.shape, None, fixed=True, weight=name)
        for graph_id, body in _graphs(proto):
            for one in body.initializer:
                name = f"{graph_id}|{one.name}" if graph_id else one.name
                yield name, Value(one.data_type, tuple(one.dims), numbers_of(one), fixed=True, weight=name)
        for value in fed:
            yield value.name, Value(value.type.tensor_type.elem_type, self.axes.inputs[value.name])

    def _run(self, graph_id: str, times: Polynomial) -> list[Piece]:
        found: list[Piece] = []
        for node in self._members.get(graph_id, ()):
            held = self._graph.bodies.get(node.key, ())
            if held:
                found += self._controlled(node, held, times)
            else:
                found.append(self._plain(node, times))
        return found

    def _plain(self, node: Node, times: Polynomial) -> Piece:
        op, proto = self._operator(node)
        made = self._made(op, proto, node)
        self._values.update(zip(node.outputs, made, strict=False))
        work = work_of(op, [value.shape for value in made])
        return self._piece(node, work, times, _made_bytes(op, made, node))

    def _piece(self, node: Node, work: Work, times: Polynomial, makes: Polynomial | None) -> Piece:
        *calls, key = self._origins.get(node.key, (node.key,))
        reads = tuple(dict.fromkeys(name for name in node.inputs if name in self._graph.initializers))
        values = (self._values.get(name, NOTHING) for name in node.inputs)
        weights = tuple(dict.fromkeys(value.weight for value in values if value.weight))
        return Piece(key, tuple(calls), work, times, reads, weights, makes)

    def _operator(self, node: Node) -> tuple[Operator, onnx.NodeProto]:
        proto = self._protos[self._origins.get(node.key, (node.key,))[-1]]
        domain = "" if node.domain == "ai.onnx" else node.domain
        inputs = tuple(self._values.get(name, NOTHING) if name else None for name in node.inputs)
        attributes = dict(self._attributes(node, proto))
        opset = self._opsets.get(domain, 1)
        return Operator(node.op_type, domain, attributes, inputs, node.inputs, node.outputs, opset), proto

    def _attributes(self, node: Node, proto: onnx.NodeProto) -> Iterator[tuple[str, Any]]:
        for item in proto.attribute:
            given = self._given(item, self._origins.get(node.key, ())[:-1]) if item.ref_attr_name else item
            if given is not None and given.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                yield item.name, _plain_attribute(given)

    def _given(self, item: onnx.AttributeProto, calls: Sequence[str]) -> onnx.AttributeProto | None:
        """What the calls around a node of a function, from the inside out, say that an attribute of it is."""
        for place in range(len(calls) - 1, -1, -1):
            call = self._protos[calls[place]]
            function = self._functions.get(f"{call.domain}::{call.op_type}")
            defaults = () if function is None else function.attribute_proto
            wanted = item.ref_attr_name
            found = next((one for one in [*call.attribute, *defaults] if one.name == wanted), None)
            if found is None or not found.ref_attr_name:
                return found
            item = found
        return None

    def _made(self, op: Operator, proto: onnx.NodeProto, node: Node) -> list[Value]:
        if op.op_type == "Constant" and not op.domain:
            return [_constant(proto)]
        try:
            shapes: Sequence[Partial | None] = made_shapes(op) or ()
        except (Unknown, ValueError, IndexError, TypeError, ZeroDivisionError):
            shapes = ()
        types = [made_type(op, place) for place in range(len(op.outputs))]
        if len(shapes) < len(op.outputs):
            more = inferred(op, proto)
            shapes = [*shapes, *(shape for _, shape in more[len(shapes) :])]
            types = [dtype or old for old, (dtype, _) in zip(types, more, strict=False)] or types
        content = computed_content(op)
        weight = next((value.weight for value in op.inputs if value is not None), "")
        fixed = op.fixed and bool(op.inputs) and op.op_type not in _RANDOM
        return [
            Value(
                *self._checked(name, shapes[place] if place < len(shapes) else None, types[place]),
                content=content if place == 0 else None,
                fixed=fixed,
                weight=weight if place == 0 and op.op_type in _SAME_WEIGHT else "",
            )
            for place, name in enumerate(node.outputs)
        ]

    def _checked(self, name: str, shape: Partial | None, dtype: int) -> tuple[int, Shape | None]:
        """With what the file states, where nothing is known without; sizes that nobody knows get a name."""
        stated = self._stated.get(name)
        if stated is not None:
            dtype = stated.type.tensor_type.elem_type or dtype
            said = self.axes.stated(stated)
            if shape is None or said is None or len(said) != len(shape):
                shape = shape or said
            else:
                shape = tuple(two if one is None or (two is not None and self._is_open(one)) else one
                              for one, two in zip(shape, said, strict=True))  # fmt: skip
        if shape is None:
            return dtype, None
        return dtype, tuple(self._named(size, name, place) for place, size in enumerate(shape))

    def _is_open(self, size: Size) -> bool:
        return isinstance(size, Polynomial) and any(name in self.axes.found for name in size.axes)

    def _named(self, size: Size | None, name: str, place: int) -> Size:
        if size is not None:
            return settled(size)
        return self.axes.fresh(f"{name}[{place}]", f"axis {place} of {name}, which depends on what the model is fed")

    def _controlled(self, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
        kept = {"If": self._if, "Loop": self._loop, "Scan": self._scan}.get(node.op_type, self._other)
        pieces = kept(node, held, times)
        return [self._piece(node, Work(Kind.CONTROL, ZERO, ZERO), times, ZERO), *pieces]

    def _if(self, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
        branches = [self._run(body, times) for body in held]
        chosen = self._chosen(node, held, branches)
        results = [self._results(body) for body in held]
        for place, name in enumerate(node.outputs):
            self._values[name] = self._either([one[place] for one in results if place < len(one)], name)
        return [piece if place == chosen else _idle(piece, node)
                for place, branch in enumerate(branches) for piece in branch]  # fmt: skip

    def _chosen(self, node: Node, held: Sequence[str], branches: Sequence[Sequence[Piece]]) -> int:
        condition = self._values.get(node.inputs[0], NOTHING).content
        if condition is not None and condition.size == 1 and not isinstance(condition.reshape(-1)[0], Polynomial):
            wanted = "then_branch" if condition.reshape(-1)[0] else "else_branch"
            return next((place for place, body in enumerate(held) if body.endswith(f"|{wanted}")), 0)
        return max(range(len(branches)), key=lambda place: (_size_of(branches[place]), -place))

    def _either(self, values: Sequence[Value], name: str) -> Value:
        """What is true of a value that is one of several."""
        shapes = [value.shape for value in values]
        first = shapes[0] if shapes else None
        dtype = values[0].dtype if values else UNDEFINED
        if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
            return Value(*self._checked(name, None, dtype))
        columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
        agreed = tuple(column[0] if len(set(column)) == 1 else None for column in columns)
        return Value(*self._checked(name, agreed, dtype))

    def _results(self, body: str) -> list[Value]:
        return [self._values.get(name, NOTHING) for name in self._graph.yields[body]]

    def _loop(self, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
        body, rounds = held[0], self._rounds(node)
        counter, going, *carried = self._graph.takes[body]
        self._values[counter] = Value(onnx.TensorProto.INT64, ())
        self._values[going] = Value(onnx.TensorProto.BOOL, ())
        start = [self._values.get(name, NOTHING) for name in node.inputs[2:]]
        pieces, results = self._carried(body, carried, start, times * rounds)
        for place, name in enumerate(node.outputs):
            self._values[name] = results[place + 1] if place < len(carried) else _stacked(results[place + 1], rounds, 0)
        return pieces

    def _rounds(self, node: Node) -> Polynomial:
        given = self._values.get(node.inputs[0], NOTHING).content if node.inputs and node.inputs[0] else None
        found = None if given is None or given.size != 1 else given.reshape(-1)[0]
        if isinstance(found, Polynomial) or (isinstance(found, int) and 0 <= found < _NO_LIMIT):
            return Polynomial.of(found)
        return self._open_rounds(node)

    def _open_rounds(self, node: Node) -> Polynomial:
        return self.axes.fresh(
            f"rounds of {node.name or node.key}", f"how often the body of {node.op_type} {node.key} runs"
        )

    def _carried(
        self, body: str, names: Sequence[str], start: Sequence[Value], times: Polynomial
    ) -> tuple[list[Piece], list[Value]]:
        """Run a body whose results are what it reads in the next round; sizes that change in between are open."""
        first = self._results_after(body, names, start, times)
        before = [_shape_alone(value) for value in start]
        after = first[1][-len(self._graph.yields[body]) :][_before_carried(self._graph, body, names) :]
        merged = [self._either([old, new], name) if old.shape != new.shape else old
                  for old, new, name in zip(before, after, names, strict=False)]  # fmt: skip
        if all(one is old for one, old in zip(merged, before, strict=False)):
            return first
        return self._results_after(body, names, merged, times)

    def _results_after(
        self, body: str, names: Sequence[str], start: Sequence[Value], times: Polynomial
    ) -> tuple[list[Piece], list[Value]]:
        self._values.update(zip(names, map(_shape_alone, start), strict=False))
        return self._run(body, times), self._results(body)

    def _scan(self, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
        op, _ = self._operator(node)
        body, count = held[0], op.attribute("num_scan_inputs", 0)
        states = len(node.inputs) - count
        axes = op.attribute("scan_input_axes") or [0] * count
        rounds: Polynomial | None = None
        takes = self._graph.takes[body]
        for place, axis in enumerate(axes):
            value = self._values.get(node.inputs[states + place], NOTHING)
            if value.shape is None:
                self._values[takes[states + place]] = Value(value.dtype)
                continue
            axis %= len(value.shape)
            rounds = Polynomial.of(value.shape[axis]) if rounds is None else rounds
            self._values[takes[states + place]] = Value(value.dtype, value.shape[:axis] + value.shape[axis + 1 :])
        rounds = self._open_rounds(node) if rounds is None else rounds
        start = [self._values.get(name, NOTHING) for name in node.inputs[:states]]
        pieces, results = self._carried(body, takes[:states], start, times * rounds)
        to = op.attribute("scan_output_axes") or [0] * (len(node.outputs) - states)
        for place, name in enumerate(node.outputs):
            self._values[name] = (
                results[place] if place < states else _stacked(results[place], rounds, to[place - states])
            )
        return pieces

    def _other(self, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
        """An operator with bodies that is none of ONNX's: how often they run is open, and so is what it makes."""
        rounds = self._open_rounds(node)
        for name in node.outputs:
            self._values[name] = Value(*self._checked(name, None, UNDEFINED))
        return [piece for body in held for piece in self._run(body, times * rounds)]


def _before_carried(graph: Graph, body: str, names: Sequence[str]) -> int:
    """A Loop's body returns whether to go on before what it hands on; a Scan's does not."""
    return 1 if len(graph.takes[body]) == len(names) + 2 and graph.takes[body][2:] == tuple(names) else 0


def _shape_alone(value: Value) -> Value:
    return Value(value.dtype, value.shape)


def _stacked(value: Value, rounds: Polynomial, axis: int) -> Value:
    if value.shape is None:
        return Value(value.dtype)
    place = axis % (len(value.shape) + 1)
    return Value(value.dtype, (*value.shape[:place], settled(rounds), *value.shape[place:]))


def _idle(piece: Piece, node: Node) -> Piece:
    why = f"the other branch of {node.name or node.key} counts"
    none = Work(piece.work.kind, ZERO, ZERO, why)
    return replace(piece, work=none, times=ZERO, makes=ZERO)


def _size_of(pieces: Sequence[Piece]) -> tuple[int, int]:
    """How much it is, to compare it: products first, then everything else."""

    def usual(sizes: Iterable[Polynomial | None]) -> int:
        total = sizes_sum(size for size in sizes if size is not None)
        return total.at(dict.fromkeys(total.axes, _USUAL)).value or 0

    flops = usual(piece.work.flops * piece.times for piece in pieces if piece.work.flops is not None)
    return flops, usual(piece.work.other * piece.times for piece in pieces if piece.work.other is not None)


def _made_bytes(op: Operator, made: Sequence[Value], node: Node) -> Polynomial | None:
    if op.op_type == "Constant" or (made and all(value.fixed for value in made)):
        return ZERO
    sizes = [_bytes(value) for value, name in zip(made, node.outputs, strict=False) if name]
    return None if None in sizes else sizes_sum(size for size in sizes if size is not None)


def _bytes(value: Value) -> Polynomial | None:
    width = storage_size(onnx.TensorProto(data_type=value.dtype, dims=[8]))
    if value.shape is None or not width:
        return None
    total = Polynomial.of(width)
    for size in value.shape:
        total *= size
    return -(-total // 8)


def _constant(proto: onnx.NodeProto) -> Value:
    for item in proto.attribute:
        if item.name == "value":
            return Value(item.t.data_type, tuple(item.t.dims), numbers_of(item.t), fixed=True)
        if item.name in ("value_int", "value_ints", "value_float", "value_floats"):
            given = np.asarray(onnx.helper.get_attribute_value(item))
            dtype = onnx.TensorProto.INT64 if "int" in item.name else onnx.TensorProto.FLOAT
            return Value(dtype, given.shape, given.astype(object) if given.size <= MOST_NUMBERS else None, fixed=True)
    return Value(fixed=True)


def numbers_of(tensor: onnx.TensorProto) -> np.ndarray | None:
    """The content of a small tensor that lies in the file itself."""
    count = int(np.prod(tensor.dims, dtype=np.int64)) if tensor.dims else 1
    outside = tensor.data_location == onnx.TensorProto.EXTERNAL
    if (
        outside
        or count > MOST_NUMBERS
        or tensor.data_type == onnx.TensorProto.STRING
        or not (has_data(tensor) or not count)
    ):
        return None
    try:
        return onnx.numpy_helper.to_array(tensor).astype(object)
    except (ValueError, TypeError, KeyError):
        return None


def _plain_attribute(item: onnx.AttributeProto) -> Any:
    if item.type == onnx.AttributeProto.TENSOR:
        found = numbers_of(item.t)
        return None if found is None else onnx.numpy_helper.to_array(item.t)
    value = onnx.helper.get_attribute_value(item)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _graphs(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The main graph and all bodies, each with its id."""
    yield MAIN, proto.graph
    for key, node in walk_nodes(proto):
        yield from bodies(node, key)


def _stated(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.ValueInfoProto]]:
    for graph_id, graph in _graphs(proto):
        for value in [*graph.value_info, *graph.output]:
            yield f"{graph_id}|{value.name}" if graph_id else value.name, value


def shapes_of(values: Mapping[str, Value]) -> dict[str, Shape]:
    return {name: value.shape for name, value in values.items() if value.shape is not None}
