"""Region patterns: two regions have one pattern if their items do the same, in the same order, on the same inputs.

    layer.0   m = MatMul(x, w0)  y = Relu(m)         items  MatMul(formal 0, formal 1), Relu(result 0 of item 0)
    layer.1   n = MatMul(y, w1)  z = Relu(n)         the same rows: one function, two calls

What a region reads from outside is a list of formals; a value that is read twice is one formal.

A subpattern is a region that does what another one does, and a little more: exporters often give the first layer fewer
nodes, because a shape is known there. Then the larger function calls the smaller one, and adds the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modelexport.record.hierarchy import ModuleCall
from modelexport.transform.fold.working_graph import FoldNode, WorkingGraph

Place = tuple[int, int]
Row = tuple[int, tuple[Place, ...], tuple[bool, ...]]
# Where a formal comes from, in the place of a number of an item; a slot that is left out.
_FORMAL, NOTHING = -1, (-2, 0)


@dataclass(eq=False)
class FunctionPattern:
    """A body that is called at least once.

    calls    the regions that became calls of it, in the order of the file; the body is made from the first
    outputs  the places whose values it returns; some callers may not read all of them
    """

    number: int
    class_name: str
    calls: list[FoldRegion] = field(default_factory=list)
    outputs: list[Place] = field(default_factory=list)


@dataclass(eq=False)
class FoldRegion:
    """The items that become one call of a module.

    values    the values that its items make, with their places
    rows      what its items do; equal for regions of one pattern
    contents  for each item: which content, if it is a Constant
    """

    call: ModuleCall
    items: tuple[int, ...]
    formals: tuple[str, ...]
    values: Mapping[str, Place]
    rows: tuple[Row, ...]
    contents: tuple[int, ...]
    results: tuple[str, ...]
    function: FunctionPattern | None = None


class RegionPatterns:
    """Makes regions of items, and knows which items are calls of which region."""

    def __init__(self, working: WorkingGraph) -> None:
        self._working = working
        self.called: dict[int, FoldRegion] = {}

    def build_region(self, call: ModuleCall, members: Sequence[int]) -> FoldRegion:
        working = self._working
        items = working.in_file_order(members)
        inside = set(items)
        values: dict[str, Place] = {}
        formals: dict[str, int] = {}
        rows: list[Row] = []
        for number, item in enumerate(items):
            slots = tuple(_resolve_read(name, values, formals) for name in self._reads(item))
            made = self.makes(item)
            rows.append((self._kind(item), slots, tuple(map(bool, made))))
            values.update({name: (number, index) for index, name in enumerate(made) if name})
        return FoldRegion(
            call,
            tuple(items),
            tuple(formals),
            values,
            tuple(rows),
            tuple(self._content(item) for item in items),
            tuple(name for name in values if working.is_read_outside(name, inside)),
        )

    def fold_node(self, item: int) -> FoldNode | None:
        """The node that an item is, unless it is a call."""
        return None if item in self.called else self._working.fold_nodes[item]

    def fold_node_at(self, region: FoldRegion, number: int) -> FoldNode:
        """The node at a place where a region has one."""
        return self._working.fold_nodes[region.items[number]]

    def makes(self, item: int) -> tuple[str, ...]:
        """What an item makes, slot by slot."""
        if item not in self.called:
            return self._working.fold_nodes[item].makes
        region = self.called[item]
        assert region.function is not None
        return tuple(self.value(region, output) for output in region.function.outputs)

    def value(self, region: FoldRegion, place: Place) -> str:
        """What a value of a body is called in one of the regions that it stands for."""
        number, slot = place
        while (item := region.items[number]) in self.called:
            region = self.called[item]
            assert region.function is not None
            number, slot = region.function.outputs[slot]
        return self._working.fold_nodes[item].makes[slot]

    def fold_nodes(self, region: FoldRegion) -> Iterator[FoldNode]:
        """All nodes inside of a region, however deep."""
        for item in region.items:
            if item in self.called:
                yield from self.fold_nodes(self.called[item])
            else:
                yield self._working.fold_nodes[item]

    def _reads(self, item: int) -> tuple[str, ...]:
        return self.called[item].formals if item in self.called else self._working.fold_nodes[item].reads

    def _kind(self, item: int) -> int:
        """Kinds of nodes are positive; calls of a function are of a kind of their own."""
        if item not in self.called:
            return self._working.fold_nodes[item].kind
        function = self.called[item].function
        assert function is not None
        return -1 - function.number

    def _content(self, item: int) -> int:
        return 0 if item in self.called else self._working.fold_nodes[item].content


def _resolve_read(name: str, values: Mapping[str, Place], formals: dict[str, int]) -> Place:
    if not name:
        return NOTHING
    if name in values:
        return values[name]
    return _FORMAL, formals.setdefault(name, len(formals))


# A core that is less than this share of a region is no gain in clarity.
_LEAST = 0.5
_SMALLEST = 4


def find_subpattern(small: FoldRegion, large: FoldRegion) -> list[int] | None:
    """Which items of `large` do what `small` does, item by item; None if it does not contain it."""
    if not _SMALLEST <= len(small.items) < len(large.items) or len(small.items) < _LEAST * len(large.items):
        return None
    subpattern = _SubpatternMatch(small, large).match_items()
    return None if subpattern is None else [subpattern[number] for number in range(len(small.items))]


class _SubpatternMatch:
    """Goes from the results back to what they are made from, in both regions at once."""

    def __init__(self, small: FoldRegion, large: FoldRegion) -> None:
        self._small = small
        self._large = large
        self._items: dict[int, int] = {}
        self._given: dict[Place, Place] = {}

    def match_items(self) -> dict[int, int] | None:
        waiting = list(self._results())
        while waiting:
            item, other = waiting.pop()
            if item in self._items:
                if self._items[item] != other:
                    return None
                continue
            below = self._pair(item, other)
            if below is None:
                return None
            waiting += below
        inside = set(self._items.values())
        whole = len(self._items) == len(inside) == len(self._small.items)
        return self._items if whole and all(place[0] not in inside for place in self._given.values()) else None

    def _results(self) -> Iterator[tuple[int, int]]:
        """Results in pairs, in their order; the larger region may have some more."""
        results = iter([self._large.values[name] for name in self._large.results])
        for name in self._small.results:
            number, slot = self._small.values[name]
            kind = self._small.rows[number][0]
            same = (item for item, at in results if at == slot and self._large.rows[item][0] == kind)
            yield from ((number, item) for item in [next(same, None)] if item is not None)

    def _pair(self, item: int, other: int) -> list[tuple[int, int]] | None:
        """Two items that must do the same; what has to be the same before them, or None if they do not."""
        (kind, reads, makes), (other_kind, other_reads, other_makes) = self._small.rows[item], self._large.rows[other]
        same = (kind, len(reads), makes) == (other_kind, len(other_reads), other_makes)
        if not same or self._small.contents[item] != self._large.contents[other]:
            return None
        self._items[item] = other
        below = []
        for here, there in zip(reads, other_reads, strict=True):
            if here[0] >= 0:
                if there[0] < 0 or here[1] != there[1]:
                    return None
                below.append((here[0], there[0]))
            elif (here == NOTHING) != (there == NOTHING) or self._given.setdefault(here, there) != there:
                return None
        return below
