"""Pairing what each module call was given and returned in two runs, while the second one happens.

A value of the second run that holds what some value of the first holds is that value, wherever it is. Whatever else
comes out of a call or goes into one may be wrong: it is compared with what that call returned, or was given. It counts
if what should be there is nowhere, or is elsewhere, or is spoiled before anybody gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from modelexport.graph.index import Graph
from modelexport.graph.sample import Sample
from modelexport.proving.crossings import Crossings
from modelexport.proving.lookup import Lookup
from modelexport.proving.measure import fitting, measure
from modelexport.record.eager import CallTensors
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.verification import Difference, Tolerance

# A result in another shape, or spoiled by what a tool put behind it, still looks like itself; other work does not.
_RELATED = 0.5
# Decibels. What is further apart than that was not merely computed in another order.
_ROUNDING = 100.0


@dataclass(frozen=True)
class Reference:
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


class Numbers:
    """What was compared so far.

    right     by number of the first run's value: what holds the same
    returned  by call and number: what may be a wrong result of that call
    given     by call and number: what that call may have been given wrongly
    doubtful  by call and number: the same, in another shape and unlike it; it may as well be something else
    known     by value: what it holds, for values that hold what some value of the first run holds
    is_coarse  whether anything went through a type with few bits
    """

    def __init__(self, reference: Reference, graph: Graph, crossings: Crossings, tolerance: Tolerance) -> None:
        self.right: dict[int, Pairing] = {}
        self.returned: _Noted = {}
        self.given: _Noted = {}
        self.doubtful: _Noted = {}
        self.known: dict[str, frozenset[int]] = {}
        self.is_coarse = any(one.is_coarse for one in reference.samples.values())
        self._outputs_differ = False
        self._holding: dict[int, set[str]] = {}
        self._reference = reference
        self._graph = graph
        self._crossings = crossings
        self.tolerance = tolerance
        self._lookup = Lookup(reference.samples)
        self._outputs = {item.call: item.outputs for item in reference.calls}
        self._inputs = {item.call: item.inputs for item in reference.calls}

    def finish(self, *, outputs_differ: bool) -> None:
        """Everything has been seen, and what the model returned was right or wrong."""
        self._outputs_differ = outputs_differ

    def see(self, value: str, array: np.ndarray, seen: Sample) -> None:
        """Compare one value of the second run."""
        self.is_coarse |= seen.is_coarse
        alike = self._lookup.alike(seen)
        for number in alike:
            self._holding.setdefault(number, set()).add(value)
            if self._reference.kept(number) and not self._is_settled(number):
                pairing = Pairing(value, number, self.measured(number, array, seen))
                self.right[number] = _better(self.right.get(number), pairing)
        if alike:
            self.known[value] = frozenset(alike)
        self._suspect(value, array, seen)

    def _is_settled(self, number: int) -> bool:
        """Whether it has been found, up to rounding: then no copy of it has to be looked at."""
        right = self.right.get(number)
        return right is not None and right.difference.agrees and right.difference.sqnr > _ROUNDING

    def has_trouble(self, value: str, trouble: str) -> bool:
        """Whether what a value holds has a NaN or an infinity in the first run as well."""
        samples = self._reference.samples
        return any(samples[number].trouble == trouble for number in self.known.get(value, ()))

    def outputs_of(self, item: CallTensors) -> list[Pairing]:
        crossing = self._crossings.leaves
        return _present(self._chosen(item.call, number, self.returned, crossing) for number in item.outputs)

    def inputs_of(self, item: CallTensors) -> list[Pairing]:
        crossing = self._crossings.enters
        return _present(self._chosen(item.call, number, self.given, crossing) for number in item.inputs)

    def doubtful_inputs_of(self, item: CallTensors) -> list[Pairing]:
        return _present(self.doubtful.get((item.call, number)) for number in item.inputs)

    def _chosen(self, call: ModuleCall, number: int, noted: _Noted, crossing: _Crossing) -> Pairing | None:
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
        waiting, seen = [value], set[str]()
        while waiting:
            maker = self._graph.producers.get(waiting.pop())
            if maker is None or maker.key in seen:
                continue
            seen.add(maker.key)
            if any(number in self.known.get(name, ()) for name in maker.inputs):
                return True
            waiting += [name for name in maker.inputs if name not in self.known]
        return False

    def _suspect(self, value: str, array: np.ndarray, seen: Sample) -> None:
        measured: dict[int, Pairing] = {}
        for calls, numbers, noted in (
            (self._crossings.leaves.get(value, ()), self._outputs, self.returned),
            (self._crossings.enters.get(value, ()), self._inputs, self.given),
        ):
            for call in calls:
                number = self._counterpart(value, seen, numbers.get(call, ()))
                if number is None:
                    continue
                certain = self._is_certain(value, seen, number)
                pairing = measured.get(number) or Pairing(value, number, self.measured(number, array, seen), certain)
                measured[number] = pairing
                if certain or pairing.difference.cosine > _RELATED:
                    noted[call, number] = _better(noted.get((call, number)), pairing)
                elif noted is self.given and value not in self._crossings.guessed:
                    self.doubtful[call, number] = _better(self.doubtful.get((call, number)), pairing)

    def _counterpart(self, value: str, seen: Sample, numbers: Iterable[int]) -> int | None:
        """What it would be, if it were wrong: nothing where it is one of them, or is surely something else."""
        held = self.known.get(value, frozenset())
        wanted = tuple(numbers)
        if not held.isdisjoint(wanted) or (held and not any(map(self._reference.kept, held))):
            return None  # it is right; or right, and nothing that a module returns or is given
        number = self._lookup.nearest(seen, filter(self._reference.kept, wanted))
        return None if number is None or (held and not self._is_certain(value, seen, number)) else number

    def _is_certain(self, value: str, seen: Sample, number: int) -> bool:
        same_shape = self._reference.samples[number].shape == seen.shape
        return same_shape and value not in self._crossings.guessed

    def measured(self, number: int, array: np.ndarray, seen: Sample) -> Difference:
        """How far an array is from a value of the first run."""
        coarser = max(seen, self._reference.samples[number], key=lambda one: one.grain)
        return measure(self._reference.get(number), array, fitting(self.tolerance, coarser))


def _better(before: Pairing | None, now: Pairing) -> Pairing:
    """A result may be there more than once, in other words: the closest is the result."""
    return now if before is None or now.difference.sqnr > before.difference.sqnr else before


def _present(pairings: Iterable[Pairing | None]) -> list[Pairing]:
    return [pairing for pairing in pairings if pairing is not None]
