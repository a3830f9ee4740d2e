"""Fingerprint (random projection): a tensor in four numbers, so that values of two runs can be compared without keeping
them.

Floats are projected on a few fixed random directions (Johnson and Lindenstrauss), after `squash`. Two kernels that do
the same arithmetic differ in the last bits, and so do the projections; other values differ by far more. Integers and
truth values are exact: they get a digest.

    [[0.1, -2.0], [3.5, 0.0]]  ->  shape (2, 2), kind float, sketch (1.3, -0.2, 0.8, 2.1), spread 2.43

Strategies match values by fingerprint; `verify` uses `graph/sample.py` instead (docs/decisions/0009).
"""

from __future__ import annotations

import hashlib
import math
from functools import cache

import numpy as np

from modelexport.graph.tensor_content import has_distinct, squash
from modelexport.record.signals import Fingerprint

_PROJECTIONS = 4
# Elements. Longer tensors are sampled.
_LONGEST = 1 << 18
# Fewer different numbers than these are met by chance.
_DISTINCTIVE = 4
_DIGEST_SIZE = 12


def fingerprint(array: np.ndarray) -> Fingerprint:
    """The fingerprint of an array; it depends on the shape and on the order of the elements."""
    shape = tuple(array.shape)
    if array.dtype.kind == "b":
        return Fingerprint(shape, "bool", digest=_digest_array(np.packbits(array)))
    if array.dtype.kind in "iu":
        return Fingerprint(shape, "int", digest=_digest_array(array.astype(np.int64, copy=False)))
    if array.dtype.kind not in "fcV" or array.dtype.names is not None:
        return Fingerprint(shape, "other")
    return _of_floats(shape, array)


def distance(a: Fingerprint, b: Fingerprint) -> float:
    """How far the contents of two tensors of one kind are apart, relative to their size; 0 or infinity if exact."""
    if a.kind != "float":
        return 0.0 if a.digest == b.digest else math.inf
    scale = max(a.spread, b.spread)
    return 0.0 if scale == 0.0 else math.dist(a.sketch, b.sketch) / scale


def _digest_array(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=_DIGEST_SIZE).digest()


def _of_floats(shape: tuple[int, ...], array: np.ndarray) -> Fingerprint:
    flat = np.ravel(array)
    if flat.size > _LONGEST:
        flat = flat[:: -(-flat.size // _LONGEST)]
    if flat.dtype.kind == "c":
        # Exporters write a complex tensor as pairs of floats, in one more axis at the end.
        flat = np.stack([flat.real, flat.imag], axis=-1).reshape(-1)
    squashed = squash(flat)
    sketch = _directions()[:, : len(squashed)] @ squashed
    spread, distinctive = float(np.linalg.norm(squashed)), has_distinct(squashed, _DISTINCTIVE)
    return Fingerprint(shape, "float", sketch=tuple(map(float, sketch)), spread=spread, distinctive=distinctive)


@cache
def _directions() -> np.ndarray:
    """Vectors in no particular direction, the same in every process."""
    return np.random.default_rng(0).standard_normal((_PROJECTIONS, 2 * _LONGEST))
