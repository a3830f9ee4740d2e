"""Fingerprints: what a tensor holds in a few numbers, so that values of two runs can be compared without keeping them.

Floats are projected on a few fixed directions. Two kernels that do the same arithmetic differ in the last bits, and so
do the projections; other values differ by far more. Before that they are compressed by `asinh`, or one masked place
(-3e38) would drown all the others. Integers and bools are exact: they get a digest.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache

import numpy as np

from modelexport.record.signals import Fingerprint

_PROJECTIONS = 4
# Longer tensors are sampled: the sketch of a gigabyte is no better than that of a megabyte.
_LONGEST = 1 << 18
# Fewer different numbers than these are met by chance.
_TELLING = 4
# Where one tool writes infinity another writes the largest float: they are the same here. NaN has a place beyond.
_INFINITE = float(np.arcsinh(np.finfo(np.float32).max))
_NOT_A_NUMBER = 2 * _INFINITE


def fingerprint(array: np.ndarray) -> Fingerprint:
    """The fingerprint of an array; it depends on the shape and on the order of the elements."""
    shape = tuple(array.shape)
    if array.dtype.kind == "b":
        return Fingerprint(shape, "bool", digest=_digest(np.packbits(array)))
    if array.dtype.kind in "iu":
        return Fingerprint(shape, "int", digest=_digest(array.astype(np.int64, copy=False)))
    if array.dtype.kind not in "fcV" or array.dtype.names is not None:
        return Fingerprint(shape, "other")
    return _of_floats(shape, array)


def same_content(a: Fingerprint, b: Fingerprint, tolerance: float) -> bool:
    return a.shape == b.shape and a.kind == b.kind and distance(a, b) <= tolerance


def distance(a: Fingerprint, b: Fingerprint) -> float:
    """How far the contents of two tensors of one kind are apart, relative to their size; 0 or infinity if exact."""
    if a.kind != "float":
        return 0.0 if a.digest == b.digest else math.inf
    scale = max(a.spread, b.spread)
    return 0.0 if scale == 0.0 else math.dist(a.sketch, b.sketch) / scale


def _digest(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=12).digest()


def _of_floats(shape: tuple[int, ...], array: np.ndarray) -> Fingerprint:
    flat = _sampled(array)
    if flat.dtype.kind == "c":
        flat = np.stack([flat.real, flat.imag], axis=-1).reshape(-1)
    squashed = np.arcsinh(flat.astype(np.float64, copy=False))
    np.clip(squashed, -_INFINITE, _INFINITE, out=squashed)
    np.nan_to_num(squashed, copy=False, nan=_NOT_A_NUMBER)
    sketch = _directions()[:, : len(squashed)] @ squashed
    return Fingerprint(
        shape,
        "float",
        sketch=tuple(map(float, sketch)),
        spread=float(np.linalg.norm(squashed)),
        telling=_is_telling(squashed),
    )


def _sampled(array: np.ndarray) -> np.ndarray:
    flat = np.ravel(array)
    return flat if flat.size <= _LONGEST else flat[:: -(-flat.size // _LONGEST)]


def _is_telling(values: np.ndarray) -> bool:
    if values.size < _TELLING:
        return False
    head = np.unique(values[:64])
    return len(head) >= _TELLING or len(np.unique(values)) >= _TELLING


@cache
def _directions() -> np.ndarray:
    """Vectors in no particular direction, the same in every process."""
    found: np.ndarray = np.random.default_rng(0).standard_normal((_PROJECTIONS, 2 * _LONGEST))
    return found
