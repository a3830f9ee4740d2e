"""A weight in a few numbers: enough to know it again after it was cast, turned, rescaled or quantized."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

_FLOAT, _BITS = struct.Struct("<f"), struct.Struct("<I")
_LARGEST, _SIGN = 0x7F7F, 0x8000

PLACES = 8
# Between the middle of a sketch's numbers and the outermost.
STEPS = 127
# What half precision takes from a number, and how far apart two neighbours are among the numbers that are kept.
_HALF, _DIGITS = 1e-3, 2**-7
# Of numbers that were rounded to a few bits with their original; others hardly ever come near.
_QUANTIZED = 0.97


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is on the diagonal, which stays the same whatever the order of the axes.

    sides      the axes that are longer than one, shortest first
    middle     between the smallest and the largest of the numbers
    spread     from there to both of them
    steps      the numbers, in 127ths of the spread
    quantized  they are integers, and say nothing about size without a scale
    """

    sides: tuple[int, ...]
    middle: float
    spread: float
    steps: tuple[int, ...]
    quantized: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left out."""
        return not self.sides or (len(self.sides) == 1 and self.sides[0] <= PLACES)

    @property
    def is_telling(self) -> bool:
        """Whether another weight would hardly have the same."""
        return len(set(self.steps)) > PLACES // 2

    def distance(self, other: Sketch) -> float:
        """How far apart the same numbers are in two float formats; infinite if they are not the same."""
        if self.sides != other.sides or self.quantized or other.quantized:
            return math.inf
        size = max(abs(self.middle) + self.spread, abs(other.middle) + other.spread)
        slack = _DIGITS * size
        off = abs(self.middle - other.middle), abs(self.spread - other.spread)
        if max(off) > slack:
            return math.inf
        allowed = 1 + STEPS * _HALF * size / self.spread if self.spread else STEPS
        apart = [abs(a - b) for a, b in zip(self.steps, other.steps, strict=True)]
        return sum(apart) + (sum(off) / size if size else 0.0) if max(apart) <= allowed else math.inf

    def likeness(self, other: Sketch) -> float:
        """Up to 1 for numbers that go up and down together, 0 for others."""
        if self.sides != other.sides:
            return 0.0
        correlation = _correlation(self.steps, other.steps)
        return correlation if correlation >= _QUANTIZED else 0.0


def shortened(number: float) -> int:
    """The upper half of a float's bits: enough for two digits and a half of any size."""
    bits: int = _BITS.unpack(_FLOAT.pack(number))[0]
    return min((bits + 0x8000) >> 16, _LARGEST | (bits >> 16 & _SIGN))


def lengthened(short: int) -> float:
    found: float = _FLOAT.unpack(_BITS.pack(short << 16))[0]
    return found


# By the name of a constant; None for what cannot be sketched.
Sketches = Callable[[str], "Sketch | None"]


def _correlation(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    x = [value - sum(a) / len(a) for value in a]
    y = [value - sum(b) / len(b) for value in b]
    scale = math.sqrt(sum(value * value for value in x) * sum(value * value for value in y))
    return sum(one * other for one, other in zip(x, y, strict=True)) / scale if scale else 0.0
