"""Sample inputs: feeds for an ONNX file, made from the file alone or read from .npz archives.

Types and fixed sizes are the graph's own; axes of one name have one size. What the numbers may be follows from what the
graph does with them, never from the name of an input. Nothing here needs torch: two files are compared without it.

    graph(ids: int64 [batch, seq], mask: int64 [batch, seq], x: float [batch, 4])      ids ──► Gather(table 30522x384)
    make_feed(…)    ids   random, 0 to 30521           mask  ones          x     normal        all with batch 2, seq 8

Index bounds: which inputs are indices, and how large they may be. Found from dataflow alone: an input that reaches the
index of a lookup (https://onnx.ai/onnx/operators/onnx__Gather.html), through operators that only arrange or cast it,
must stay below the number of rows that the table has.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from modelexport.capture.onnxruntime.arrays import read_arrays
from modelexport.capture.onnxruntime.session import bind_inputs, format_shape, required_inputs
from modelexport.errors import InputError, quote_argument
from modelexport.graph.index import Graph, Node, function_id, value_id, walk_nodes
from modelexport.graph.operators import ELEMENTS_ONLY, Trait, having
from modelexport.graph.protos import find_attribute
from modelexport.graph.types import AxisSizes, Shape, fits, input_dims

# Their outputs hold elements of these inputs, and no others that matter.
_ARRANGING = {**dict.fromkeys(ELEMENTS_ONLY, (0,)), "Where": (1, 2)}
# A table that is cast or dequantized before the lookup has as many rows as what is stored.
_SAME_TABLE = having(Trait.PASS_THROUGH | Trait.SAME_SHAPE)
# Lookups: the position of the index, the position of the table. ONNX Runtime fuses some with what comes after:
# https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
_LOOKUPS = {
    "Gather": ((1, 0),),
    "GatherElements": ((1, 0),),
    "GatherBlockQuantized": ((1, 0),),
    "EmbedLayerNormalization": ((0, 2), (1, 4)),
}
_AXIS_ATTRIBUTES = ("axis", "gather_axis")


def index_bounds(proto: onnx.ModelProto, graph: Graph) -> dict[str, int | None]:
    """Inputs that are indices, each with the size of the smallest table; None if no size is known."""
    search = _IndexSearch(proto, graph)
    sizes = {name: list(search.bounds(name)) for name in graph.inputs}
    return {name: min(filter(None, bounds), default=None) for name, bounds in sizes.items() if bounds}


class _IndexSearch:
    """Forward slice of a value through arrangements, function calls and bodies, up to the lookups that it indexes."""

    def __init__(self, proto: onnx.ModelProto, graph: Graph) -> None:
        self._graph = graph
        self._protos = dict(walk_nodes(proto))
        self._shapes = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.value_info}
        self._formals = {
            function_id(function): [value_id(function_id(function), name) for name in function.input]
            for function in proto.functions
        }
        self._returned: dict[str, list[tuple[str, int]]] = {}
        for graph_id, values in graph.body_outputs.items():
            for position, value in enumerate(values):
                self._returned.setdefault(value, []).append((graph_id, position))

    def bounds(self, name: str) -> Iterator[int | None]:
        """Sizes of the tables that this value, or an arrangement of it, is an index into."""
        seen, waiting = {name}, [name]
        while waiting:
            value = waiting.pop()
            for node in self._graph.consumers.get(value, ()):
                yield from self._table_sizes(node, _positions(node, value))
            fresh = set(self._onward(value)) - seen
            seen |= fresh
            waiting += fresh

    def _table_sizes(self, node: Node, positions: Iterable[int]) -> Iterator[int | None]:
        for index, table in _LOOKUPS.get(node.operator, ()):
            if index in positions and table < len(node.inputs):
                stated = find_attribute(self._protos[node.key], *_AXIS_ATTRIBUTES)
                axis = 0 if stated is None else stated.i
                shape = self._shape(node.inputs[table])
                yield shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def _onward(self, value: str) -> Iterator[str]:
        """Values that hold the same elements."""
        for node in self._graph.consumers.get(value, ()):
            positions = _positions(node, value)
            if node.operator == "Concat" or not set(_ARRANGING.get(node.operator, ())).isdisjoint(positions):
                yield from filter(None, node.outputs)
            formals = self._formals.get(node.function, ())
            yield from (formals[position] for position in positions if position < len(formals))
        for graph_id, position in self._returned.get(value, ()):
            for key in self._graph.callers.get(graph_id, ()):
                runner = self._graph.by_key[key]
                # What a loop's body returns goes elsewhere, and one step later.
                if runner.operator not in ("Loop", "Scan") and position < len(runner.outputs):
                    yield runner.outputs[position]

    def _shape(self, value: str) -> Sequence[int | None] | None:
        """The shape of a stored tensor, or the one that the file states."""
        if value in self._graph.initializers:
            return self._graph.initializers[value].shape
        actual = self._actual(value)
        if actual is not None:
            return self._shape(actual)
        maker = self._graph.producers.get(value)
        if maker is not None and maker.operator == "Constant":
            content = find_attribute(self._protos[maker.key], "value")
            return None if content is None else list(content.t.dims)
        before = self._shape(maker.inputs[0]) if maker is not None and maker.operator in _SAME_TABLE else None
        if before is not None:
            return before
        stated = self._shapes.get(value)
        return None if stated is None else [dim.dim_value if dim.HasField("dim_value") else None for dim in stated]

    def _actual(self, value: str) -> str | None:
        """What a function is given for this name, if one node alone runs it."""
        for function, formals in self._formals.items():
            runners = self._graph.callers.get(function, ())
            if value in formals and len(runners) == 1:
                inputs = self._graph.by_key[runners[0]].inputs
                position = formals.index(value)
                return inputs[position] if position < len(inputs) else None
        return None


def _positions(node: Node, value: str) -> list[int]:
    return [position for position, read in enumerate(node.inputs) if read == value]


_EXAMPLE = "Write NAME=SHAPE, for example x=1x3x224x224, or flag= for a scalar."
_GIVE_IT = "Give it: --input {name}=SHAPE, for example {name}=1x8; or --inputs FILE.npz."


@dataclass(frozen=True)
class SampleRequest:
    """What a file is to be run on.

    shapes  of inputs, as the command line takes them: NAME=SHAPE[:DTYPE]
    files   .npz files, each of them one sample; then nothing is made, and `count` and `seed` mean nothing
    """

    count: int = 1
    seed: int = 0
    shapes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


def sample_feeds(proto: onnx.ModelProto, graph: Graph, request: SampleRequest) -> Iterator[dict[str, np.ndarray]]:
    """One feed after the other, as the graph takes them. Raises InputError for what does not fit it."""
    for path in request.files:
        yield bind_inputs(proto, read_arrays(path))
    if not request.files:
        if request.seed < 0:
            raise InputError(f"the seed is {request.seed}", "Give 0 or more.")
        shapes = _parse_shapes(proto, request.shapes)
        for number in range(request.count):
            yield make_feed(proto, graph, seed=request.seed + number, shapes=shapes)


def describe_made(feed: Mapping[str, np.ndarray]) -> str:
    """Made-up inputs as the options that ask for them: `--input ids=2x8:int64 --input mask=2x8:int64`."""
    texts = (f"{name}={'x'.join(map(str, array.shape))}:{array.dtype}" for name, array in feed.items())
    return " ".join(f"--input {quote_argument(text)}" for text in texts)


def make_feed(
    proto: onnx.ModelProto, graph: Graph, *, seed: int, shapes: Mapping[str, Shape] = MappingProxyType({})
) -> dict[str, np.ndarray]:
    """Floats are random; integers too where they are indices, within their table, and 1 elsewhere; bools are true.

    shapes  of inputs; they also say how long the axes are that other inputs have in common with them
    """
    inputs = required_inputs(proto)
    dtypes = {name: _dtype(name, value) for name, value in inputs.items()}
    bounds = index_bounds(proto, graph)
    feed = {}
    for name, shape in _shapes(inputs, shapes).items():
        # Each input has its own source, so that one more or less changes nothing about the others.
        random = np.random.default_rng([seed, zlib.crc32(name.encode())])
        # An index into something of unknown size can only be the first.
        below = (bounds[name] or 1) if name in bounds else None
        feed[name] = _fill_input(shape, dtypes[name], random, below)
    return feed


def _fill_input(shape: Shape, dtype: np.dtype[Any], random: np.random.Generator, below: int | None) -> np.ndarray:
    """`below` is for an index: the number that it must stay below."""
    if dtype.kind == "b":
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        numbers = np.ones(shape) if below is None else random.integers(0, below, shape)
        return numbers.astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _dtype(name: str, value: onnx.ValueInfoProto) -> np.dtype[Any]:
    kind = value.type.tensor_type.elem_type
    if not kind:
        raise InputError(f"the file takes {name!r}, which is no tensor; it cannot be made", "Compare other files.")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    if dtype.kind not in "biufV":
        stated = onnx.TensorProto.DataType.Name(kind).lower()
        raise InputError(f"the file takes {name!r} as {stated}, which cannot be made up", _GIVE_IT.format(name=name))
    return dtype


def _shapes(inputs: Mapping[str, onnx.ValueInfoProto], given: Mapping[str, Shape]) -> dict[str, Shape]:
    for name, shape in given.items():
        _check(inputs, name, shape)
    sizes = AxisSizes(inputs, given)
    shapes: dict[str, Shape] = {}
    for name in inputs:
        shape_of = given[name] if name in given else sizes.shape(name)
        if shape_of is None:
            raise InputError(f"the file does not say what shape {name!r} has", _GIVE_IT.format(name=name))
        shapes[name] = shape_of
    return shapes


def _check(inputs: Mapping[str, onnx.ValueInfoProto], name: str, shape: Shape) -> None:
    if name not in inputs:
        raise InputError(f"the file takes no input {name!r}", f"It takes: {', '.join(inputs)}.")
    dims = input_dims(inputs[name])
    if dims is not None and not fits(dims, shape):
        raise InputError(
            f"the file takes {name!r} as {format_shape(dims)}, not as {format_shape(shape)}",
            "Give a shape with the sizes that the file has fixed.",
        )


def _parse_shapes(proto: onnx.ModelProto, texts: Sequence[str]) -> dict[str, Shape]:
    """Names of a graph's inputs may hold anything, so it is the last `=` that ends them."""
    inputs = required_inputs(proto)
    shapes: dict[str, Shape] = {}
    for text in texts:
        name, equals, rest = text.rpartition("=")
        sizes, _, dtype = rest.partition(":")
        if not equals or not name or not re.fullmatch(r"(\d+([x,]\d+)*)?", sizes.strip()):
            raise InputError(f"cannot read the input {text!r}", _EXAMPLE)
        if name in shapes:
            raise InputError(f"input {name!r} is given twice", "Give each input once.")
        shapes[name] = tuple(int(size) for size in re.findall(r"\d+", sizes))
        if 0 in shapes[name]:
            raise InputError(f"input {name!r}: every size of {sizes} must be at least 1", _EXAMPLE)
        _check(inputs, name, shapes[name])
        _check_type(inputs[name], dtype.strip())
    return shapes


def _check_type(value: onnx.ValueInfoProto, stated: str) -> None:
    """The width may differ from the file's: the same is asked of two files of which one is narrower."""
    dtype = _dtype(value.name, value)
    try:
        fits = not stated or stated == dtype.name or np.dtype(stated).kind == dtype.kind
    except TypeError as error:
        raise InputError(f"input {value.name!r}: unknown dtype {stated!r}", f"The file takes {dtype}.") from error
    if not fits:
        raise InputError(f"the file takes {value.name!r} as {dtype}, not as {stated}", "Leave the dtype out.")
