"""What every format shows: boxes, the wires between them, and the module calls around them.

A drawing is made once from a file (`draw.py`); a format only decides how it is written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from modelexport.record.hierarchy import ROOT, ModuleCall

Fact = str | int | float
Facts = Mapping[str, Fact]


class Kind(StrEnum):
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
    kind: Kind
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
        found: dict[str, list[Box]] = {sheet.id: [] for sheet in self.sheets}
        for box in self.boxes:
            found[box.sheet].append(box)
        return {name: tuple(boxes) for name, boxes in found.items()}

    @cached_property
    def incoming(self) -> Mapping[str, tuple[Wire, ...]]:
        found: dict[str, list[Wire]] = {}
        for wire in self.wires:
            found.setdefault(wire.target, []).append(wire)
        return {name: tuple(wires) for name, wires in found.items()}

    def stack(self, call: ModuleCall | None) -> tuple[ModuleCall, ...]:
        return () if call is None or call.path == ROOT else self.stacks[call]
