"""Sample: up to 512 elements of a tensor, enough to tell which tensors of two runs are the same, without keeping them.

A fingerprint says whether two tensors are alike; a sample also survives a change of shape that leaves the order of the
elements as it is, and says how far two tensors are apart. Elements are compared after `squash`.

    (2, 3) [[1, 2, 3], [4, 5, 6]]  and  (6,) [1, 2, 3, 4, 5, 6.00001]   distance 2e-6: alike

The witness of `verify` is built on samples alone; strategies use `graph/fingerprint.py` (docs/decisions/0009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from modelexport.graph.tensor_content import has_distinct, squash

NAN, INF = "NaN", "Inf"
_ELEMENTS = 512
# Fewer different numbers than these are met by chance.
_DISTINCTIVE = 8
# Two kernels that do the same arithmetic differ by some of the last bits; other values by far more.
_SINGLE = 3e-4
_COARSE_BITS = 20
# Rounding errors are as large as the last bits of the largest number. Beyond this one they show after `squash`.
_LARGE = 2.0**12
LOOSEST = 0.05


@dataclass(frozen=True, eq=False, slots=True)
class Sample:
    """
    kind     `float`, `int`, `bool` or `other` (nothing can be seen)
    values   what is at the sampled places
    length   of `values` as a vector: what distances are measured by
    grain    how far apart two runs of the same arithmetic may be in this type
    distinctive  whether equal content is a reason to believe in a common origin: few elements or few numbers are not
    trouble  `NaN` or `Inf` if there is one anywhere in the tensor, NaN first; else empty
    """

    shape: tuple[int, ...]
    kind: str
    values: np.ndarray
    length: float
    grain: float
    distinctive: bool
    trouble: str = ""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def places(self) -> np.ndarray:
        """Indices of `values` in the flattened tensor."""
        return np.arange(self.size) if self.size <= _ELEMENTS else _element_indices(self.size)

    @property
    def is_coarse(self) -> bool:
        """Whether it is of a type with few bits, or was made from one."""
        return self.grain > _SINGLE

    def made_from(self, sources: Iterable[Sample]) -> Sample:
        """The same, known to be no finer than what it was made from."""
        grain = max((source.grain for source in sources), default=0.0)
        return replace(self, grain=grain) if self.kind == "float" and grain > self.grain else self


def sample(array: np.ndarray, *, is_sound: bool = False) -> Sample:
    """`is_sound` says that everything in it is known to be finite: then only a few places have to be read."""
    kind = {"b": "bool", "i": "int", "u": "int", "f": "float", "V": "float"}.get(array.dtype.kind, "other")
    if kind == "other" or array.dtype.names is not None:
        return unseen(tuple(array.shape))
    elements = _pick_elements(array)
    values = _squash_above_rounding(elements) if kind == "float" else elements.astype(np.float64)
    length = float(np.sqrt(np.dot(values, values)))
    grain, trouble = _grain(array.dtype, kind), "" if is_sound else _trouble_in(array)
    return Sample(tuple(array.shape), kind, values, length, grain, has_distinct(values, _DISTINCTIVE), trouble)


def unseen(shape: tuple[int, ...]) -> Sample:
    """A tensor whose content cannot be looked at."""
    return Sample(shape, "other", np.empty(0), 0.0, 0.0, False)


def distance(a: Sample, b: Sample) -> float:
    """How far apart two tensors are, relative to their size; infinite if they cannot hold the same."""
    if a.kind != b.kind or a.kind == "other" or a.size != b.size:
        return math.inf
    scale = max(a.length, b.length)
    if scale == 0.0:
        return 0.0
    apart = a.values - b.values
    return math.sqrt(float(np.dot(apart, apart))) / scale


def alike(a: Sample, b: Sample) -> bool:
    """Whether two tensors hold the same, whatever their shapes."""
    return distance(a, b) <= max(a.grain, b.grain)


def shared_share(whole: Sample, part: Sample, offset: int) -> tuple[bool, bool]:
    """Whether a tensor may be the columns of another from `offset` on, and whether that is certain.

    (2, 3) [[1, 2, 3], [4, 5, 6]], part (2, 2) [[2, 3], [5, 6]], offset 1      yes, if there were more numbers

    Elements are compared that both samples kept; of large tensors these may be few, and prove nothing.
    """
    width = part.shape[-1]
    rows, columns = np.divmod(whole.places, whole.shape[-1])
    inside = (columns >= offset) & (columns < offset + width)
    places = rows[inside] * width + columns[inside] - offset
    _, kept, kept_of_part = np.intersect1d(places, part.places, return_indices=True)
    got, wanted = whole.values[inside][kept], part.values[kept_of_part]
    scale = max(float(np.linalg.norm(got)), float(np.linalg.norm(wanted)))
    is_same = float(np.linalg.norm(got - wanted)) <= max(whole.grain, part.grain) * scale
    return is_same, is_same and has_distinct(got, _DISTINCTIVE)


def _pick_elements(array: np.ndarray) -> np.ndarray:
    if array.size <= _ELEMENTS:
        return np.ravel(array)
    indices = _element_indices(array.size)
    # Flattening a strided array would copy all of it.
    is_flat = array.flags.c_contiguous
    elements: np.ndarray = array.reshape(-1)[indices] if is_flat else array[np.unravel_index(indices, array.shape)]
    return elements


def _squash_above_rounding(elements: np.ndarray) -> np.ndarray:
    """`squash`, after which two runs of the same arithmetic are still close together.

    [7e6, 3e5, …, 0.2]      0.2 may be 1.7 in another run: numbers are measured by 7e6 / 4096, and 7e6 keeps its size
    [-1e9, 0.3, -1e9, 2]    numbers of one size stand for infinity, in a mask, and say nothing of the others
    """
    magnitudes = np.abs(elements.astype(np.float64))
    magnitudes = magnitudes[np.isfinite(magnitudes)]
    largest = float(magnitudes.max(initial=0.0))
    large = magnitudes[magnitudes > largest / 1024]
    if largest <= _LARGE or not has_distinct(np.round(large / largest, 3), _DISTINCTIVE):
        return squash(elements)
    return squash(elements * (_LARGE / largest)) * (math.asinh(largest) / math.asinh(_LARGE))


@lru_cache(maxsize=256)
def _element_indices(size: int) -> np.ndarray:
    """Drawn at random, the same for every tensor of one size; evenly spaced ones would hit one column."""
    return np.sort(np.random.default_rng(size).integers(0, size, _ELEMENTS))


def _trouble_in(array: np.ndarray) -> str:
    if array.dtype.kind != "f":
        return ""
    with np.errstate(all="ignore"):
        total = float(array.sum())  # one number tells at once that all is well
    if math.isfinite(total):
        return ""
    if np.isnan(array).any():
        return NAN
    return INF if np.isinf(array).any() else ""


def _grain(dtype: np.dtype, kind: str) -> float:
    if kind != "float":
        return 0.0
    try:
        last_bit = float(np.finfo(dtype).eps)
    except ValueError:  # a type that was added to numpy
        return LOOSEST
    return _SINGLE if last_bit < 1e-6 else min(_COARSE_BITS * last_bit, LOOSEST)
