"""Outline: a graph in brief, stored beside the record, so that lineage can be traced when the tagged file is gone.

It has operators, edges, digests of attributes and constants, and a `Sketch` of every weight, which is enough to know it
again after it was cast, transposed, rescaled or quantized.

Packed, it is one string that leans on the record for keys and operators. Values are referred to by number: what the
graph is given, its initializers, then what its nodes make. An input is written as the distance to the node that made
it, or as the step from the initializer that was read before: both repeat from layer to layer, and compress well.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import mul
from typing import Any

from modelexport.errors import RecordUnreadable
from modelexport.record.document import DAMAGE, text_in
from modelexport.record.packed import Table, squeeze, unsqueeze, unsqueeze_bzip2
from modelexport.record.provenance import Provenance

_FLOAT, _BITS = struct.Struct("<f"), struct.Struct("<I")
_LARGEST, _SIGN = 0x7F7F, 0x8000

PLACES = 8
# Between the middle of a sketch's numbers and the outermost.
STEPS = 127
# What half precision takes from a number, and how far apart two neighbours are among the numbers that are kept.
_HALF, _DIGITS = 1e-3, 2**-7
# Of numbers that were rounded to a few bits with their original; others hardly ever come near.
_QUANTIZED = 0.97


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is on the diagonal, which stays the same whatever the order of the axes.

    sides      the axes that are longer than one, shortest first
    middle     between the smallest and the largest of the numbers
    spread     from there to both of them
    steps      the numbers, in 127ths of the spread
    quantized  they are integers, and say nothing about size without a scale
    """

    sides: tuple[int, ...]
    middle: float
    spread: float
    steps: tuple[int, ...]
    quantized: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left out."""
        return not self.sides or (len(self.sides) == 1 and self.sides[0] <= PLACES)

    @property
    def is_distinctive(self) -> bool:
        """Whether another weight would hardly have the same."""
        return len(set(self.steps)) > PLACES // 2

    def distance(self, other: Sketch) -> float:
        """How far apart the same numbers are in two float formats; infinite if they are not the same."""
        if self.sides != other.sides or self.quantized or other.quantized:
            return math.inf
        size = max(abs(self.middle) + self.spread, abs(other.middle) + other.spread)
        slack = _DIGITS * size
        off = abs(self.middle - other.middle), abs(self.spread - other.spread)
        if max(off) > slack:
            return math.inf
        allowed = 1 + STEPS * _HALF * size / self.spread if self.spread else STEPS
        apart = [abs(a - b) for a, b in zip(self.steps, other.steps, strict=True)]
        return sum(apart) + (sum(off) / size if size else 0.0) if max(apart) <= allowed else math.inf

    def likeness(self, other: Sketch) -> float:
        """Up to 1 for numbers that go up and down together, 0 for others."""
        if self.sides != other.sides:
            return 0.0
        x, y = ([step - sum(steps) / len(steps) for step in steps] for steps in (self.steps, other.steps))
        scale = math.sqrt(sum(map(mul, x, x)) * sum(map(mul, y, y)))
        # Pearson's correlation: scale and zero point of a quantized weight do not count.
        correlation = sum(map(mul, x, y)) / scale if scale else 0.0
        return correlation if correlation >= _QUANTIZED else 0.0


def shortened(number: float) -> int:
    """The upper half of a float's bits: enough for two digits and a half of any size."""
    bits: int = _BITS.unpack(_FLOAT.pack(number))[0]
    return min((bits + 0x8000) >> 16, _LARGEST | (bits >> 16 & _SIGN))


def lengthened(short: int) -> float:
    number: float = _FLOAT.unpack(_BITS.pack(short << 16))[0]
    return number


# By the name of a constant; None for what cannot be sketched.
Sketches = Callable[[str], "Sketch | None"]


@dataclass(frozen=True, slots=True)
class OutlineNode:
    """
    attributes  a digest of what its attributes say; empty where there are none
    constant    a digest of the tensor that it holds, if it only holds one
    graph       the id of the body or function that it is in; empty in the main graph
    """

    key: str
    op_type: str
    domain: str
    graph: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: str
    constant: str


@dataclass(frozen=True, slots=True)
class OutlineTensor:
    """An initializer: its type by ONNX's number, its shape, and a digest of its content if that lies in the graph."""

    dtype: int
    shape: tuple[int, ...]
    content: str


@dataclass(frozen=True)
class Body:
    """A graph inside a node, or a function. `owner` is the key of the node that holds it, if one does."""

    owner: str
    takes: tuple[str, ...]
    yields: tuple[str, ...]


@dataclass(frozen=True)
class Outline:
    """A graph, in file order. `sketches` are those of its constants."""

    nodes: tuple[OutlineNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, OutlineTensor]
    bodies: Mapping[str, Body] = field(default_factory=dict)
    sketches: Mapping[str, Sketch] = field(default_factory=dict)


