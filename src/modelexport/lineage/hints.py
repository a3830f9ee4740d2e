"""What names say. A name is a hint; it counts as evidence where a neighbour's name says the same.

Which constant of the graph before a constant of the graph after is: by content, by name, or by some numbers.

Where graphs begin and end: what they are given and what they return.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from modelexport.graph.index import MAIN, Node
from modelexport.graph.operators import family, is_passing
from modelexport.lineage.value_classes import NOTHING, Classes
from modelexport.record.outline import Sketch, Sketches

# Names that are looked at to find out what a tool put before all of them.
_TRIED = 200
_FEWEST = 3
# Of so many names, at least one in so many must be on an operator like the one before.
_MANY = 12
_FEW = 6
# Nodes above a value among which one is looked for that its maker reads now.
_NEAR = 6
# No class, and not what stands for an input that is left out.
_UNKNOWN = -2


class NameLinker:
    def __init__(self, before: Classes, after: Classes, differ: Callable[[Node, Node], bool]) -> None:
        """differ  whether a node after reads other weights than one before, and is not that one, whatever its name"""
        self._before, self._after = before, after
        self._prefix = self._common_prefix()
        self._hints = self._sound(self._read(), differ)

    def known(self, value: str) -> int:
        """The class before of a value with this name, or NOTHING."""
        return self._before.of.get(value.removeprefix(self._prefix), NOTHING)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Names with a neighbour whose name fits: what one makes the other reads, before and after."""
        for place, other in self._hints.items():
            if self._fits_above(place, other) or self._fits_below(place, other):
                yield place, other

    def unconfirmed(self) -> Iterator[tuple[int, int]]:
        yield from self._hints.items()

    def _read(self) -> dict[int, int]:
        """What names say of each class; nothing where they contradict each other."""
        found: dict[int, int] = {}
        torn: set[int] = set()
        for node in self._after.graph.nodes:
            for value in node.outputs:
                other = self.known(value) if value else NOTHING
                if other == NOTHING or other in self._before.constants:
                    continue
                place = self._after.of[value]
                if place in self._after.constants or found.setdefault(place, other) == other:
                    continue
                if found[place] not in self._before.made_from(other):  # else what lay between is gone
                    torn.add(place)
        return {place: other for place, other in found.items() if place not in torn}

    def _sound(self, hints: Mapping[int, int], differ: Callable[[Node, Node], bool]) -> dict[int, int]:
        """Hints that weights do not contradict; none at all if names were dealt anew."""
        made = {
            place: (self._after.makers.get(place), self._before.makers.get(other)) for place, other in hints.items()
        }
        pairs = {place: (one, other) for place, (one, other) in made.items() if one is not None and other is not None}
        alike = sum(family(node.op_type) == family(origin.op_type) for node, origin in pairs.values())
        weighed = {
            place: pair for place, pair in pairs.items() if self._after.weighs(pair[0]) and self._before.weighs(pair[1])
        }
        wrong = {place for place, pair in weighed.items() if differ(*pair)}
        if len(wrong) >= _FEWEST and len(wrong) > len(weighed) / 2:
            return {}
        if len(pairs) >= _MANY and alike < len(pairs) / _FEW:
            return {}
        return {place: other for place, other in hints.items() if place not in wrong}

    def _fits_above(self, place: int, other: int) -> bool:
        maker, origin = self._after.makers.get(place), self._before.makers.get(other)
        if maker is None or origin is None:
            return False
        hints = {read: self._hints[read] for read in self._after.inputs(maker) if read in self._hints}
        hinted = set(hints.values())
        if family(maker.op_type) == family(origin.op_type):
            return not hinted.isdisjoint(self._before.inputs(origin)) or any(
                self._are_joined(one, place) for one in hints
            )
        # A node that does by itself what several did: all that it reads is somewhere above.
        return bool(hinted) and hinted <= self._near_above(origin)

    def _near_above(self, origin: Node) -> set[int]:
        found: set[int] = set()
        waiting = [origin]
        for _ in range(_NEAR):
            if not waiting:
                break
            read = self._before.inputs(waiting.pop(0))
            found.update(read)
            waiting += filter(None, map(self._before.makers.get, read))
        return found

    def _fits_below(self, place: int, other: int) -> bool:
        for reader in self._after.readers_of(place):
            for made in self._after.outputs(reader):
                origin = self._before.makers.get(self._hints.get(made, _UNKNOWN))
                if origin is not None and (other in self._before.inputs(origin) or self._are_joined(place, made)):
                    return True
        return False

    def _are_joined(self, upper: int, lower: int) -> bool:
        """Whether two nodes are the same under their names, and what lay between them is gone."""
        if not (self._is_same(upper) and self._is_same(lower)):
            return False
        read = self._before.inputs(self._before.makers[self._hints[lower]])
        return any(self._hints[upper] in self._before.made_from(one) for one in read)

    def _is_same(self, place: int) -> bool:
        maker, origin = self._after.makers.get(place), self._before.makers.get(self._hints[place])
        if maker is None or origin is None:
            return False
        return (maker.op_type, maker.attributes) == (origin.op_type, origin.attributes)

    def _common_prefix(self) -> str:
        """What a tool put before every name, if it did."""
        values = [value for node in self._after.graph.nodes[:_TRIED] for value in node.outputs if value]
        strange = [value for value in values if value not in self._before.of]
        if len(strange) < len(values) / 2:
            return ""
        votes = Counter(
            value[:cut] for value in strange for cut in range(1, len(value)) if value[cut:] in self._before.of
        )
        prefix, count = max(votes.items(), key=lambda item: item[1], default=("", 0))
        return prefix if count >= _FEWEST and count > sum(votes.values()) / 2 else ""


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


class EndLinker:
    def __init__(self, before: Classes, after: Classes, names: NameLinker) -> None:
        self._before, self._after = before, after
        self._names = names

    def pairs(self) -> Iterator[tuple[int, int]]:
        before, after = self._before.graph, self._after.graph
        yield from self._paired(after.inputs, before.inputs)
        yield from self._paired(after.outputs, before.outputs)
        for graph_id in after.body_outputs:
            if graph_id != MAIN and graph_id not in after.body_owner and graph_id in before.body_outputs:
                yield from self._after.ends(graph_id, self._before, graph_id)  # functions of one name

    def _paired(self, mine: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[int, int]]:
        """By name; where as many are left over on both sides, those in their order."""
        before, after = self._before, self._after
        known = {value: self._names.known(value) for value in mine}
        yield from ((after.of.get(value, NOTHING), other) for value, other in known.items())
        left = [value for value, other in known.items() if other == NOTHING]
        spare = [value for value in theirs if before.of.get(value, NOTHING) not in known.values()]
        if len(mine) == len(theirs):
            # A name that stood for an inner value before may stand for what is returned now, if little lay between.
            for value, other in zip(mine, theirs, strict=True):
                near = before.made_from(before.of.get(other, NOTHING))
                if other in spare and value not in left and known[value] in near:
                    yield after.of.get(value, NOTHING), before.of.get(other, NOTHING)
        if len(left) == len(spare):
            for value, other in zip(left, spare, strict=True):
                if _may_be_same(after.graph.producers.get(value), before.graph.producers.get(other)):
                    yield after.of.get(value, NOTHING), before.of.get(other, NOTHING)


def _may_be_same(node: Node | None, origin: Node | None) -> bool:
    """Whether two results can be one: an operator may be fused with others, but does not become another plain one."""
    if node is None or origin is None or node.op_type == origin.op_type:
        return True
    plain = all(one.op_type == family(one.op_type) and not is_passing(one) for one in (node, origin))
    return not plain
