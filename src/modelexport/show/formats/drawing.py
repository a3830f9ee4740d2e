"""Drawings: boxes, the wires between them, and the module calls around them; what every format shows.

A drawing is made once from a file (`draw.py`); a format only decides how it is written down.

    nested(drawing)       boxes in the order in which nested formats write them: Opened, box, box, Closed
    overview(drawing, 2)  one box for each module two levels deep, for formats that cannot show thousands of nodes

An overview joins what one box stands for, and keeps one wire for all values between two boxes:

    x ─► [layer.0: MatMul ─► Add] ─► [layer.1: MatMul] ─► y         every node
    x ─► layer.0 (2 nodes) ─► layer.1 (1 node) ─► y                 overview(drawing, 1)
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from modelexport.graph.index import MAIN
from modelexport.record.hierarchy import ROOT, ModuleCall

Fact = str | int | float
Facts = Mapping[str, Fact]


class BoxKind(StrEnum):
    """What a box stands for. `MISSING` is a value that nothing makes, which is not valid but occurs."""

    OPERATOR = "operator"
    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a box: the id of the value (empty if it is left out), its type and shape if known."""

    value: str
    dtype: str = ""
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """
    id      unique in the drawing; of an operator, its node key
    label   operator, or the name of a constant, input or output
    sheet   the id of the graph that holds it
    call    the module call that it is drawn inside of; None if nothing is known
    facts   everything that is to be shown of it, by name
    bodies  the ids of the sheets that it runs
    """

    id: str
    kind: BoxKind
    label: str
    sheet: str
    call: ModuleCall | None
    facts: Facts
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    bodies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wire:
    """From the n-th output of a box to the n-th input of another."""

    source: str
    output: int
    target: str
    input: int
    value: str


@dataclass(frozen=True, slots=True)
class Layer:
    """A module call as something that encloses boxes. `label` is its path below the call around it."""

    call: ModuleCall
    label: str
    class_name: str
    facts: Facts

    @property
    def title(self) -> str:
        """`layer.0 (BertLayer)`."""
        return f"{self.label} ({self.class_name})" if self.class_name else self.label


@dataclass(frozen=True, slots=True)
class Sheet:
    """One graph: the main one, the body of a box (`owner`), or a function."""

    id: str
    name: str
    owner: str = ""


@dataclass(frozen=True)
class Drawing:
    """
    layers  in the order in which the calls began
    stacks  by call: the calls around it and itself, outermost first; the model itself is not among them
    facts   of the model as a whole
    """

    name: str
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    sheets: tuple[Sheet, ...]
    layers: Mapping[ModuleCall, Layer] = field(default_factory=dict)
    stacks: Mapping[ModuleCall, tuple[ModuleCall, ...]] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)

    @cached_property
    def by_id(self) -> Mapping[str, Box]:
        return {box.id: box for box in self.boxes}

    @cached_property
    def sheet_by_id(self) -> Mapping[str, Sheet]:
        return {sheet.id: sheet for sheet in self.sheets}

    @cached_property
    def by_sheet(self) -> Mapping[str, tuple[Box, ...]]:
        """Every sheet is in it, also one without a box: a function may have no nodes."""
        boxes_by_sheet: dict[str, list[Box]] = {sheet.id: [] for sheet in self.sheets}
        for box in self.boxes:
            boxes_by_sheet[box.sheet].append(box)
        return {name: tuple(boxes) for name, boxes in boxes_by_sheet.items()}

    @cached_property
    def incoming(self) -> Mapping[str, tuple[Wire, ...]]:
        wires_by_target: dict[str, list[Wire]] = {}
        for wire in self.wires:
            wires_by_target.setdefault(wire.target, []).append(wire)
        return {name: tuple(wires) for name, wires in wires_by_target.items()}

    def stack(self, call: ModuleCall | None) -> tuple[ModuleCall, ...]:
        """Empty for the model itself: it is the whole picture, and not a frame in it."""
        return () if call is None or call.path == ROOT else self.stacks[call]


@dataclass(frozen=True, slots=True)
class Place:
    """A module call on a sheet; without a call, the sheet itself, which is a body or a function."""

    sheet: str
    call: ModuleCall | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    number: int
    title: str
    facts: Facts


@dataclass(frozen=True, slots=True)
class Closed:
    """The innermost group that is open ends."""


def nested(drawing: Drawing) -> Iterator[Opened | Box | Closed]:
    """Without recursion: modules may be nested deeper than Python's stack."""
    children = _children(drawing)
    numbers = itertools.count()
    open_places = [iter(children.get(None, ()))]
    while open_places:
        item = next(open_places[-1], None)
        if item is None:
            open_places.pop()
            if open_places:
                yield Closed()
        elif isinstance(item, Box):
            yield item
        else:
            yield _opened(drawing, item, next(numbers))
            open_places.append(iter(children.get(item, ())))


def _opened(drawing: Drawing, group: Place, number: int) -> Opened:
    if group.call is not None:
        layer = drawing.layers[group.call]
        return Opened(number, layer.title, {"kind": "module", **layer.facts})
    sheet = drawing.sheet_by_id[group.sheet]
    return Opened(number, sheet.id, {"kind": "body" if sheet.owner else "function", "name": sheet.name})