_NAME = "modelexport-outline"
_VERSIONS = ("1", "2")
_SKETCH = struct.Struct(f"<HH{PLACES}b")


def pack_outline(outline: Outline, record: Provenance) -> str:
    """`record` is that of the same graph."""
    return f"{_NAME}-{_VERSIONS[-1]}:{squeeze(_fold(outline, record))}"


def unpack_outline(packed: str, record: Provenance) -> Outline:
    name, _, payload = packed.partition(":")
    kind, _, version = name.rpartition("-")
    if kind != _NAME or version not in _VERSIONS:
        raise RecordUnreadable(
            f"the outline in the file is of another version: it starts with {packed[:24]!r}",
            "Update modelexport, or give the file from before the tool ran as well.",
        )
    try:
        outline = _unfold(unsqueeze_bzip2(payload) if version == "1" else unsqueeze(payload), record, version)
        _check_coherent(outline)
    except (*DAMAGE, OSError, EOFError, RecursionError, struct.error) as error:
        raise RecordUnreadable(f"the outline in the file is damaged: {error}", "Export the model again.") from error
    return outline


def _check_coherent(outline: Outline) -> None:
    """Raise ValueError where bodies do not lie inside of each other as their names say."""
    keys = {node.key for node in outline.nodes}
    for name, body in outline.bodies.items():
        if body.owner and not (body.owner in keys and name.startswith(f"{body.owner}|")):
            raise ValueError(f"nobody holds the body {name!r}")
    for node in outline.nodes:
        if node.graph and not (node.graph in outline.bodies and node.key.startswith(f"{node.graph}|")):
            raise ValueError(f"{node.key!r} is in no body")


def _fold(outline: Outline, record: Provenance) -> dict[str, Any]:
    domains, graphs, attributes, contents, shapes = Table(), Table(), Table(), Table(), Table()
    names, tensors = list(outline.initializers), outline.initializers.values()
    coder = _Coder(outline)
    return {
        "inputs": outline.inputs,
        "outputs": outline.outputs,
        "domains": [domains.number(node.domain) for node in outline.nodes],
        "graphs": [graphs.number(node.graph) for node in outline.nodes],
        "attributes": [attributes.number(node.attributes) for node in outline.nodes],
        "constants": [contents.number(node.constant) for node in outline.nodes],
        "arities": [len(node.inputs) for node in outline.nodes],
        "reads": [code for node in outline.nodes for code in coder.codes(node)],
        "others": list(coder.others),
        # Most nodes make the one value that they are named after.
        "made": {index: node.outputs for index, node in enumerate(outline.nodes) if node.outputs != (node.key,)},
        "initializers": None if names == list(record.initializers) else names,
        "dtypes": [tensor.dtype for tensor in tensors],
        "shapes": [shapes.number(tensor.shape) for tensor in tensors],
        "contents": [contents.number(tensor.content) for tensor in tensors],
        "bodies": {name: [body.owner, body.takes, body.yields] for name, body in outline.bodies.items()},
        "sketches": _fold_sketches(outline.sketches, [*names, *(node.key for node in outline.nodes)]),
        "domain_table": domains.values,
        "graph_table": graphs.values,
        "attribute_table": attributes.values,
        "content_table": contents.values,
        "shape_table": shapes.values,
    }


def _unfold(folded: Mapping[str, Any], record: Provenance, version: str) -> Outline:
    # Left out where they are those of the record, which is nearly always.
    written = folded["initializers"]
    names = list(map(text_in, record.initializers if written is None else written))
    entries = list(record.nodes.values())
    made = {int(index): tuple(map(text_in, values)) for index, values in folded["made"].items()}
    if not made.keys() <= set(range(len(entries))):
        raise IndexError(f"there are {len(entries)} nodes, and results of others")
    outputs = [made.get(index, (entry.key,)) for index, entry in enumerate(entries)]
    inputs = tuple(map(text_in, folded["inputs"]))
    stored = [*dict.fromkeys((*inputs, *names)), *map(text_in, folded["others"])]
    reads = _decode_inputs(stored, outputs, folded["arities"], folded["reads"])
    columns = zip(entries, reads, outputs, *(folded[name] for name in _COLUMNS), strict=True)
    nodes = tuple(
        OutlineNode(
            key=entry.key,
            op_type=entry.op_type,
            domain=text_in(folded["domain_table"][domain]),
            graph=text_in(folded["graph_table"][graph]),
            inputs=read,
            outputs=values,
            attributes=text_in(folded["attribute_table"][attribute]),
            constant=text_in(folded["content_table"][constant]),
        )
        for entry, read, values, domain, graph, attribute, constant in columns
    )
    shapes = [tuple(map(int, shape)) for shape in folded["shape_table"]]
    tensors = {
        name: OutlineTensor(int(dtype), shapes[shape], text_in(folded["content_table"][content]))
        for name, dtype, shape, content in zip(
            names, folded["dtypes"], folded["shapes"], folded["contents"], strict=True
        )
    }
    return Outline(
        nodes=nodes,
        inputs=inputs,
        outputs=tuple(map(text_in, folded["outputs"])),
        initializers=tensors,
        bodies={
            text_in(name): Body(text_in(owner), tuple(map(text_in, takes)), tuple(map(text_in, yields)))
            for name, (owner, takes, yields) in folded["bodies"].items()
        },
        sketches=dict(_unfold_sketches(folded["sketches"], [*names, *(node.key for node in nodes)], version)),
    )


