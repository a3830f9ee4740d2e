"""Numeric comparison: pairs the values of two runs while the second one happens, and measures each pair.

By content first: a value of the second run that holds what some value of the reference holds *is* that value, wherever
it is. By place then: whatever else comes out of a call, or goes into one, may be wrong, and is compared with what that
call returned, or was given. It counts if what should be there is nowhere, or is elsewhere, or is spoiled before anybody
reads it.

    reference:  fc returned  #7 [1.0, 2.0, 3.0]
    this run:   /fc/Add_out  [1.0, 2.0, 3.1]    holds what nothing holds, leaves fc: a wrong #7, SQNR 31 dB

How far apart two tensors are, and how far they may be, is decided by `graph/difference.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.crossings import Crossings
from modelexport.graph.difference import adapt_tolerance, measure
from modelexport.graph.index import Graph
from modelexport.graph.sample import Sample
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import Difference, Tolerance
from modelexport.record.signals import CallTensors
from modelexport.verify.witness import SampleIndex

# Cosine. A result in another shape, or spoiled by what a tool put behind it, looks like itself; other work does not.
_RELATED = 0.5
# Decibels. What is further apart than that was not merely computed in another order.
_ROUNDING = 100.0


@dataclass(frozen=True)
class ReferenceRun:
    """The run that is believed: what each call was given and returned, and samples of all values.

    kept    whether the content of a value can be had
    get     that content
    settle  a difference from a value that is too small to tell by itself, held against the rounding of the value
    noise   by how much rounding changes a value; None where that is not known
    """

    calls: tuple[CallTensors, ...]
    samples: Mapping[int, Sample]
    kept: Callable[[int], bool]
    get: Callable[[int], np.ndarray]
    settle: Callable[[int, Difference], Difference] = lambda _number, difference: difference
    noise: Callable[[int], float | None] = lambda _number: None


@dataclass(frozen=True, slots=True)
class Pairing:
    """A value of the second run, its counterpart, and how far they are apart.

    certain  it is of the same shape, and its node is credited to somebody
    """

    value: str
    number: int
    difference: Difference
    certain: bool = True


_Key = TypeVar("_Key")
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
        self._settle(self.right)
        for noted in (self.returned, self.given, self.doubtful):
            self._settle(noted)

    def _settle(self, pairings: dict[_Key, Pairing]) -> None:
        for key, pairing in pairings.items():
            if pairing.difference.too_small:
                settled = self._reference.settle(pairing.number, pairing.difference)
                pairings[key] = replace(pairing, difference=settled)

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
        tolerance = adapt_tolerance(self.tolerance, sample, self._reference.samples[number])
        return measure(self._reference.get(number), array, tolerance)


def _better(before: Pairing | None, now: Pairing) -> Pairing:
    """A result may be there more than once, in other words: the closest is the result."""
    return now if before is None or now.difference.sqnr > before.difference.sqnr else before


def _present(pairings: Iterable[Pairing | None]) -> list[Pairing]:
    return [pairing for pairing in pairings if pairing is not None]
