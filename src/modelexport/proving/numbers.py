"""Pairing what each module call was given and returned in two runs, while the second one happens.

A value of the second run that holds what some value of the first holds is that value, wherever it is. One that holds
what nothing holds may be a wrong result: then it is compared with what the calls returned that it comes out of, and
with what the calls were given that it goes into. Something that is right and is spoiled before anybody gets it counts
as wrong.
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
    """A value of the second run, and how far it is from its counterpart."""

    value: str
    difference: Difference


_Noted = dict[tuple[ModuleCall, int], Pairing]


class Numbers:
    """What was compared so far.

    right     by number of the first run's value: what holds the same
    returned  by call and number: what may be a wrong result of that call
    given     by call and number: what that call may have been given wrongly
    known     by value: what it holds, for values that hold what some value of the first run holds
    is_coarse  whether anything went through a type with few bits
    """

    def __init__(self, reference: Reference, graph: Graph, crossings: Crossings, tolerance: Tolerance) -> None:
        self.right: dict[int, Pairing] = {}
        self.returned: _Noted = {}
        self.given: _Noted = {}
        self.is_coarse = False
        self._reference = reference
        self._graph = graph
        self.known: dict[str, frozenset[int]] = {}
        self._crossings = crossings
        self._tolerance = tolerance
        self._lookup = Lookup(reference.samples)
        self._outputs = {item.call: item.outputs for item in reference.calls}
        self._inputs = {item.call: item.inputs for item in reference.calls}

    def see(self, value: str, array: np.ndarray, seen: Sample) -> None:
        """Compare one value of the second run."""
        self.is_coarse |= seen.is_coarse
        alike = self._lookup.alike(seen)
        for number in filter(self._reference.kept, alike):
            pairing = Pairing(value, self.measured(number, array, seen))
            self.right[number] = _better(self.right.get(number), pairing)
        if alike:
            self.known[value] = frozenset(alike)
        else:
            self._suspect(value, array, seen)

    def outputs_of(self, item: CallTensors) -> list[Pairing]:
        return _present(self._chosen(number, self.returned.get((item.call, number))) for number in item.outputs)

    def inputs_of(self, item: CallTensors) -> list[Pairing]:
        return _present(self._chosen(number, self.given.get((item.call, number))) for number in item.inputs)

    def _chosen(self, number: int, suspect: Pairing | None) -> Pairing | None:
        right = self.right.get(number)
        if right is None or suspect is None:
            return right or suspect
        spoiled = suspect.difference.cosine > _RELATED and self._is_made_from(suspect.value, number)
        return suspect if spoiled else right

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
                number = self._lookup.nearest(seen, filter(self._reference.kept, numbers.get(call, ())))
                if number is None:
                    continue
                pairing = measured.setdefault(number, Pairing(value, self.measured(number, array, seen)))
                if self._is_certain(value, seen, number) or pairing.difference.cosine > _RELATED:
                    noted[call, number] = _better(noted.get((call, number)), pairing)

    def _is_certain(self, value: str, seen: Sample, number: int) -> bool:
        same_shape = self._reference.samples[number].shape == seen.shape
        return same_shape and value not in self._crossings.guessed

    def measured(self, number: int, array: np.ndarray, seen: Sample) -> Difference:
        """How far an array is from a value of the first run."""
        coarser = max(seen, self._reference.samples[number], key=lambda one: one.grain)
        return measure(self._reference.get(number), array, fitting(self._tolerance, coarser))


def _better(before: Pairing | None, now: Pairing) -> Pairing:
    """A result may be there more than once, in other words: the closest is the result."""
    return now if before is None or now.difference.sqnr > before.difference.sqnr else before


def _present(pairings: Iterable[Pairing | None]) -> list[Pairing]:
    return [pairing for pairing in pairings if pairing is not None]