_COLUMNS = ("domains", "graphs", "attributes", "constants")


class _Coder:
    """Numbers for inputs: 0 for none, a distance to what a node made, below 0 a step from one stored value to another.

    others  values that are neither given, stored nor made in the graph: what a body is given
    """

    def __init__(self, outline: Outline) -> None:
        stored = [*outline.inputs, *outline.initializers]
        self.others: dict[str, None] = {}
        self._stored = {value: number for number, value in enumerate(dict.fromkeys(stored))}
        made = dict.fromkeys(value for node in outline.nodes for value in node.outputs)
        self._made = {value: number for number, value in enumerate(made)}
        self._last = 0

    def codes(self, node: OutlineNode) -> Iterator[int]:
        here = self._made[node.outputs[0]] if node.outputs else 0
        for value in node.inputs:
            if not value:
                yield 0
            elif value in self._made and value not in self._stored:
                yield _positive(here - self._made[value])
            else:
                yield -1 - _positive(self._step(value))

    def _step(self, value: str) -> int:
        if value not in self._stored:
            self.others[value] = None
            self._stored[value] = len(self._stored)
        step = self._stored[value] - self._last
        self._last = self._stored[value]
        return step


def _decode_inputs(
    stored: Sequence[str], outputs: Sequence[tuple[str, ...]], arities: Sequence[int], codes: Sequence[int]
) -> list[tuple[str, ...]]:
    """By node: the values that it reads, as `_Coder` numbered them."""
    if sum(arities) != len(codes) or min(arities, default=0) < 0:
        raise ValueError(f"nodes read {sum(arities)} values, and {len(codes)} are there")
    made = list(dict.fromkeys(value for values in outputs for value in values))
    numbers = {value: number for number, value in enumerate(made)}
    waiting = iter(codes)
    last = 0
    inputs = []
    for values, arity in zip(outputs, arities, strict=True):
        here = numbers[values[0]] if values else 0
        read = []
        for code in islice(waiting, arity):
            if code < 0:
                last += _signed(-1 - code)
                read.append(_at(stored, last))
            else:
                read.append(_at(made, here - _signed(code)) if code else "")
        inputs.append(tuple(read))
    return inputs


def _at(values: Sequence[str], index: int) -> str:
    # Python would count a number below zero from the end, and a damaged outline would pass for a sound one.
    if index < 0:
        raise IndexError(f"there is no value {index}")
    return values[index]


def _positive(number: int) -> int:
    """Any integer as one above zero, small ones small."""
    return 2 * number if number > 0 else 1 - 2 * number


def _signed(number: int) -> int:
    return -(number // 2) if number % 2 else number // 2


def _fold_sketches(sketches: Mapping[str, Sketch], names: Sequence[str]) -> list[Any]:
    """Which constants have one, as steps from one to the next; all of them in one string; how long their sides are."""
    indices = [index for index, name in enumerate(names) if name in sketches]
    chosen = [sketches[names[index]] for index in indices]
    steps = [index - before for before, index in zip([0, *indices], indices, strict=False)]
    data = b"".join(
        _SKETCH.pack(shortened(sketch.middle), shortened(sketch.spread), *sketch.steps) for sketch in chosen
    )
    sides = Table()
    numbers = [sides.number(sketch.sides) for sketch in chosen]
    # Column by column: spreads of weights are alike. And as digits, of which a compressor finds that there are 16.
    columns = b"".join(data[place :: _SKETCH.size] for place in range(_SKETCH.size))
    return [steps, columns.hex(), numbers, sides.values]


def _unfold_sketches(folded: Sequence[Any], names: Sequence[str], version: str) -> Iterator[tuple[str, Sketch]]:
    steps, text, sides, table = folded
    sketches = _SKETCH.iter_unpack(base64.b85decode(text) if version == "1" else _join_columns(bytes.fromhex(text)))
    for index, side, (middle, spread, *numbers) in zip(accumulate(steps), sides, sketches, strict=True):
        lengths = tuple(map(int, table[side]))
        yield _at(names, index), Sketch(lengths, lengthened(middle), lengthened(spread), tuple(numbers))


def _join_columns(data: bytes) -> bytes:
    count, rest = divmod(len(data), _SKETCH.size)
    if rest:
        raise ValueError(f"{len(data)} bytes are no whole sketches")
    return bytes(data[place * count + index] for index in range(count) for place in range(_SKETCH.size))
