"""Regions that do what another one does, and a little more.

Exporters often give one layer some nodes that another one has no need of: the first one reads a shape that is known
already, the others work it out. Then the larger body calls the smaller one, and adds what it does besides.
"""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.folding.patterns import NOTHING, Place, Region

# A core that is less than this share of a region is no gain in clarity.
_LEAST = 0.5
_SMALLEST = 4


def core_of(small: Region, large: Region) -> list[int] | None:
    """Which items of `large` do what `small` does, item by item; None if it does not contain it."""
    if not _SMALLEST <= len(small.items) < len(large.items) or len(small.items) < _LEAST * len(large.items):
        return None
    found = _Match(small, large).found()
    return None if found is None else [found[number] for number in range(len(small.items))]


class _Match:
    """Goes from the results back to what they are made from, in both regions at once."""

    def __init__(self, small: Region, large: Region) -> None:
        self._small = small
        self._large = large
        self._items: dict[int, int] = {}
        self._given: dict[Place, Place] = {}

    def found(self) -> dict[int, int] | None:
        waiting = list(self._results())
        while waiting:
            one, other = waiting.pop()
            if one in self._items:
                if self._items[one] != other:
                    return None
                continue
            below = self._pair(one, other)
            if below is None:
                return None
            waiting += below
        inside = set(self._items.values())
        whole = len(self._items) == len(inside) == len(self._small.items)
        return self._items if whole and all(place[0] not in inside for place in self._given.values()) else None

    def _results(self) -> Iterator[tuple[int, int]]:
        """Results in pairs, in their order; the larger region may have some more."""
        theirs = iter([self._large.values[name] for name in self._large.results])
        for name in self._small.results:
            number, slot = self._small.values[name]
            kind = self._small.rows[number][0]
            same = (one for one, at in theirs if at == slot and self._large.rows[one][0] == kind)
            yield from ((number, one) for one in [next(same, None)] if one is not None)

    def _pair(self, one: int, other: int) -> list[tuple[int, int]] | None:
        """Two items that must do the same; what has to be the same before them, or None if they do not."""
        (kind, reads, makes), (other_kind, other_reads, other_makes) = self._small.rows[one], self._large.rows[other]
        same = (kind, len(reads), makes) == (other_kind, len(other_reads), other_makes)
        if not same or self._small.contents[one] != self._large.contents[other]:
            return None
        self._items[one] = other
        below = []
        for place, there in zip(reads, other_reads, strict=True):
            if place[0] >= 0:
                if there[0] < 0 or place[1] != there[1]:
                    return None
                below.append((place[0], there[0]))
            elif (place == NOTHING) != (there == NOTHING) or self._given.setdefault(place, there) != there:
                return None
        return below
