"""Finding values by what they hold."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from modelexport.graph.sample import Sample, distance

# Of several that are alike, those that are nearly as close as the closest are not told apart by it.
_AS_CLOSE = 4.0
_ROUNDING = 1e-6


@dataclass(frozen=True)
class _Shelf:
    """Values of one kind and size, by their length. `grain` is that of the coarsest."""

    lengths: Sequence[float]
    numbers: Sequence[int]
    grain: float


class Lookup:
    """The values of one run, by content."""

    def __init__(self, samples: Mapping[int, Sample]) -> None:
        self._samples = samples
        self._shelves = _shelved(samples)

    def alike(self, wanted: Sample) -> tuple[int, ...]:
        """The values that hold the same, whatever their shape: the closest, and all that are as close."""
        shelf = self._shelves.get((wanted.kind, wanted.size))
        if shelf is None:
            return ()
        near = sorted((distance(self._samples[number], wanted), number) for number in self._around(shelf, wanted))
        near = [(apart, number) for apart, number in near if apart <= _grain(self._samples[number], wanted)]
        if not near:
            return ()
        closest = near[0][0]
        return tuple(number for apart, number in near if apart <= max(_AS_CLOSE * closest, _ROUNDING))

    def nearest(self, wanted: Sample, among: Iterable[int]) -> int | None:
        """The one that is least far away; of those with the same shape, if there are any."""
        fitting = [number for number in among if distance(self._samples[number], wanted) < math.inf]
        same = [number for number in fitting if self._samples[number].shape == wanted.shape]
        return min(same or fitting, key=lambda number: distance(self._samples[number], wanted), default=None)

    def _around(self, shelf: _Shelf, wanted: Sample) -> Sequence[int]:
        # Vectors that are close have nearly the same length.
        slack = 2 * max(shelf.grain, wanted.grain) * wanted.length
        start = bisect_left(shelf.lengths, wanted.length - slack)
        return shelf.numbers[start : bisect_right(shelf.lengths, wanted.length + slack)]


def _grain(a: Sample, b: Sample) -> float:
    return max(a.grain, b.grain)


def _shelved(samples: Mapping[int, Sample]) -> dict[tuple[str, int], _Shelf]:
    found: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for number, one in samples.items():
        if one.kind != "other":
            found.setdefault((one.kind, one.size), []).append((one.length, number))
    return {key: _shelf(sorted(pairs), samples) for key, pairs in found.items()}


def _shelf(pairs: Sequence[tuple[float, int]], samples: Mapping[int, Sample]) -> _Shelf:
    lengths, numbers = zip(*pairs, strict=True)
    return _Shelf(lengths, numbers, max(samples[number].grain for number in numbers))
