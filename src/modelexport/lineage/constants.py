"""Which constant of the graph before a constant of the graph after is: by content, by name, or by some numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from modelexport.graph.index import Node
from modelexport.lineage.classes import Classes
from modelexport.lineage.operators import family
from modelexport.record.sketch import Sketch, Sketches

# Two weights that are this much alike are not told apart by it.
_CLEARLY = 0.01
# Readers of a weight that are asked whether they have kept their names.
_ASKED = 8


class ConstantLinker:
    """Weights are looked at only where neither content that lies in the graph nor names decide.

    alike  constants before that hold the same but for type and shape, mapped to one of them
    """

    def __init__(self, before: Classes, after: Classes, sketches: tuple[Sketches, Sketches]) -> None:
        self._before, self._after = before, after
        self._sketch_before, self._sketch_after = sketches
        self.alike: dict[int, int] = {}
        self._by_content = {content: number for number, content in before.constants.items() if content is not None}

    def pairs(self) -> Iterator[tuple[int, int]]:
        unknown: list[int] = []
        for number, content in self._after.constants.items():
            found = None if content is None else self._by_content.get(content)
            found = self._by_name(number) if found is None else found
            if found is None:
                unknown.append(number)
            else:
                yield number, found
        if unknown:
            yield from self._by_sketch(unknown)

    def _by_name(self, number: int) -> int | None:
        """The constant of the same name and shape, if a node that reads it has kept its name as well."""
        readers = self._after.readers_of(number)[:_ASKED]
        for wanted in self._of_the_name(number):
            if any(self._has_kept_its_name(reader, wanted) for reader in readers):
                return wanted
        return None

    def _of_the_name(self, number: int) -> list[int]:
        name = self._after.names[number]
        one, other = self._after.graph.initializers.get(name), self._before.graph.initializers.get(name)
        if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
            return []
        return [self._before.of[name]]

    def _has_kept_its_name(self, reader: Node, wanted: int) -> bool:
        origin = self._before.graph.producers.get(next(filter(None, reader.outputs), ""))
        if origin is None or family(origin.op_type) != family(reader.op_type):
            return False
        return wanted in self._before.inputs(origin)

    def _by_sketch(self, unknown: list[int]) -> Iterator[tuple[int, int]]:
        sketched = ((number, self._sketch_before(self._before.names[number])) for number in self._before.constants)
        known = _Sketched([(number, found) for number, found in sketched if found is not None])
        self.alike = known.alike
        for number in unknown:
            mine = self._sketch_after(self._after.names[number])
            others = self._of_the_name(number) if mine is None else known.like(mine)
            if others:
                shape = self._shape(self._after, number)
                yield number, min(others, key=lambda other: self._shape(self._before, other) != shape)

    def _shape(self, classes: Classes, number: int) -> tuple[int, ...] | None:
        tensor = classes.graph.initializers.get(classes.names[number])
        return None if tensor is None else tensor.shape


class _Sketched:
    """The constants of the graph before, to be found by some of their numbers.

    alike  constants that hold the same, mapped to one of them
    """

    def __init__(self, sketches: list[tuple[int, Sketch]]) -> None:
        self.alike: dict[int, int] = {}
        self._equal: dict[Sketch, list[int]] = {}
        self._near: dict[object, list[tuple[int, Sketch]]] = {}
        for number, sketch in sketches:
            same = self._equal.setdefault(sketch, [])
            same.append(number)
            if sketch.is_whole or sketch.is_telling:
                self.alike[number] = same[0]
            self._near.setdefault(_drawer(sketch), []).append((number, sketch))

    def like(self, sketch: Sketch) -> list[int]:
        """Those that hold the same; or the one that this is a coarser copy of."""
        same = self._equal.get(sketch) or self._same(sketch)
        if same and (sketch.is_whole or sketch.is_telling or len(same) == 1):
            return same
        if same or not sketch.is_telling:
            return []
        rated = [(sketch.likeness(other), number) for number, other in self._near.get(_drawer(sketch), ())]
        best = max((rate for rate, _ in rated), default=0.0)
        near = [number for rate, number in rated if rate and rate > best - _CLEARLY]
        return near if len(near) == 1 else []

    def _same(self, sketch: Sketch) -> list[int]:
        """The nearest ones, where there are any that may be the same in another number format."""
        rated = [(sketch.distance(other), number) for number, other in self._near.get(_drawer(sketch), ())]
        best = min((rate for rate, _ in rated), default=math.inf)
        return [] if best == math.inf else [number for rate, number in rated if rate == best]


def _drawer(sketch: Sketch) -> object:
    """Where to look for sketches like this one: rounding hardly ever moves the outermost numbers to other places."""
    if sketch.is_telling:
        return sketch.sides, sketch.steps.index(min(sketch.steps)), sketch.steps.index(max(sketch.steps))
    return sketch.sides, f"{sketch.middle:.1e}"
