"""Tensor content: the arithmetic under fingerprints, samples and sketches, and an index of values by a number.

`fingerprint` (for strategies) and `sample` (for `verify`) describe a tensor in different ways and stay apart, so that a
fault in one is not a fault in both (docs/decisions/0009). What they share is plain arithmetic with tests of its own:

    squash        x -> asinh(x), so that one masked element (-3e38) does not drown all the others
    has_distinct  whether equal content is more than chance
    NearIndex     values in buckets (kind, size), each bucket sorted by one number, searched by bisection

Which of the candidates holds the same as a tensor is decided by the caller, by its own measure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

# Where one tool writes infinity another writes the largest float: they are the same here. NaN has a place beyond.
_INFINITE = float(np.arcsinh(np.finfo(np.float32).max))
_NOT_A_NUMBER = 2 * _INFINITE
# Elements that are looked at first, as a multiple of the different numbers that are wanted.
_FIRST_LOOK = 16

_Bucket = TypeVar("_Bucket", bound=Hashable)


def squash(values: np.ndarray) -> np.ndarray:
    """A new array of finite float64, of about the size of the logarithm for large numbers."""
    with np.errstate(over="ignore"):
        squashed: np.ndarray = np.arcsinh(values.astype(np.float64, copy=False))
    np.clip(squashed, -_INFINITE, _INFINITE, out=squashed)
    np.nan_to_num(squashed, copy=False, nan=_NOT_A_NUMBER)
    return squashed


def has_distinct(values: np.ndarray, count: int) -> bool:
    """Whether there are so many different numbers: tensors of fewer (zeros, ones, a mask) are equal by chance."""
    first = values[: _FIRST_LOOK * count]
    return values.size >= count and (len(np.unique(first)) >= count or len(np.unique(values)) >= count)


@dataclass(frozen=True)
class NearIndex(Generic[_Bucket]):
    """Numbered values, by bucket and by one number in it: close tensors have close norms and close projections."""

    _buckets: Mapping[_Bucket, tuple[list[float], list[int]]]

    @classmethod
    def of(cls, entries: Iterable[tuple[_Bucket, float, int]]) -> NearIndex[_Bucket]:
        """From bucket, sort key and number of each value."""
        buckets: dict[_Bucket, tuple[list[float], list[int]]] = {}
        for bucket, key, number in sorted(entries, key=lambda entry: entry[1:]):
            keys, numbers = buckets.setdefault(bucket, ([], []))
            keys.append(key)
            numbers.append(number)
        return cls(buckets)

    def near(self, bucket: _Bucket, key: float, reach: float) -> list[int]:
        """Numbers of the values of a bucket whose sort key is at most `reach` away."""
        keys, numbers = self._buckets.get(bucket, ([], []))
        return numbers[bisect_left(keys, key - reach) : bisect_right(keys, key + reach)]
