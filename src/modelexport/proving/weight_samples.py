"""Looking at a few places of large weights, with the precision that they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_MOST = 1 << 16
# Of a large matrix as many places along each side, so that its transposition is sampled at the same ones.
_SIDE = 1 << 8
# Neighbours are looked at together: they are in memory together.
_RUN = 16
# Different numbers that do not all have short fractions by chance.
_TELLING = 16
# The bits of a float32 that bfloat16 does not have.
_LOWER_HALF = np.uint32(0xFFFF)


@dataclass(frozen=True)
class Precision:
    """What a number format can tell apart. `step` is relative; `smallest` is next to zero."""

    step: float
    smallest: float
    largest: float

    def cut(self, array: np.ndarray) -> np.ndarray:
        """The numbers, none beyond what the format can hold."""
        return np.clip(array.astype(np.float64), -self.largest, self.largest)

    def allowed(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """How far numbers may be apart that are the same in this format: converters round as they like."""
        found: np.ndarray = self.step * np.fmax(np.abs(a), np.abs(b)) + self.smallest
        return found


# By name, because numpy itself does not know the second one. Narrowest first.
_FORMATS = {
    "bfloat16": Precision(2.0**-7, 2.0**-133, 3.3895e38),
    "float16": Precision(2.0**-10, 2.0**-24, 65504.0),
    "float32": Precision(2.0**-23, 2.0**-149, 3.4028e38),
    "float64": Precision(2.0**-52, 2.0**-1074, 1.7976e308),
}


def precision_of(dtype: np.dtype[Any]) -> Precision | None:
    """None for what is no plain float: integers, and floats of a byte, which mean nothing without their scales."""
    return _FORMATS.get(dtype.name)


def rounded_to(values: np.ndarray) -> str:
    """The narrow format that some numbers went through before they were widened again; empty if they did not.

    A few numbers fit everywhere, and so do whole ones.
    """
    if values.dtype != np.float32 or len(np.unique(values)) < _TELLING or np.array_equal(values, np.rint(values)):
        return ""
    if not (np.ascontiguousarray(values).view(np.uint32) & _LOWER_HALF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        half = np.array_equal(values, values.astype(np.float16).astype(np.float32))
    return "float16" if half else ""


def held_precision(values: np.ndarray) -> Precision | None:
    """That of the format that numbers were rounded to before; None if they were not."""
    return _FORMATS.get(rounded_to(values))


def narrower(a: np.dtype[Any], b: np.dtype[Any]) -> Precision:
    return next(precision for name, precision in _FORMATS.items() if name in (a.name, b.name))


def sampled(array: np.ndarray) -> np.ndarray:
    """A table of at most 65,536 elements; of a matrix and its transposition, the same ones. `array` is not empty."""
    table = array.reshape(1, -1) if array.ndim < 2 else array.reshape(len(array), -1)
    rows, columns = table.shape
    height, down, taken_down = _blocks(rows, max(_SIDE, _MOST // columns))
    width, across, taken_across = _blocks(columns, max(_SIDE, _MOST // rows))
    blocks = table[: height * down, : width * across].reshape(height, down, width, across)
    found: np.ndarray = blocks[:, :taken_down, :, :taken_across].reshape(height * taken_down, width * taken_across)
    return found


def _blocks(size: int, most: int) -> tuple[int, int, int]:
    """How many blocks, how long each is, and how much of each is looked at."""
    if size <= most:
        return 1, size, size
    count = max(1, most // _RUN)
    return count, size // count, min(_RUN, size // count)
