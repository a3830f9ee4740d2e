"""Branch search: inputs on which a model takes another path than on its sample.

    sample       x.sum() is 3.1, so `if x.sum() > 0` is true           the path that a traced file follows
    variations   -x: x.sum() is -3.1, another path                     variations.py; a plain run shows the path
    by gradient  x - 1.02 × 3.1 × g / |g|², g the gradient of x.sum()  margins.py; what no variation reached

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
from modelexport.capture.decisions import BOOL, NUMBER, SIZE, Decision, PathRecorder, RunPath
from modelexport.capture.hierarchy import call_model, run_model
from modelexport.capture.isolation import EXPORT_LOCK, exportable_moe, preserve_model
from modelexport.capture.margins import Margins
from modelexport.capture.silence import quiet
from modelexport.capture.variations import COUNT, FIXED, MASK, NUMBERS, change_some, kind_of, resize, vary_values
from modelexport.errors import InputError

_MOST_RUNS, _MOST_SECONDS = 200, 10.0
_ENOUGH = 12
# Variations of inputs that no decision seems to depend on.
_BESIDE = 4
_MOST_TARGETS, _ROUNDS, _WANDERINGS = 10, 4, 40
# In parts of the step that would be enough if the margin were linear: over the border, well over it, far over it.
_STEPS = (1.02, 1.5, 5.0, 30.0)
# Values of a number that programs compare with.
_SPREAD = (0.0, 1.0, -1.0, 0.5, 10.0, -10.0, 0.1, 100.0, 2.0, 5.0, 1000.0)
# Numbers that differ are no other branch. Some of these paths are as good as all of them.
_MOST_BY_NUMBER = 4
_LONGEST, _MOST_ELEMENTS = 4096, 1 << 22
_SIZES_TRIED = 12


class RunnableModel(Protocol):
    """What is searched: a model and the arguments that it was exported with (`TracedRun`)."""

    @property
    def model(self) -> torch.nn.Module: ...
    @property
    def arguments(self) -> CallArguments: ...
    def entered(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class ProbeInputs:
    """Inputs on another path, what the model returned on them, and the first decision that was taken differently."""

    tensors: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    decision: Decision | None


@dataclass(frozen=True)
class _Run:
    tensors: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    path: RunPath


class BranchSearch:
    """
    axes     by input, the axes that the file leaves open
    path     of the sample, if a run on it was recorded already
    unmoved  decisions that depend on the inputs, and that no input was found to change
    """

    def __init__(self, run: RunnableModel, axes: Mapping[str, Mapping[int, str]], path: RunPath | None = None) -> None:
        self._run_of, self._axes = run, axes
        self._sample: Mapping[str, torch.Tensor] = run.arguments.tensors
        self._path = path
        self._vocabularies: dict[str, int] = {}
        self._values: dict[tuple[str, str, str], set[object]] = {}
        self._signatures: set[object] = set()
        self._by_number = 0
        self._runs = 0
        self._deadline = time.monotonic() + _MOST_SECONDS
        self.unmoved: list[Decision] = []

    def probes(self) -> Iterator[ProbeInputs]:
        """Inputs on other paths, each new path once."""
        path = self._path
        if path is None:
            first = self._try(self._sample)
            path = None if first is None else first.path
        if path is None or not (path.decisions or path.reads_length):
            return
        self._path = path
        self._note(path)
        yield from self._vary_sizes(path)
        if path.by_data:
            yield from self._vary_values(path)
            yield from self._follow_gradients(_Run(self._sample, {}, path))

    # Sizes

    def _vary_sizes(self, path: RunPath) -> Iterator[ProbeInputs]:
        """Each open axis with the sizes at which a comparison has another answer."""
        labels: dict[str, int] = {}
        for name, axes in self._axes.items():
            if name in self._sample:
                labels |= {label: self._sample[name].shape[axis] for axis, label in axes.items()}
        if not path.reads_length and not any(decision.compared for decision in path.decisions):
            return
        for label, now in labels.items():
            longer = {size: self._try(resize(self._sample, self._axes, label, size)) for size in (now + 1, 2 * now + 1)}
            runs = {size: run for size, run in longer.items() if run is not None}
            yield from self._admit_all(runs.values(), [])
            seen = {size: run.path for size, run in runs.items()}
            wanted = dict.fromkeys(find_borders(path, now, seen))
            if path.reads_length:
                wanted |= dict.fromkeys((1, 4 * now, 16 * now, 64 * now))
            for size in [size for size in wanted if 1 <= size <= _LONGEST and size not in (now, *runs)][:_SIZES_TRIED]:
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

    def _deciding_inputs(self, measured: Sequence[Decision]) -> set[str]:
        """The inputs that decisions depend on, as far as gradients tell; all of them where one has no gradient."""
        if not measured or any(item.target is None for item in measured):
            return set(self._sample)
        deciding: set[str] = set()
        for target in (item.target for item in measured if item.target is not None):
            if target.requires_grad:
                deciding |= set(self._gradients(target))
                deciding |= {name for name, _ in self._token_gradients(target)}
        return deciding

    def _follow_gradients(self, base: _Run) -> Iterator[ProbeInputs]:
        """For each decision that nothing has changed so far, also for those that only another path has."""
        bases, tried = [base], set[object]()
        while bases and not self._is_spent():
            start = bases.pop(0)
            decisions = self._measure_margins(start.tensors)
            measured = [item for item in decisions if item.target is not None]
            if start is base:
                blind = {item.place: item for item in reversed(decisions) if item.is_blind}
                self.unmoved += filter(self._is_open, blind.values())
            for decision in {item.place: item for item in reversed(measured)}.values():
                if decision.place in tried or len(tried) >= _MOST_TARGETS:
                    continue
                tried.add(decision.place)
                found: list[_Run] = []
                yield from self._spread(start, decision, found) if decision.kind == NUMBER else ()
                yield from self._climb(start, decision, found) if self._is_open(decision) else ()
                bases += found

    def _spread(self, start: _Run, decision: Decision, found: list[_Run]) -> Iterator[ProbeInputs]:
        """Other values of a number, small and large: what a program compares `float(x)` with cannot be seen."""
        target = self._target(start.tensors, decision)
        if target is None or target.target is None:
            return
        now = float(target.target.detach())
        for wanted in _SPREAD:
            step = next(self._steps(start.tensors, target, wanted - now), None)
            run = None if step is None else self._try(step)
            yield from self._admit_all([] if run is None else [run], found)

    def _is_open(self, decision: Decision) -> bool:
        return len(self._values.get(decision.place, ())) < 2

    def _climb(self, start: _Run, decision: Decision, found: list[_Run]) -> Iterator[ProbeInputs]:
        """Towards another value of one decision: along its gradient, then at random wherever its margin grows."""
        tensors, depends = start.tensors, False
        for _ in range(_ROUNDS):
            target = self._target(tensors, decision)
            steps = [] if target is None else list(self._steps(tensors, target))
            depends |= bool(steps)
            runs = [run for step in steps if (run := self._try(step)) is not None]
            yield from self._admit_all(runs, found)
            if not self._is_open(decision):
                return
            if not runs:
                break
            tensors = runs[0].tensors
        if depends:
            yield from self._wander(tensors, decision, found)
        if depends and decision.kind == BOOL and self._is_open(decision):
            self.unmoved.append(decision)

    def _wander(
        self, tensors: Mapping[str, torch.Tensor], decision: Decision, found: list[_Run]
    ) -> Iterator[ProbeInputs]:
        """What counts and sorts has gradients that lead nowhere; small changes at random still show what helps."""
        generator = torch.Generator().manual_seed(0)
        best = -math.inf
        for number in range(_WANDERINGS):
            changed = change_some(tensors, self._vocabularies, generator) if number else tensors
            target = self._target(changed, decision)
            margin = -math.inf if target is None or target.target is None else float(target.target.detach())
            if target is not None and target.value != decision.value:
                run = self._try(changed)
                yield from self._admit_all([] if run is None else [run], found)
                return
            if margin >= best:
                tensors, best = changed, margin

    def _target(self, tensors: Mapping[str, torch.Tensor], decision: Decision) -> Decision | None:
        """The same decision in a run on other inputs, with its margin."""
        if self._is_spent():
            return None
        measured = self._measure_margins(tensors)
        return next((item for item in measured if item.place == decision.place and item.target is not None), None)

    def _admit_all(self, runs: Iterable[_Run], found: list[_Run]) -> Iterator[ProbeInputs]:
        for run in runs:
            if probe := self._admit(run):
                found.append(run)
                yield probe

    def _measure_margins(self, tensors: Mapping[str, torch.Tensor]) -> list[Decision]:
        """The decisions of one run with their margins; empty where it cannot be run with gradients."""
        self._runs += 1
        leaves, given = {}, {}
        for name, tensor in tensors.items():
            floats = tensor.is_floating_point()
            leaves[name] = (tensor if floats else tensor.float()).detach().clone().requires_grad_()
            given[name] = leaves[name].clone() if floats else tensor.clone()
        self._margins = Margins(given, leaves)
        arguments = self._run_of.arguments.with_tensors(given)
        recorder = PathRecorder(self._run_of.model, self._margins)
        try:
            with self._isolated(), torch.enable_grad(), recorder:
                call_model(self._run_of.model, arguments)
        except (InputError, RuntimeError):
            return []
        for indices, table, _ in self._margins.embedded:
            names = (name for name, tensor in tensors.items() if _is_same(tensor, indices))
            self._vocabularies |= dict.fromkeys(names, int(table.shape[0]))
        return list(recorder.path.decisions)

    def _steps(
        self, tensors: Mapping[str, torch.Tensor], decision: Decision, missing: float | None = None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Other inputs, in the direction in which the margin of a decision grows by what is missing."""
        target = decision.target
        if target is None or not target.requires_grad:
            return
        by_name = self._gradients(target)
        if missing is None:
            missing = max(float(-target.detach()), 1e-6)
        yield from _step_numbers(tensors, by_name, missing)
        yield from _step_integers(tensors, by_name, missing, self._vocabularies)
        for name, gain in self._token_gradients(target):
            yield from ({**tensors, name: tokens} for tokens in _step_tokens(tensors[name], gain))

    def _gradients(self, target: torch.Tensor) -> dict[str, torch.Tensor]:
        """By input: the gradient of a margin; only those that it depends on."""
        leaves = self._margins.leaves
        gradients = _differentiate(target, list(leaves.values()))
        return {
            name: gradient
            for name, gradient in zip(leaves, gradients, strict=True)
            if gradient is not None and bool(gradient.isfinite().all()) and bool(gradient.any())
        }

    def _token_gradients(self, target: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """By input that is looked up in a table: how much each token at each position would add to a margin."""
        looked_up = [item for item in self._margins.embedded if item[2].requires_grad]
        gradients = _differentiate(target, [result for _, _, result in looked_up])
        for (indices, table, result), gradient in zip(looked_up, gradients, strict=True):
            names = [name for name, tensor in self._margins.given.items() if _is_same(tensor, indices)]
            if gradient is not None and names and gradient.shape == result.shape and bool(gradient.any()):
                yield names[0], gradient.detach() @ table.detach().t()

    # Runs

    def _probe(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[ProbeInputs]:
        run = self._try(tensors)
        if run is not None and (probe := self._admit(run)):
            yield probe

    def _admit(self, run: _Run) -> ProbeInputs | None:
        """The inputs of a run, if its path is a new one."""
        path = self._path
        assert path is not None  # the search begins with it
        self._note(run.path)
        if run.path.is_like(path):
            return None
        signature = (run.path.functions, tuple((item.place, _branch(item)) for item in run.path.decisions))
        if signature in self._signatures:
            self._by_number += 1
            if self._by_number > _MOST_BY_NUMBER or not _has_numbers(run.path):
                return None
        self._signatures.add(signature)
        return ProbeInputs(run.tensors, run.outputs, run.path.departs_from(path))

    def _note(self, path: RunPath) -> None:
        for decision in path.decisions:
            self._values.setdefault(decision.place, set()).add(decision.value)

    def _try(self, tensors: Mapping[str, torch.Tensor]) -> _Run | None:
        """A plain run; None for inputs that the model does not take, and once the budget is spent."""
        if self._is_spent():
            return None
        self._runs += 1
        recorder = PathRecorder(self._run_of.model)
        try:
            with self._isolated(), recorder:
                outputs: Any = run_model(self._run_of.model, self._run_of.arguments.with_tensors(tensors))
        except InputError:
            return None
        return _Run(tensors, output_tensors(outputs), recorder.path)

    def _is_spent(self) -> bool:
        return self._runs >= _MOST_RUNS or time.monotonic() > self._deadline

    @contextmanager
    def _isolated(self) -> Iterator[None]:
        run = self._run_of
        with EXPORT_LOCK, quiet(), exportable_moe(run.model), run.entered(), preserve_model(run.model):
            yield


def find_borders(path: RunPath, now: int, longer: Mapping[int, RunPath]) -> Iterator[int]:
    """Sizes of an axis at which comparisons have another answer, if what is compared grows with the axis as a line.

        8 > 20 at size 8, 9 > 20 at size 9        one more for each, so 21
        2 > 4 at size 8, 4 > 4 at size 17         2 more for 9, so 21 or 22

    longer  the paths at two other sizes
    """
    for size, other in sorted(longer.items(), reverse=True):
        compared: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        for decision in other.decisions:
            if decision.compared is not None:
                compared.setdefault(decision.place, []).append(decision.compared)
        for decision in path.decisions:
            again = compared.get(decision.place)
            if decision.compared is None or not again:
                continue
            left, right = again.pop(0)
            apart = decision.compared[0] - decision.compared[1]
            slope = (left - right - apart) / (size - now)
            if slope:
                exact = now - apart / slope
                yield from dict.fromkeys(round(exact + shift) for shift in (0.0, 1 / slope, -1 / slope, 0.5, -0.5))


def _has_numbers(path: RunPath) -> bool:
    return any(decision.kind == NUMBER for decision in path.decisions)


def _branch(decision: Decision) -> object:
    return decision.value if decision.kind in (BOOL, SIZE) else None


def _differentiate(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    """Gradients, None for what has none; a model that writes into what it computed with has no gradients at all."""
    if not sources:
        return ()
    try:
        return torch.autograd.grad(target, sources, allow_unused=True, retain_graph=True)
    except RuntimeError:
        return [None for _ in sources]


def _is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.shape == other.shape and tensor.dtype == other.dtype and torch.equal(tensor, other)


def _step_tokens(tokens: torch.Tensor, gain: torch.Tensor) -> Iterator[torch.Tensor]:
    """The best token at each position, the best ones everywhere, and the best one at a single position."""
    best = gain.argmax(-1).to(tokens.dtype)
    yield best
    for token in gain.reshape(-1, gain.shape[-1]).sum(0).topk(min(3, gain.shape[-1])).indices:
        yield torch.full_like(tokens, int(token))
    strength = gain.amax(-1).reshape(-1)
    position = torch.arange(strength.numel()).reshape(best.shape)
    yield torch.where(position == int(strength.argmax()), best, tokens)


def _step_numbers(
    tensors: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor], missing: float
) -> Iterator[dict[str, torch.Tensor]]:
    floats = {name: item for name, item in gradients.items() if kind_of(name, tensors[name]) == NUMBERS}
    power = sum(float(gradient.double().pow(2).sum()) for gradient in floats.values())
    if power == 0:
        return
    for step in _STEPS:
        moved = {name: tensors[name] + (step * missing / power) * item for name, item in floats.items()}
        yield {**tensors, **{name: tensor.to(tensors[name].dtype) for name, tensor in moved.items()}}


def _step_integers(
    tensors: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    missing: float,
    vocabularies: Mapping[str, int],
) -> Iterator[dict[str, torch.Tensor]]:
    for name, gradient in gradients.items():
        tensor, kind = tensors[name], kind_of(name, tensors[name])
        if kind in (NUMBERS, FIXED):
            continue
        if kind == MASK:
            yield from ({**tensors, name: mask} for mask in _flip_mask(tensor, gradient))
            continue
        power = float(gradient.double().pow(2).sum())
        for step in (1.0, *_STEPS):
            moved = (tensor + (step * missing / power) * gradient).round()
            lowest = None if kind == COUNT or bool((tensor < 0).any()) else 0
            limit = vocabularies.get(name)
            moved = moved.clamp(lowest, None if limit is None else limit - 1) if lowest is not None or limit else moved
            yield {**tensors, name: moved.to(tensor.dtype)}


def _flip_mask(mask: torch.Tensor, gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    """Elements that can move in the direction of the gradient: the strongest of them, then more, then all."""
    strength = torch.where(mask.bool(), -gradient, gradient).reshape(-1)
    order = strength.argsort(descending=True)
    usable = int((strength > 0).sum())
    for count in sorted({1, usable // 4, usable // 2, usable} - {0}):
        flipped = mask.clone().reshape(-1)
        flipped[order[:count]] = (~mask.bool()).to(mask.dtype).reshape(-1)[order[:count]]
        if usable:
            yield flipped.reshape(mask.shape)
