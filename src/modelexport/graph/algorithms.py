"""Graph algorithms: backward slices, value numbering, disjoint sets and topological order.

The questions that every room asks of a graph, answered once, for whatever is in the graph: nodes, keys of nodes, names
of values, operators of a torch run. Nothing here knows ONNX.

    x ──► Exp ──► Add ──► Relu ──► r      backward_slice([Add], makers)       Add, Exp
          y ─────► │                      ValueNumbers                        Add(e, y) and Add(y, e): one number
                                          topological_order(makers, position) Exp, Add, Relu

What a graph of the index itself can answer is there: `Graph.running_order`, `Graph.successors`, `Graph.predecessors`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def group_by_key(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, tuple[Value, ...]]:
    """The values of each key. Keys, and the values of one key, stay in the order in which they came."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in groups.items()}


def backward_slice(
    starts: Iterable[Item], step: Callable[[Item], Iterable[Item]], *, limit: int | None = None
) -> list[Item]:
    """Everything that `starts` are computed from, themselves included, in the order in which it is reached.

    step   what an item is computed from. It leaves out where the slice has to end: at anchors, weights, a border.
           With readers in place of makers, this is a forward slice.
    limit  the slice is given up at so many items: a region of thousands of nodes says nothing, and costs every reader.
    """
    reached: dict[Item, None] = {}
    waiting = list(starts)
    while waiting and (limit is None or len(reached) < limit):
        item = waiting.pop()
        if item not in reached:
            reached[item] = None
            waiting += step(item)
    return list(reached)


class ValueNumbers:
    """Value numbering (hash consing): equal descriptions get equal numbers, so that a comparison takes one step.

    Operations have one number if, and only if, they have one operator and operands of the same numbers. One table may
    serve several graphs: then numbers say what is the same in all of them.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def __call__(self, description: Hashable) -> int:
        return self._numbers.setdefault(description, len(self._numbers))

    def number_operation(self, operator: Hashable, operands: Sequence[int], *, commutative: bool) -> int:
        """`Max(a, b)` and `Max(b, a)` are one operation; `Sub(a, b)` and `Sub(b, a)` are two."""
        return self(("operation", operator, tuple(sorted(operands) if commutative else operands)))

    def number_output(self, operation: int, index: int) -> int:
        return self(("output", operation, index))


class UnionFind(Generic[Item]):
    """Disjoint sets (union by size, path halving). Groups and their items stay in the order in which they came."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._parents: dict[Item, Item] = {}
        self._sizes: dict[Item, int] = {}
        for item in items:
            self.add(item)

    def __contains__(self, item: object) -> bool:
        return item in self._parents

    def __iter__(self) -> Iterator[Item]:
        return iter(self._parents)

    def add(self, item: Item) -> None:
        if item not in self._parents:
            self._parents[item] = item
            self._sizes[item] = 1

    def find(self, item: Item) -> Item:
        parents = self._parents
        while parents[item] != item:
            parents[item] = item = parents[parents[item]]
        return item

    def join(self, item: Item, other: Item) -> tuple[Item, Item] | None:
        """Join two sets: what stands for both now, and what stood for the other until now. None if they were one."""
        self.add(item)
        self.add(other)
        kept, gone = self.find(item), self.find(other)
        if kept == gone:
            return None
        if self._sizes[kept] < self._sizes[gone]:
            kept, gone = gone, kept
        self._parents[gone] = kept
        self._sizes[kept] += self._sizes.pop(gone)
        return kept, gone

    def join_all(self, items: Sequence[Item]) -> None:
        for item in items[1:]:
            self.join(items[0], item)

    def numbers(self) -> dict[Item, int]:
        numbers: dict[Item, int] = {}
        return {item: numbers.setdefault(self.find(item), len(numbers)) for item in self._parents}

    def groups(self) -> list[list[Item]]:
        return list(map(list, group_by_key((self.find(item), item) for item in self._parents).values()))


def topological_order(needs: Mapping[Item, Collection[Item]], rank: Callable[[Item], int]) -> Iterator[Item]:
    """Each item after all that it needs; of those that could come next, the one of the lowest rank (Kahn's algorithm).

    Where a cycle leaves nothing that could come next, the first item of `needs` that is left does.
    """
    missing = {item: {needed for needed in needed_by if needed in needs} for item, needed_by in needs.items()}
    readers = group_by_key((needed, item) for item, unmet in missing.items() for needed in unmet)
    # Numbers keep items of equal rank in their order, and items that cannot be compared out of the comparison.
    numbers = {item: number for number, item in enumerate(needs)}
    ready = [(rank(item), numbers[item], item) for item, unmet in missing.items() if not unmet]
    heapq.heapify(ready)
    while missing:
        item = heapq.heappop(ready)[2] if ready else next(iter(missing))
        del missing[item]
        yield item
        for reader in readers.get(item, ()):
            if reader in missing:
                missing[reader].discard(item)
                if not missing[reader]:
                    heapq.heappush(ready, (rank(reader), numbers[reader], reader))
