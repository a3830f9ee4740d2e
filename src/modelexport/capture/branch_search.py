"""Branch search: inputs on which a model takes another path than on its sample.

    sample       x.sum() is 3.1, so `if x.sum() > 0` is true           the path that a traced file follows
    variations   -x: x.sum() is -3.1, another path                     variations.py; a plain run shows the path
    by gradient  x - 1.02 × 3.1 × g / |g|², g the gradient of x.sum()  gradient_steps.py; what no variation reached

Nothing here judges a file: `ProbeInputs` come one after the other, with what the model returns on them, and whoever
asks holds the file against that. A model that takes no value out of a tensor and compares no size has no other path,
and costs nothing more than the run that showed it. The search is bounded by runs and by seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

import torch

from modelexport.capture.arguments import CallArguments, output_tensors
from modelexport.capture.decisions import BOOL, NUMBER, SIZE, Decision, PathRecorder, RunPath, Site
from modelexport.capture.gradient_steps import GradientSteps, is_same
from modelexport.capture.hidden_branches import Continuations, depends_on_size, may_have_borders, propose_sizes
from modelexport.capture.hierarchy import call_model, run_model
from modelexport.capture.isolation import EXPORT_LOCK, exportable_moe, preserve_model
from modelexport.capture.margins import Margins
from modelexport.capture.silence import quiet
from modelexport.capture.variations import change_some, label_sizes, resize, vary_values
from modelexport.errors import InputError

_MOST_RUNS, _MOST_SECONDS = 200, 10.0
_ENOUGH = 12
# Variations of inputs that no decision seems to depend on.
_BESIDE = 4
_MOST_TARGETS, _ROUNDS, _WANDERINGS = 10, 4, 40
# Values of a number that programs compare with.
_SPREAD = (0.0, 1.0, -1.0, 0.5, 10.0, -10.0, 0.1, 100.0, 2.0, 5.0, 1000.0)
# How many elements a mask picked is no other branch. Some of these paths are as good as all of them.
_MOST_BY_COUNT = 4
# A number may choose between constants, which nothing shows but the values that come out.
_MOST_BY_NUMBER = 32
_MOST_ELEMENTS = 1 << 22


class RunnableModel(Protocol):
    """What is searched: a model and the arguments that it was exported with (`TracedRun`)."""

    @property
    def model(self) -> torch.nn.Module: ...
    @property
    def arguments(self) -> CallArguments: ...
    def entered(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class ProbeInputs:
    """Inputs on another path, what the model returned on them, and the first decision that was taken differently.

    sizes  of open axes, where they are not those of the sample: "batch 7"
    """

    tensors: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    decision: Decision | None
    sizes: str = ""


@dataclass(frozen=True)
class _PathRun:
    tensors: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    path: RunPath


class BranchSearch:
    """
    axes     by input, the axes that the file leaves open
    path     of the sample, if a run on it was recorded already
    unmoved  decisions that depend on the inputs, and that no input was found to change; numbers that depend on them,
             and after which all runs went on in one way
    """

    def __init__(self, run: RunnableModel, axes: Mapping[str, Mapping[int, str]], path: RunPath | None = None) -> None:
        self._run_of, self._axes = run, axes
        self._sample: Mapping[str, torch.Tensor] = run.arguments.tensors
        self._path = path
        self._vocabularies: dict[str, int] = {}
        self._values: dict[Site, set[object]] = {}
        self._continuations = Continuations()
        self._signatures: set[object] = set()
        self._by_number = 0
        self._beside_counts: set[object] = set()
        self._runs = 0
        self._deadline = time.monotonic() + _MOST_SECONDS
        self.unmoved: list[Decision] = []

    def probes(self) -> Iterator[ProbeInputs]:
        """Inputs on other paths, each new path once."""
        path = self._path
        if path is None:
            first = self._try(self._sample)
            path = None if first is None else first.path
        self._path = path
        if path is None or not (path.decisions or path.lengths):
            return
        self._note(path)
        yield from self._vary_sizes(path)
        if path.by_data:
            self._beside_counts = {_describe_beside_counts(path)}
            yield from self._vary_values(path)
            if not self._is_counted_out(path):
                yield from self._follow_gradients(_PathRun(self._sample, {}, path))
            self.unmoved += self._continuations.unchanged()

    def run_on(self, tensors: Mapping[str, torch.Tensor]) -> ProbeInputs | None:
        """Inputs that somebody else chose; None if the model does not take them."""
        run = self._run_once(tensors)
        departed = None if run is None or self._path is None else run.path.departs_from(self._path)
        return None if run is None else self._describe(run, departed)

    def _describe(self, run: _PathRun, departed: Decision | None) -> ProbeInputs:
        mine, theirs = (label_sizes(tensors, self._axes) for tensors in (run.tensors, self._sample))
        sizes = ", ".join(f"{label} {size}" for label, size in sorted(mine.items()) if size != theirs[label])
        return ProbeInputs(run.tensors, run.outputs, departed, sizes)

    # Sizes

    def _vary_sizes(self, path: RunPath) -> Iterator[ProbeInputs]:
        """Each open axis with the sizes at which a comparison has another answer."""
        for label, now in label_sizes(self._sample, self._axes).items() if may_have_borders(path) else ():
            runs: dict[int, _PathRun] = {}
            for size in (now + 1, 2 * now + 1):
                run = self._try(resize(self._sample, self._axes, label, size))
                runs |= {} if run is None else {size: run}
                if run is not None and not depends_on_size(path, run.path):
                    break
            yield from self._admit_all(runs.values(), [])
            seen = {size: run.path for size, run in runs.items()}
            for size in propose_sizes(path, now, seen):
                tensors = resize(self._sample, self._axes, label, size)
                if sum(tensor.numel() for tensor in tensors.values()) <= _MOST_ELEMENTS:
                    yield from self._probe(tensors)

    # Values

    def _vary_values(self, path: RunPath) -> Iterator[ProbeInputs]:
        measured = self._measure_margins(self._sample)  # which also sees the vocabularies
        deciding = self._deciding_inputs([item for item in measured if item.kind != SIZE])
        others = {name: tensor for name, tensor in self._sample.items() if name not in deciding}
        some = {name: tensor for name, tensor in self._sample.items() if name in deciding}
        varied = vary_values(some, self._vocabularies) if some else iter(())
        for number, tensors in enumerate(chain(varied, islice(vary_values(others, self._vocabularies), _BESIDE))):
            yield from self._probe({**self._sample, **tensors})
            # Enough was tried, and every decision went both ways: more of it shows nothing new.
            if number >= _ENOUGH and not any(map(self._is_open, path.by_data)):
                return
            # Masks picked other numbers of elements, and no more of these would be shown.
            if self._by_number >= _MOST_BY_COUNT and self._is_counted_out(path):
                return

    def _is_counted_out(self, path: RunPath) -> bool:
        """Whether masks picked other numbers of elements, and nothing that could be seen went by these numbers.

        x[x > 0].mean()                        the same functions whatever the mask picks: no other branch
        y = x[x > 0]; if y.shape[0] > 3: …     the size is compared, and held against another number each time
        for row in x[x > 0]: …                 more functions for more rows
        """
        only_counts = all(decision.is_count for decision in path.by_data)
        is_open = any(map(self._is_open, path.by_data))
        return only_counts and not is_open and len(self._beside_counts) == 1

    def _deciding_inputs(self, measured: Sequence[Decision]) -> set[str]:
        """The inputs that decisions depend on, as far as gradients tell; all of them where one has no gradient."""
        if not measured or any(item.target is None for item in measured):
            return set(self._sample)
        deciding: set[str] = set()
        for target in (item.target for item in measured if item.target is not None):
            deciding |= self._steps.find_inputs(target)
        return deciding

    def _follow_gradients(self, base: _PathRun) -> Iterator[ProbeInputs]:
        """For each decision that nothing has changed so far, also for those that only another path has."""
        bases, tried = [base], set[object]()
        while bases and not self._is_spent():
            start = bases.pop(0)
            decisions = self._measure_margins(start.tensors)
            measured = [item for item in decisions if item.target is not None]
            if start is base:
                blind = {item.site: item for item in reversed(decisions) if item.is_blind}
                self.unmoved += filter(self._is_open, blind.values())
            for decision in {item.site: item for item in reversed(measured)}.values():
                if decision.site in tried or len(tried) >= _MOST_TARGETS:
                    continue
                tried.add(decision.site)
                admitted: list[_PathRun] = []
                yield from self._spread(start, decision, admitted) if decision.kind == NUMBER else ()
                yield from self._climb(start, decision, admitted) if self._is_open(decision) else ()
                bases += admitted

    def _spread(self, start: _PathRun, decision: Decision, admitted: list[_PathRun]) -> Iterator[ProbeInputs]:
        """Other values of a number, small and large: what a program compares `float(x)` with cannot be seen."""
        again = self._find_again(decision, start.tensors)
        if again is None:
            return
        _, margin = again
        now = float(margin.detach())
        for wanted in _SPREAD:
            step = next(self._steps.propose(start.tensors, margin, wanted - now), None)
            run = None if step is None else self._try(step)
            yield from self._admit_all([] if run is None else [run], admitted)

    def _is_open(self, decision: Decision) -> bool:
        return len(self._values.get(decision.site, ())) < 2

    def _climb(self, start: _PathRun, decision: Decision, admitted: list[_PathRun]) -> Iterator[ProbeInputs]:
        """Towards another value of one decision: along its gradient, then at random wherever its margin grows."""
        tensors, depends = start.tensors, False
        for _ in range(_ROUNDS):
            again = self._find_again(decision, tensors)
            steps = [] if again is None else list(self._steps.propose(tensors, again[1]))
            depends |= bool(steps)
            runs = [run for step in steps if (run := self._try(step)) is not None]
            yield from self._admit_all(runs, admitted)
            if not self._is_open(decision):
                return
            if not runs:
                break
            tensors = runs[0].tensors
        if depends:
            yield from self._wander(tensors, decision, admitted)
        if depends and decision.kind == BOOL and self._is_open(decision):
            self.unmoved.append(decision)

    def _wander(
        self, tensors: Mapping[str, torch.Tensor], decision: Decision, admitted: list[_PathRun]
    ) -> Iterator[ProbeInputs]:
        """What counts and sorts has gradients that lead nowhere; small changes at random still show what helps."""
        generator = torch.Generator().manual_seed(0)
        best = -math.inf
        for number in range(_WANDERINGS):
            changed = change_some(tensors, self._vocabularies, generator) if number else tensors
            again = self._find_again(decision, changed)
            margin = -math.inf if again is None else float(again[1].detach())
            if again is not None and again[0].value != decision.value:
                run = self._try(changed)
                yield from self._admit_all([] if run is None else [run], admitted)
                return
            if margin >= best:
                tensors, best = changed, margin

    def _find_again(
        self, decision: Decision, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[Decision, torch.Tensor] | None:
        """The same decision in a run on other inputs, with its margin."""
        measured = () if self._is_spent() else self._measure_margins(tensors)
        return next(
            ((item, item.target) for item in measured if item.site == decision.site and item.target is not None), None
        )

    def _admit_all(self, runs: Iterable[_PathRun], admitted: list[_PathRun]) -> Iterator[ProbeInputs]:
        for run in runs:
            if probe := self._admit(run):
                admitted.append(run)
                yield probe

    def _measure_margins(self, tensors: Mapping[str, torch.Tensor]) -> list[Decision]:
        """The decisions of one run with their margins; empty where it cannot be run with gradients."""
        self._runs += 1
        leaves, given = {}, {}
        for name, tensor in tensors.items():
            floats = tensor.is_floating_point()
            leaves[name] = (tensor if floats else tensor.float()).detach().clone().requires_grad_()
            given[name] = leaves[name].clone() if floats else tensor.clone()
        margins = Margins(given, leaves)
        self._steps = GradientSteps(margins, self._vocabularies)
        arguments = self._run_of.arguments.with_tensors(given)
        recorder = PathRecorder(self._run_of.model, margins)
        try:
            with self._isolated(), torch.enable_grad(), recorder:
                call_model(self._run_of.model, arguments)
        except (InputError, RuntimeError):
            return []
        for indices, table, _ in margins.embedded:
            names = (name for name, tensor in tensors.items() if is_same(tensor, indices))
            self._vocabularies |= dict.fromkeys(names, int(table.shape[0]))
        for decision in recorder.path.decisions:
            self._continuations.note_dependence(decision)
        return list(recorder.path.decisions)

    # Runs

    def _probe(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[ProbeInputs]:
        run = self._try(tensors)
        if run is not None and (probe := self._admit(run)):
            yield probe

    def _admit(self, run: _PathRun) -> ProbeInputs | None:
        """The inputs of a run, if its path is a new one."""
        path = self._path
        assert path is not None  # the search begins with it
        self._note(run.path)
        if run.path.is_like(path):
            return None
        signature = (run.path.functions, tuple((item.site, _branch(item)) for item in run.path.decisions))
        if signature in self._signatures:
            self._by_number += 1
            if self._by_number > _most_alike(run.path):
                return None
        self._signatures.add(signature)
        return self._describe(run, run.path.departs_from(path))

    def _is_resized(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        return any(tensor.shape != self._sample[name].shape for name, tensor in tensors.items())

    def _note(self, path: RunPath) -> None:
        for decision in path.decisions:
            self._values.setdefault(decision.site, set()).add(decision.value)
        self._beside_counts.add(_describe_beside_counts(path))

    def _try(self, tensors: Mapping[str, torch.Tensor]) -> _PathRun | None:
        """A plain run; None for inputs that the model does not take, and once the budget is spent."""
        return None if self._is_spent() else self._run_once(tensors)

    def _run_once(self, tensors: Mapping[str, torch.Tensor]) -> _PathRun | None:
        self._runs += 1
        recorder = PathRecorder(self._run_of.model)
        try:
            with self._isolated(), recorder:
                outputs: Any = run_model(self._run_of.model, self._run_of.arguments.with_tensors(tensors))
        except InputError:
            return None
        run = _PathRun(tensors, output_tensors(outputs), recorder.path)
        if not self._is_resized(tensors):
            self._continuations.note(run.path)
        return run

    def _is_spent(self) -> bool:
        return self._runs >= _MOST_RUNS or time.monotonic() > self._deadline

    @contextmanager
    def _isolated(self) -> Iterator[None]:
        run = self._run_of
        with EXPORT_LOCK, quiet(), exportable_moe(run.model), run.entered(), preserve_model(run.model):
            yield


def _describe_beside_counts(path: RunPath) -> object:
    """What a run did, but for the numbers of elements that masks picked."""
    decisions = (item for item in path.decisions if not item.is_count)
    return path.functions, path.lengths, tuple((item.site, item.value, item.compared) for item in decisions)


def _most_alike(path: RunPath) -> int:
    """How many probes may differ in nothing but numbers."""
    numbers = [decision for decision in path.decisions if decision.kind == NUMBER]
    if all(decision.is_count for decision in numbers):
        return _MOST_BY_COUNT if numbers else 0
    return _MOST_BY_NUMBER


def _branch(decision: Decision) -> object:
    return decision.value if decision.kind in (BOOL, SIZE) else None
