"""Boxes in the order in which nested formats write them: what a module call encloses between its begin and its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modelexport.converting.drawing import Box, Drawing, Facts
from modelexport.graph.index import MAIN
from modelexport.record.hierarchy import ModuleCall


@dataclass(frozen=True, slots=True)
class Place:
    """A module call on a sheet; without a call, the sheet itself, which is a body or a function."""

    sheet: str
    call: ModuleCall | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A group begins. `facts` say what it is."""

    number: int
    title: str
    facts: Facts


@dataclass(frozen=True, slots=True)
class Closed:
    """The innermost group that is open ends."""


def nested(drawing: Drawing) -> Iterator[Opened | Box | Closed]:
    """Without recursion: modules may be nested deeper than Python's stack."""
    children = _children(drawing)
    numbers = 0
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
            yield _opened(drawing, item, numbers)
            numbers += 1
            open_places.append(iter(children.get(item, ())))


def _opened(drawing: Drawing, place: Place, number: int) -> Opened:
    if place.call is not None:
        layer = drawing.layers[place.call]
        return Opened(number, layer.title, {"kind": "module", **layer.facts})
    sheet = drawing.sheet_by_id[place.sheet]
    return Opened(number, sheet.id, {"kind": "body" if sheet.owner else "function", "name": sheet.name})


def _children(drawing: Drawing) -> dict[Place | None, list[Place | Box]]:
    """What is directly inside of each place, in the order in which it first appears; None is the whole drawing."""
    found: dict[Place | None, list[Place | Box]] = {}
    known: set[Place] = set()

    def add(place: Place | None, item: Place | Box) -> None:
        found.setdefault(place, []).append(item)
        while place is not None and place not in known:  # upwards until something that is there already
            known.add(place)
            around = above(place)
            found.setdefault(around, []).append(place)
            place = around

    def above(place: Place) -> Place | None:
        if place.call is not None:
            stack = drawing.stack(place.call)
            return inner(place.sheet, stack[-2] if len(stack) > 1 else None)
        owner = drawing.by_id.get(drawing.sheet_by_id[place.sheet].owner)
        return None if owner is None else inner(owner.sheet, owner.call)

    def inner(sheet: str, call: ModuleCall | None) -> Place | None:
        stack = drawing.stack(call)
        return Place(sheet, stack[-1]) if stack else None if sheet == MAIN else Place(sheet)

    for sheet in drawing.sheets:
        for box in drawing.by_sheet[sheet.id]:
            add(inner(box.sheet, box.call), box)
    return found
