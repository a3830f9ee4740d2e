"""Difference of two tensors: how far they are apart, and whether that is more than their types explain.

    reference  float32 [1.0, 2.0]    got  float32 [1.0, 2.001]    differ: 0.001 is more than 1e-4 × (2 + rms)
    reference  float16 [1.0, 2.0]    got  float16 [1.0, 2.001]    agree: float16 has three digits
    reference  float32 [1e-9, 2e-9]  got  float32 [1e-9, 3e-9]    too small to tell, until their rounding is known

Tolerances are decided here, for `export` and `verify` alike: `adapt_tolerance` makes them follow the type, `measure`
applies them. Numbers may be the rest of larger ones that cancelled, so up to 1e-5 nothing is called different by the
numbers alone. Such a difference is too small to tell (`Difference.too_small`), until `settle_by_noise` is told by how
much rounding changes them. `measure` works in slices, so that neither tensor is ever copied as a whole. SQNR is the
ratio of signal to noise power in decibels, the signal being the mean power of both: it is the same in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from modelexport.graph.sample import Sample
from modelexport.record.results.verification import Difference, Tolerance

_SLICE = 1 << 16
# A hundred times what the same arithmetic in another order was seen to change in float32: of numbers about one, which
# may cancel out and leave nothing but that, and of a tensor's usual size.
_ATOL, _RTOL = 1e-5, 1e-4
# Two correct programs differ by a few times what other last bits change in one of them.
_NOISE = 10.0
# What tools write for an infinity: the largest float16, or what converters to float16 take by default
# (`max_finite_val` in https://github.com/microsoft/onnxconverter-common/blob/master/onnxconverter_common/float16.py).
_STAND_INS = (1e4, 65504.0)
# How far a single element may be off, in parts of what a coarse type allows.
_OUTLIER = 4.0
_ENDLESS = 3.38e38
_HUGE = 1e14


def adapt_tolerance(tolerance: Tolerance, *samples: Sample) -> Tolerance:
    """The tolerance where nobody chose one: numbers that went through a type with few bits are as coarse as that."""
    coarsest = max(samples, key=lambda sample: sample.grain, default=None)
    if tolerance.rtol is not None or coarsest is None or not coarsest.is_coarse:
        return tolerance
    return replace(tolerance, rtol=coarsest.grain, of_type=True)


def describe_tolerance(tolerance: Tolerance) -> str:
    """What an element may differ by: `0.0001 × (element + root mean square)`."""
    atol, rtol = tolerance.atol, _bounds(tolerance)[1]
    absolute = "" if atol is None else f"{atol:g} + "
    return f"{absolute}{rtol:g} × (element + root mean square)"


def settle_by_noise(difference: Difference, noise: float, *, limit: float = _ATOL) -> Difference:
    """A difference that was too small to tell, once it is known by how much rounding alone changes the numbers.

    limit  what is called different whatever rounding changes
    """
    if not difference.excess:
        return difference
    return replace(difference, agrees=difference.excess <= min(limit, _NOISE * noise) and not difference.unlike)


def _bounds(tolerance: Tolerance) -> tuple[float, float]:
    atol = _ATOL if tolerance.atol is None else tolerance.atol
    return atol, _RTOL if tolerance.rtol is None else tolerance.rtol


def measure(reference: np.ndarray, got: np.ndarray, tolerance: Tolerance) -> Difference:
    """Both hold the same number of elements, in the same order.

    The signal is the mean power of the two, so that both directions of a comparison give the same figure.
    """
    usual = _root_mean_square(reference)
    atol, rtol = _bounds(tolerance)
    sums = _Sums(usual, rtol, rtol * usual)
    for expected, actual in _slices(reference, got):
        sums.add(expected, actual)
    # What is not finite in one of them only is noise beyond any signal.
    sqnr = -math.inf if sums.unlike else _decibels((sums.reference + sums.got) / 2, sums.noise)
    surely = sums.excess <= 0 or (tolerance.of_type and _is_rounding(sums.max_rel, sqnr, rtol))
    fits = surely or sums.excess <= atol
    if tolerance.min_sqnr is not None:
        fits = surely = sqnr >= tolerance.min_sqnr
    if reference.dtype.kind in "iub" and got.dtype.kind in "iub":
        fits = surely = sums.max_abs <= (tolerance.atol or 0.0)  # an index that is off by one is another index
    # Who chose a limit has decided what is small.
    excess = 0.0 if surely or tolerance.atol is not None or tolerance.min_sqnr is not None else sums.excess
    agrees = bool(fits) and not sums.unlike
    nothing_finite = bool(reference.size) and not sums.finite and not sums.unlike
    cosine = math.nan if nothing_finite else _cosine(sums)
    return Difference(sums.max_abs, sums.max_rel, sqnr, cosine, sums.unlike, agrees, excess, nothing_finite)


def _is_rounding(max_rel: float, sqnr: float, grain: float) -> bool:
    """Whether few bits explain it. Errors of rounding add up: they are small on the whole, and single ones larger."""
    return max_rel <= _OUTLIER * grain and sqnr >= _decibels(1.0, (grain / 2) ** 2)


@dataclass(slots=True)
class _Sums:
    """What one pass over the slices adds up.

    usual   the root mean square of the reference
    slack   what an element may differ by, beyond rtol × itself
    excess  by how much an element differs by more; 0 if none does
    finite  how many elements were compared
    """

    usual: float
    rtol: float
    slack: float
    reference: float = 0.0
    got: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    excess: float = 0.0
    unlike: int = 0
    finite: int = 0

    def add(self, expected: np.ndarray, actual: np.ndarray) -> None:
        powers = _power(expected), _power(actual)
        if not math.isfinite(sum(powers)):
            expected, actual, unlike = _finite_pairs(expected, actual)
            powers = _power(expected), _power(actual)
            self.unlike += unlike
        if not expected.size:
            return
        self.finite += expected.size
        self.reference += powers[0]
        self.got += powers[1]
        apart = expected - actual
        noise = _power(apart)
        np.abs(apart, out=apart)
        largest = float(apart.max())
        # Squares of what is very small are zero, and a difference must never be none.
        self.noise += max(noise, largest * largest)
        self.max_abs = max(self.max_abs, largest)
        if largest:
            self._compare_sizes(apart, np.abs(expected), largest)

    def _compare_sizes(self, apart: np.ndarray, sizes: np.ndarray, largest: float) -> None:
        """How large differences are beside the elements. `sizes` is written into."""
        if not largest <= self.slack:
            beyond = float((apart - self.rtol * sizes).max()) - self.slack
            self.excess = max(self.excess, math.inf if math.isnan(beyond) else beyond)
        if largest <= self.max_rel * self.usual:
            return  # not even beside a zero would it be the largest
        sizes += self.usual
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            relative = np.divide(apart, sizes, out=sizes)
        self.max_rel = max(self.max_rel, float(np.nanmax(relative) if self.usual == 0.0 else relative.max()))


def _slices(reference: np.ndarray, got: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    expected, actual = np.ravel(reference), np.ravel(got)
    for start in range(0, expected.size, _SLICE):
        yield _as_float(expected[start : start + _SLICE]), _as_float(actual[start : start + _SLICE])


def _as_float(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32 if values.dtype == np.float32 else np.float64, copy=False)


def _finite_pairs(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The elements that are finite in both, in double precision, and how many are unlike in not being so.

    Masks are full of infinities, or of the largest number of some type in their place, or of that after some more
    arithmetic: one is as good as the other.
    """
    with np.errstate(all="ignore"):
        sizes = np.abs(a), np.abs(b)
        endless = sizes[0] >= _ENDLESS, sizes[1] >= _ENDLESS
        plain = (sizes[0] < _ENDLESS) & (sizes[1] < _ENDLESS)
        both_nan = np.isnan(a) & np.isnan(b)
        huge = (endless[0] | endless[1]) & (np.minimum(*sizes) >= _HUGE)
        stands_in = (endless[0] & np.isin(sizes[1], _STAND_INS)) | (endless[1] & np.isin(sizes[0], _STAND_INS))
        same_side = (huge | stands_in) & (np.sign(a) == np.sign(b))
    unlike = int(np.count_nonzero(~(plain | both_nan | same_side)))
    return a[plain].astype(np.float64), b[plain].astype(np.float64), unlike


def _root_mean_square(array: np.ndarray) -> float:
    total, count = 0.0, 0
    for part, _ in _slices(array, array):
        power = _power(part)
        # Looking for what is not finite takes longer than the sum itself, and is hardly ever needed.
        finite = part if math.isfinite(power) else _finite_pairs(part, part)[0]
        total += power if finite is part else _power(finite)
        count += finite.size
    return math.sqrt(total / count) if count else 0.0


def _power(values: np.ndarray) -> float:
    """The sum of squares. Unlike `numpy.dot` it takes one thread only: those of two frameworks are waiting already."""
    with np.errstate(all="ignore"):
        return float(np.einsum("i,i->", values, values))


def _decibels(signal: float, noise: float) -> float:
    if noise == 0.0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _cosine(sums: _Sums) -> float:
    if sums.unlike:
        return 0.0
    if sums.noise == 0.0:
        return 1.0
    scale = math.sqrt(sums.reference * sums.got)
    product = (sums.reference + sums.got - sums.noise) / 2
    return max(-1.0, min(1.0, product / scale)) if scale else 0.0