def _children(drawing: Drawing) -> dict[Place | None, list[Place | Box]]:
    """What is directly inside of each place, in the order in which it first appears; None is the whole drawing."""
    children: dict[Place | None, list[Place | Box]] = {}
    known: set[Place] = set()

    def add(group: Place | None, item: Place | Box) -> None:
        children.setdefault(group, []).append(item)
        while group is not None and group not in known:  # upwards until something that is there already
            known.add(group)
            around = above(group)
            children.setdefault(around, []).append(group)
            group = around

    def above(group: Place) -> Place | None:
        if group.call is not None:
            stack = drawing.stack(group.call)
            return inner(group.sheet, stack[-2] if len(stack) > 1 else None)
        owner = drawing.by_id.get(drawing.sheet_by_id[group.sheet].owner)
        return None if owner is None else inner(owner.sheet, owner.call)

    def inner(sheet: str, call: ModuleCall | None) -> Place | None:
        stack = drawing.stack(call)
        return Place(sheet, stack[-1]) if stack else None if sheet == MAIN else Place(sheet)

    for sheet in drawing.sheets:
        for box in drawing.by_sheet[sheet.id]:
            add(inner(box.sheet, box.call), box)
    return children


_ENDS = (BoxKind.INPUT, BoxKind.OUTPUT)


def depth_of(drawing: Drawing) -> int:
    """How deep modules are nested; what is directly in the model is one deep."""
    return max(map(len, drawing.stacks.values()), default=0)


def overview(drawing: Drawing, depth: int) -> Drawing:
    """Modules down to a depth, each a box with everything inside of it; constants are left out.

    A module that has other boxes inside gets one more, for the nodes of its own.
    """
    return _Overview(drawing, depth).drawing()


def without_constants(drawing: Drawing) -> Drawing:
    """Every node, input and output: weights would be more than half of what is drawn."""
    kept = [box for box in drawing.boxes if box.kind is not BoxKind.CONSTANT]
    names = {box.id for box in kept}
    wires = tuple(wire for wire in drawing.wires if wire.source in names)
    return replace(drawing, boxes=tuple(kept), wires=wires)


class _Overview:
    def __init__(self, drawing: Drawing, depth: int) -> None:
        self._drawing, self._depth = drawing, depth
        self._counts = Counter(self._shown(box) for box in drawing.boxes if box.kind is BoxKind.OPERATOR)
        self._enclosing = {above for call in self._counts for above in drawing.stack(call)[:-1]}

    def drawing(self) -> Drawing:
        full = self._drawing
        inputs, outputs = (
            [replace(box, call=None) for box in full.by_sheet[MAIN] if box.kind is kind] for kind in _ENDS
        )
        boxes = (*inputs, *self._blocks(), *outputs)
        return replace(full, boxes=boxes, wires=tuple(self._wires()), sheets=(Sheet(MAIN, full.name),))

    def _shown(self, box: Box) -> ModuleCall | None:
        stack = self._drawing.stack(box.call)[: self._depth]
        return stack[-1] if stack else None

    def _blocks(self) -> Iterator[Box]:
        """A call with others inside is a cluster, and its own nodes are a box of it."""
        for call, count in self._counts.items():
            layer = self._drawing.layers.get(call) if call is not None else None
            is_whole = call is not None and call not in self._enclosing
            stack = self._drawing.stack(call)
            label = layer.title if layer is not None and is_whole else "own nodes"
            around = (stack[-2] if len(stack) > 1 else None) if is_whole else call
            nodes = f"{count} node{'s' * (count != 1)}"
            yield Box(_block(call), BoxKind.OPERATOR, label, MAIN, around, {"nodes": nodes}, outputs=(Port(""),))

    def _wires(self) -> Iterator[Wire]:
        """One for each pair of boxes, however many tensors pass between them."""
        values: dict[tuple[str, str], dict[str, None]] = {}
        for wire in self._drawing.wires:
            source = self._stand_in(self._drawing.by_id[wire.source])
            target = self._stand_in(self._drawing.by_id[wire.target])
            if source and target and source != target:
                values.setdefault((source, target), {})[wire.value] = None
        for (source, target), names in values.items():
            first, *more = names  # one value is named; several only counted
            yield Wire(source, 0, target, 0, f"{len(names)} tensors" if more else first)

    def _stand_in(self, box: Box) -> str:
        """The id of what stands for a box; empty for what is left out."""
        if box.kind is BoxKind.OPERATOR:
            return _block(self._shown(box))
        if box.kind not in _ENDS:
            return ""
        if box.sheet == MAIN:
            return box.id
        owner = self._drawing.by_id.get(self._drawing.sheet_by_id[box.sheet].owner)  # what a body is given and returns
        return "" if owner is None else self._stand_in(owner)


def _block(call: ModuleCall | None) -> str:
    # No name in a file has a NUL in it, so that these ids meet no other.
    return "\0model" if call is None else f"\0{call.path}\0{call.index}"
