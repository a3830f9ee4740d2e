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
from itertools import islice

from modelexport.record.hierarchy import ModuleCall
from modelexport.transform.fold.working_graph import FoldNode, WorkingGraph

Position = tuple[int, int]
"""The number of an item in its region, and a slot of it."""
Row = tuple[int, tuple[Position, ...], tuple[bool, ...]]
"""What an item does: its kind, where it reads from, and which outputs it has."""
# Where a formal comes from, in the place of a number of an item; a slot that is left out.
_FORMAL, NOTHING = -1, (-2, 0)


@dataclass(eq=False)
class FunctionPattern:
    """A body that is called at least once.

    calls    the regions that became calls of it, in the order of the file; the body is made from the first
    outputs  the positions whose values it returns; some callers may not read all of them
    """

    number: int
    class_name: str
    calls: list[FoldRegion] = field(default_factory=list)
    outputs: list[Position] = field(default_factory=list)


@dataclass(eq=False)
class FoldRegion:
    """The items that become one call of a module.

    values    the values that its items make, with their positions
    rows      what its items do; equal for regions of one pattern
    contents  for each item: which content, if it is a Constant
    """

    call: ModuleCall
    items: tuple[int, ...]
    formals: tuple[str, ...]
    values: Mapping[str, Position]
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
        values: dict[str, Position] = {}
        formals: dict[str, int] = {}
        rows: list[Row] = []
        for number, item in enumerate(items):
            reads = self.called[item].formals if item in self.called else working.fold_nodes[item].reads
            slots = tuple(_resolve_read(name, values, formals) for name in reads)
            outputs = self.makes(item)
            rows.append((self._kind(item), slots, tuple(map(bool, outputs))))
            values.update({name: (number, index) for index, name in enumerate(outputs) if name})
        contents = tuple(0 if item in self.called else working.fold_nodes[item].content for item in items)
        results = tuple(name for name in values if working.is_read_outside(name, inside))
        return FoldRegion(call, tuple(items), tuple(formals), values, tuple(rows), contents, results)

    def fold_node(self, item: int) -> FoldNode | None:
        return None if item in self.called else self._working.fold_nodes[item]

    def fold_node_at(self, region: FoldRegion, number: int) -> FoldNode:
        """The node at a position where a region has one."""
        return self._working.fold_nodes[region.items[number]]

    def makes(self, item: int) -> tuple[str, ...]:
        if item not in self.called:
            return self._working.fold_nodes[item].makes
        region = self.called[item]
        assert region.function is not None
        return tuple(self.value(region, output) for output in region.function.outputs)

    def value(self, region: FoldRegion, position: Position) -> str:
        """What a value of a body is called in one of the regions that it stands for."""
        number, slot = position
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

    def _kind(self, item: int) -> int:
        """Kinds of nodes are positive; calls of a function are of a kind of their own."""
        if item not in self.called:
            return self._working.fold_nodes[item].kind
        function = self.called[item].function
        assert function is not None
        return -1 - function.number


def _resolve_read(name: str, values: Mapping[str, Position], formals: dict[str, int]) -> Position:
    if not name:
        return NOTHING
    # A value that no item has made so far comes from outside: items are in an order in which they run.
    return values[name] if name in values else (_FORMAL, formals.setdefault(name, len(formals)))


# A core that is less than this share of a region is no gain in clarity.
_LEAST = 0.5
# A function of fewer nodes costs a reader more than it saves.
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
        self._given: dict[Position, Position] = {}

    def match_items(self) -> dict[int, int] | None:
        """By item of the smaller region: that of the larger one; None if one of them has no counterpart."""
        waiting = list(self._results())
        while waiting:
            item, counterpart = waiting.pop()
            if item in self._items:
                if self._items[item] != counterpart:
                    return None
                continue
            below = self._pair(item, counterpart)
            if below is None:
                return None
            waiting += below
        inside = set(self._items.values())
        complete = len(self._items) == len(inside) == len(self._small.items)
        # What the smaller region is given may not be made by the core in the larger one: that would be a cycle.
        return self._items if complete and inside.isdisjoint(item for item, _ in self._given.values()) else None

    def _results(self) -> Iterator[tuple[int, int]]:
        """Results in pairs, in their order; the larger region may have some more."""
        results = iter([self._large.values[name] for name in self._large.results])
        for name in self._small.results:
            number, slot = self._small.values[name]
            kind = self._small.rows[number][0]
            same = (item for item, at in results if at == slot and self._large.rows[item][0] == kind)
            yield from ((number, item) for item in islice(same, 1))

    def _pair(self, item: int, counterpart: int) -> list[tuple[int, int]] | None:
        """Two items that must do the same; what has to be the same before them, or None if they do not."""
        small, large = self._small.rows[item], self._large.rows[counterpart]
        same = (small[0], len(small[1]), small[2]) == (large[0], len(large[1]), large[2])
        if not same or self._small.contents[item] != self._large.contents[counterpart]:
            return None
        self._items[item] = counterpart
        below = []
        for here, there in zip(small[1], large[1], strict=True):
            if here[0] >= 0:
                if there[0] < 0 or here[1] != there[1]:
                    return None
                below.append((here[0], there[0]))
            elif (here == NOTHING) != (there == NOTHING) or self._given.setdefault(here, there) != there:
                return None
        return below
