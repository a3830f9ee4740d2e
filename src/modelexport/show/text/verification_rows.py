"""Rows of a verification: where numbers go wrong, what is around it, and how many modules are left out.

A fault in one module shows in everything after it. Hundreds of rows that only follow say no more than a few of them:

    embeddings.LayerNorm    ok
    encoder.layer.0         diverges     kept, with its neighbours
    encoder.layer.1         follows
    … 57 follows                         a gap

By loss, what the noise of a module does to the outputs decides. A module is left out if those inside of it lose as
much: the loss is theirs.

    module              lost dB    inside
    encoder                99.0    98.8      left out: layer.0 explains it
    encoder.layer.0        98.8              shown
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from modelexport.record.results.verification import CallNumbers, Difference, Status
from modelexport.show.module_tree import enclosing_path

FEW = 40  # rows, as many as a screen has
# A table that is hardly too long is shown whole: a few lines less are not worth gaps.
_HARDLY_MORE = 60
_FEW_RANKED = 20  # who ranks wants the first ones
_FEW_UNRANKED = 5  # and those that may be first, for all that is known
# Decibels by which a module may lose more than those inside of it and still count as explained by them.
_LITTLE = 1.0
_LEAST = 0.05  # decibels that are worth a row: one digit after the point is shown
_CLEAN = 140.0  # decibels over the last bit of a float: above, there is no noise
# The first that is true of any call of a module is true of the module.
_WORST_FIRST = (Status.DIVERGES, Status.FOLLOWS, Status.OK, Status.NOT_COMPARED)


@dataclass(frozen=True, slots=True)
class Shown:
    """Which modules are shown, and how.

    by_loss     those with the largest effect at the outputs first, then those that lose most decibels, in place of the
                order of execution
    top         so many of them; None for as many as can be read
    everything  all of them, also those that were not compared
    verbose     how long each step took, too
    """

    by_loss: bool = False
    top: int | None = None
    everything: bool = False
    verbose: bool = False


@dataclass(frozen=True)
class ModuleNumbers:
    """All calls of one module, at least one, in the order in which they end."""

    path: str
    calls: tuple[CallNumbers, ...]

    @cached_property
    def compared(self) -> int:
        return sum(item.outputs is not None for item in self.calls)

    @cached_property
    def outputs(self) -> Difference | None:
        """The worst of all calls, figure by figure."""
        return Difference.worst(item.outputs for item in self.calls if item.outputs is not None)

    @cached_property
    def status(self) -> Status:
        return min((item.status for item in self.calls), key=_WORST_FIRST.index)

    @cached_property
    def worst_call(self) -> CallNumbers:
        return next(item for item in self.calls if item.status is self.status)

    @cached_property
    def losing_call(self) -> CallNumbers:
        """The first of the ranking; the loss of a module and its effect are those of this call."""
        return min(self.calls, key=lambda item: item.rank)

    @property
    def lost(self) -> float:
        """0 also where nothing is known of it."""
        return self.losing_call.lost or 0.0

    @property
    def is_noisy(self) -> bool:
        """Whether it is worth a row: it has an effect, loses something, or returns noise of unknown origin."""
        call = self.losing_call
        if call.lost is None:
            return call.outputs is not None and call.outputs.sqnr < _CLEAN
        return call.lost >= _LEAST if call.effect is None else call.effect < _CLEAN


@dataclass(frozen=True)
class Gap:
    """Modules that are not shown at a place, by status."""

    statuses: Mapping[Status, int]


@dataclass(frozen=True)
class Ranking:
    """The modules that lose most, and how many are left out.

    around  modules that lose no more than what is inside of them does
    less    modules that lose less than those shown, or nothing
    """

    rows: tuple[ModuleNumbers, ...]
    around: int
    less: int


def by_module(calls: Iterable[CallNumbers]) -> list[ModuleNumbers]:
    grouped: dict[str, list[CallNumbers]] = {}
    for item in calls:
        grouped.setdefault(item.call.path, []).append(item)
    return [ModuleNumbers(path, tuple(calls_of_module)) for path, calls_of_module in grouped.items()]


def in_order(modules: Sequence[ModuleNumbers], shown: Shown) -> list[ModuleNumbers | Gap]:
    wanted = [module for module in modules if shown.everything or module.compared]
    kept = set(range(len(wanted))) if shown.everything else _telling(wanted, shown.top)
    rows: list[ModuleNumbers | Gap] = []
    for is_kept, group in groupby(enumerate(wanted), lambda pair: pair[0] in kept):
        neighbours = [module for _, module in group]
        rows += neighbours if is_kept else [Gap(Counter(module.status for module in neighbours))]
    return rows


def ranked(modules: Sequence[ModuleNumbers], shown: Shown) -> Ranking:
    """Modules by what they lose, most first. `modules` come in that order."""
    if shown.everything:
        return Ranking(tuple(modules), 0, 0)
    compared = [module for module in modules if module.compared]
    inside = _lost_inside(compared)
    explained = {module.path for module in compared if module.lost <= inside.get(module.path, -math.inf) + _LITTLE}
    explained |= _around_measured(compared)
    distinctive = [module for module in compared if module.is_noisy and module.path not in explained]
    unranked = [module for module in distinctive if module.losing_call.lost is None]
    rows = tuple(module for module in distinctive if module.losing_call.lost is not None)[: shown.top or _FEW_RANKED]
    rows += tuple(unranked[:_FEW_UNRANKED])
    return Ranking(rows, len(explained), len(compared) - len(explained) - len(rows))


def _telling(modules: Sequence[ModuleNumbers], top: int | None) -> set[int]:
    """Places of the modules worth showing: those that diverge, their neighbours, then the worst of the rest."""
    if top is None and len(modules) <= _HARDLY_MORE:
        return set(range(len(modules)))
    diverging = {number for number, module in enumerate(modules) if module.status is Status.DIVERGES}
    around = {number + step for number in diverging for step in (-1, 1)}

    def worth(number: int) -> tuple[object, ...]:
        module = modules[number]
        follows = module.status is Status.FOLLOWS
        # Of what follows, the first are shown; of what agrees, the least sure.
        sqnr = -math.inf if follows or module.outputs is None else module.outputs.sqnr
        return number not in diverging, number not in around, not follows, sqnr, number

    most = max(FEW, len(diverging)) if top is None else top
    return set(sorted(range(len(modules)), key=worth)[:most])


def _around_measured(modules: Sequence[ModuleNumbers]) -> set[str]:
    """Modules around others whose effect was measured: it is measured of innermost ones."""
    listed = {module.path for module in modules}
    around: set[str] = set()
    for module in modules:
        path: str | None = module.path
        while path is not None and module.losing_call.effect is not None:
            path = enclosing_path(path, listed)
            around |= set() if path is None else {path}
    return around


def _lost_inside(modules: Sequence[ModuleNumbers]) -> dict[str, float]:
    """For each module that holds others, the sum of what those directly inside of it lose."""
    listed = {module.path for module in modules}
    sums: dict[str, float] = {}
    for module in modules:
        around = enclosing_path(module.path, listed)
        if around is not None:
            sums[around] = sums.get(around, 0.0) + module.lost
    return sums
