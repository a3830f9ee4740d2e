"""Numeric comparison: pairs the values of two runs while the second one happens, and measures each pair.

By content first: a value of the second run that holds what some value of the reference holds *is* that value, wherever
it is. By place then: whatever else comes out of a call, or goes into one, may be wrong, and is compared with what that
call returned, or was given. It counts if what should be there is nowhere, or is elsewhere, or is spoiled before anybody
reads it.

    reference:  fc returned  #7 [1.0, 2.0, 3.0]
    this run:   /fc/Add_out  [1.0, 2.0, 3.1]    holds what nothing holds, leaves fc: a wrong #7, SQNR 31 dB

`measure` works in slices, so that neither tensor is ever copied as a whole. SQNR is the ratio of signal to noise power
in decibels, the signal being the mean power of both: it is the same in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.crossings import Crossings
from modelexport.graph.index import Graph
from modelexport.graph.sample import Sample
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import Difference, Tolerance
from modelexport.record.signals import CallTensors
from modelexport.verify.witness import SampleIndex

_SLICE = 1 << 16
# A hundred times what the same arithmetic in another order was seen to change in float32: of numbers about one, which
# may cancel out and leave nothing but that, and of a tensor's usual size.
_ATOL, _RTOL = 1e-5, 1e-4
# What tools write for an infinity: the largest float16, or what converters to float16 take by default
# (`max_finite_val` in https://github.com/microsoft/onnxconverter-common/blob/master/onnxconverter_common/float16.py).
_STAND_INS = (1e4, 65504.0)
_ENDLESS = 3.38e38
_HUGE = 1e14


def adapt_tolerance(tolerance: Tolerance, sample: Sample) -> Tolerance:
    """The tolerance where nobody chose one: numbers that went through a type with few bits are as coarse as that."""
    return replace(tolerance, rtol=sample.grain) if tolerance.rtol is None and sample.is_coarse else tolerance


def measure(reference: np.ndarray, got: np.ndarray, tolerance: Tolerance) -> Difference:
    """Both hold the same number of elements, in the same order.

    The signal is the mean power of the two, so that both directions of a comparison give the same figure.
    """
    usual = _root_mean_square(reference)
    atol = _ATOL if tolerance.atol is None else tolerance.atol
    rtol = _RTOL if tolerance.rtol is None else tolerance.rtol
    sums = _Sums(usual, rtol, atol + rtol * usual)
    for expected, actual in _slices(reference, got):
        sums.add(expected, actual)
    # What is not finite in one of them only is noise beyond any signal.
    sqnr = -math.inf if sums.unlike else _decibels((sums.reference + sums.got) / 2, sums.noise)
    fits = sums.within if tolerance.min_sqnr is None else sqnr >= tolerance.min_sqnr
    if reference.dtype.kind in "iub" and got.dtype.kind in "iub":
        fits = sums.max_abs <= (tolerance.atol or 0.0)  # an index that is off by one is another index
    cosine = _cosine(sums)
    return Difference(sums.max_abs, sums.max_rel, sqnr, cosine, sums.unlike, bool(fits) and not sums.unlike)


@dataclass(slots=True)
class _Sums:
    """What one pass over the slices adds up.

    usual   the root mean square of the reference
    slack   what an element may differ by, beyond rtol × itself
    within  whether no element differs by more
    """

    usual: float
    rtol: float
    slack: float
    reference: float = 0.0
    got: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    within: bool = True
    unlike: int = 0

    def add(self, expected: np.ndarray, actual: np.ndarray) -> None:
        powers = _power(expected), _power(actual)
        if not math.isfinite(sum(powers)):
            expected, actual, unlike = _finite_pairs(expected, actual)
            powers = _power(expected), _power(actual)
            self.unlike += unlike
        if not expected.size:
            return
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
            self.within &= bool((apart - self.rtol * sizes).max() <= self.slack)
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


# Cosine. A result in another shape, or spoiled by what a tool put behind it, looks like itself; other work does not.
_RELATED = 0.5
# Decibels. What is further apart than that was not merely computed in another order.
_ROUNDING = 100.0


@dataclass(frozen=True)
class ReferenceRun:
    """The run that is believed: what each call was given and returned, and samples of all values.

    kept  whether the content of a value can be had
    get   that content
    """

    calls: tuple[CallTensors, ...]
    samples: Mapping[int, Sample]
    kept: Callable[[int], bool]
    get: Callable[[int], np.ndarray]


@dataclass(frozen=True, slots=True)
class Pairing:
    """A value of the second run, its counterpart, and how far they are apart.

    certain  it is of the same shape, and its node is credited to somebody
    """

    value: str
    number: int
    difference: Difference
    certain: bool = True


_Noted = dict[tuple[ModuleCall, int], Pairing]
_Crossing = Mapping[str, tuple[ModuleCall, ...]]


class ValueComparison:
    """What was compared so far.

    right      by number of the reference's value: what holds the same
    returned   by call and number: what may be a wrong result of that call
    given      by call and number: what that call may have been given wrongly
    doubtful   by call and number: the same, in another shape and unlike it; it may as well be something else
    known      by value: what it holds, for values that hold what some value of the reference holds
    is_coarse  whether anything went through a type with few bits
    """

    def __init__(self, reference: ReferenceRun, graph: Graph, crossings: Crossings, tolerance: Tolerance) -> None:
        self.right: dict[int, Pairing] = {}
        self.returned: _Noted = {}
        self.given: _Noted = {}
        self.doubtful: _Noted = {}
        self.known: dict[str, frozenset[int]] = {}
        self.is_coarse = any(sample.is_coarse for sample in reference.samples.values())
        self._outputs_differ = False
        self._holding: dict[int, set[str]] = {}
        self._reference, self._graph, self._crossings = reference, graph, crossings
        self.tolerance = tolerance
        self._index = SampleIndex(reference.samples)
        self._outputs = {item.call: item.outputs for item in reference.calls}
        self._inputs = {item.call: item.inputs for item in reference.calls}

    def finish(self, *, outputs_differ: bool) -> None:
        """Everything has been seen, and what the model returned was right or wrong."""
        self._outputs_differ = outputs_differ

    def compare_value(self, value: str, array: np.ndarray, sample: Sample) -> None:
        self.is_coarse |= sample.is_coarse
        alike = self._index.alike(sample)
        for number in alike:
            self._holding.setdefault(number, set()).add(value)
            right = self.right.get(number)
            # What has been seen up to rounding is settled: no copy of it has to be looked at.
            settled = right is not None and right.difference.agrees and right.difference.sqnr > _ROUNDING
            if self._reference.kept(number) and not settled:
                pairing = Pairing(value, number, self.measure_against(number, array, sample))
                self.right[number] = _better(right, pairing)
        if alike:
            self.known[value] = frozenset(alike)
        self._note_suspects(value, array, sample)

    def has_trouble(self, value: str, trouble: str) -> bool:
        """Whether what a value holds has a NaN or an infinity in the first run as well."""
        samples = self._reference.samples
        return any(samples[number].trouble == trouble for number in self.known.get(value, ()))

    def outputs_of(self, item: CallTensors) -> list[Pairing]:
        crossing = self._crossings.leaves
        return _present(self._choose(item.call, number, self.returned, crossing) for number in item.outputs)

    def inputs_of(self, item: CallTensors) -> list[Pairing]:
        crossing = self._crossings.enters
        return _present(self._choose(item.call, number, self.given, crossing) for number in item.inputs)

    def doubtful_inputs_of(self, item: CallTensors) -> list[Pairing]:
        return _present(self.doubtful.get((item.call, number)) for number in item.inputs)

    def _choose(self, call: ModuleCall, number: int, noted: _Noted, crossing: _Crossing) -> Pairing | None:
        """What is right, unless that is not what the call returned or was given."""
        right, suspect = self.right.get(number), noted.get((call, number))
        if suspect is not None and suspect.value in self.known and not self._outputs_differ:
            suspect = None  # all is computed as it should be: what is in the wrong place is a tag
        if right is None or suspect is None:
            return right or suspect
        crosses = any(call in crossing.get(value, ()) for value in self._holding[number])
        if self._outputs_differ and suspect.certain and not crosses:
            return suspect  # what is right stays inside, or is elsewhere
        related = suspect.value not in self.known and suspect.difference.cosine > _RELATED
        return suspect if related and self._is_made_from(suspect.value, number) else right

    def _is_made_from(self, value: str, number: int) -> bool:
        """Whether a value is made from one that holds what a number stands for, with nothing known in between."""
        producers = self._graph.producers

        def unknown_inputs(name: str) -> list[str]:
            return [read for read in producers[name].inputs if read in producers and read not in self.known]

        reached = backward_slice([value] if value in producers else [], unknown_inputs)
        read = (name for made in reached for name in producers[made].inputs)
        return any(number in self.known.get(name, ()) for name in read)

    def _note_suspects(self, value: str, array: np.ndarray, sample: Sample) -> None:
        measured: dict[int, Pairing] = {}
        for calls, numbers, noted in (
            (self._crossings.leaves.get(value, ()), self._outputs, self.returned),
            (self._crossings.enters.get(value, ()), self._inputs, self.given),
        ):
            for call in calls:
                number = self._counterpart(value, sample, numbers.get(call, ()))
                if number is None:
                    continue
                certain = self._is_certain(value, sample, number)
                if number not in measured:
                    measured[number] = Pairing(value, number, self.measure_against(number, array, sample), certain)
                pairing = measured[number]
                if certain or pairing.difference.cosine > _RELATED:
                    noted[call, number] = _better(noted.get((call, number)), pairing)
                elif noted is self.given and value not in self._crossings.guessed:
                    self.doubtful[call, number] = _better(self.doubtful.get((call, number)), pairing)

    def _counterpart(self, value: str, sample: Sample, numbers: Iterable[int]) -> int | None:
        """What it would be, if it were wrong: nothing where it is one of them, or is surely something else."""
        held = self.known.get(value, frozenset())
        wanted = tuple(numbers)
        if not held.isdisjoint(wanted) or (held and not any(map(self._reference.kept, held))):
            return None  # it is right; or right, and nothing that a module returns or is given
        number = self._index.nearest(sample, filter(self._reference.kept, wanted))
        return None if number is None or (held and not self._is_certain(value, sample, number)) else number

    def _is_certain(self, value: str, sample: Sample, number: int) -> bool:
        same_shape = self._reference.samples[number].shape == sample.shape
        return same_shape and value not in self._crossings.guessed

    def measure_against(self, number: int, array: np.ndarray, sample: Sample) -> Difference:
        coarser = max(sample, self._reference.samples[number], key=lambda candidate: candidate.grain)
        return measure(self._reference.get(number), array, adapt_tolerance(self.tolerance, coarser))


def _better(before: Pairing | None, now: Pairing) -> Pairing:
    """A result may be there more than once, in other words: the closest is the result."""
    return now if before is None or now.difference.sqnr > before.difference.sqnr else before


def _present(pairings: Iterable[Pairing | None]) -> list[Pairing]:
    return [pairing for pairing in pairings if pairing is not None]
