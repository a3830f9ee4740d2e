"""Extraction check: an extracted part is fed what the PyTorch module was given, and compared with what it returned.

Which tensor of the run goes into which input of the part is found by content: the whole file runs on the same inputs,
and what it holds at the border of the part is looked up in the run. So renamed, reordered or flattened arguments do not
matter, and a module that a file hands something else than PyTorch did is noticed.

    PyTorch   layer.0(hidden=a, mask=b) -> c
    file      part(v17, v4) -> v31                v17 holds what a holds, v4 what b holds
    check     part(a, b) is compared with c       and not part(v17, v4) with v31, which would hide an error before it

A graph may hold at the border what the module has there with its axes in another order: ONNX's LSTM has time before the
batch, and transposes outside of a module with `batch_first` can cancel each other. Such tensors are transposed as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from modelexport.api.environment import Clock, need_torch
from modelexport.api.model_runs import ModelRuns, RunNoise, measure_noise, watch_run
from modelexport.api.options import VerifyOptions
from modelexport.errors import RuntimeFailed
from modelexport.graph.difference import adapt_tolerance, measure
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.missing_types import USE_FLOAT32, explain_missing_type
from modelexport.graph.sample import Sample, alike, distance, sample
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.model_source import ModelSource
from modelexport.record.results.files import (
    RETURNED,
    TOLERANCE,
    End,
    Extraction,
    ExtractionCheck,
    Feed,
    OutputComparison,
)
from modelexport.record.results.verification import Difference, Tolerance
from modelexport.transform.extract.cut import Cut

if TYPE_CHECKING:
    from modelexport.capture.eager import WatchedRun
    from modelexport.capture.tensor_spill import TensorSpill

See: TypeAlias = Callable[[str, np.ndarray], None]
# A tensor of the file that is further away from PyTorch's than this (relatively) is another one. A quantized file is
# far from the model; a wrong pick would show in the comparison.
_RELATED = 0.5
# Of a tensor whose axes are tried in every order: of more there are thousands.
_MOST_AXES = 6


def check_extracted(
    opened: TaggedFile, cut: Cut, part: Extraction, source: ModelSource, tolerance: float | None, clock: Clock
) -> ExtractionCheck:
    """Run the model; without a tolerance elements may differ by the usual one, coarser for types with few bits."""
    need_torch("running a model")
    from modelexport.capture.tensor_spill import TensorSpill

    with TensorSpill() as spool:
        border = frozenset(end.value for end in (*part.inputs, *part.outputs))
        reference = run_reference(opened, source, spool, clock, border)
        with clock.step("compare"):
            return compare_part(part, cut, reference, tolerance)


def compare_part(
    part: Extraction, cut: Cut, reference: ExtractionReference, tolerance: float | None
) -> ExtractionCheck:
    """Run the extracted file, and compare. Without a tensor for each input there is nothing to run."""
    usual = TOLERANCE if tolerance is None else tolerance
    runs = reference.runs_any(cut.selection.calls)
    if not runs and cut.selection.nodes is None:
        return ExtractionCheck(reference.name, usual, {}, (), runs=False)
    feeding = _Feeding(cut, reference)
    tensors = {end.name: feeding.tensor(end) for end in part.inputs}
    feed = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if len(feed) < len(tensors):
        return ExtractionCheck(reference.name, usual, feeding.fed, (), runs=runs)
    results = _run(part, feed)
    outputs = _Outputs(cut, reference, tolerance)
    compared = outputs.compared(part.outputs, results)
    return ExtractionCheck(
        reference.name,
        outputs.coarsest,
        feeding.fed,
        compared,
        missing=len(outputs.missing),
        lost=outputs.lost(results),
        whole=outputs.whole,
        chosen=tolerance is not None,
        runs=runs,
    )


def run_reference(
    opened: TaggedFile, source: ModelSource, spool: TensorSpill, clock: Clock, wanted: frozenset[str] | None
) -> ExtractionReference:
    """Run the model and the whole file once; `wanted` are the values of the file to be kept, None for all."""
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
    from modelexport.capture.onnxruntime.session import bind_inputs

    runs = ModelRuns(opened, VerifyOptions(source), clock)
    with clock.step("model"):
        watched = watch_run(runs.first, spool, source.seed)
    values: dict[str, np.ndarray] = {}

    def see(name: str, array: np.ndarray) -> None:
        if wanted is None or name in wanted:
            values[name] = np.array(array)

    feed = bind_inputs(opened.proto, runs.first.arguments.arrays)

    def again(show: See) -> None:
        PiecewiseRun(opened, None, often=False).run(feed, show)

    for name, array in feed.items():  # a part may read what the model is given
        see(name, array)
    with clock.step("file"):
        PiecewiseRun(opened, wanted, often=False).run(feed, see)
    rounding = measure_noise(runs.first, watched, spool, source.seed)
    return ExtractionReference(runs.prepared.source, watched, spool, values, again, rounding)


@dataclass(frozen=True)
class ExtractionReference:
    """A run of the model, and what the whole file makes of the same inputs.

    values  of the file, by id: those at the ends of what is to be checked
    again   runs the whole file once more, and shows every value of it
    """

    name: str
    watched: WatchedRun
    spool: TensorSpill
    values: Mapping[str, np.ndarray]
    again: Callable[[See], None]
    rounding: RunNoise

    def given(self, calls: Iterable[ModuleCall]) -> list[int]:
        return self._numbers(calls, inputs=True)

    def returned(self, calls: Iterable[ModuleCall]) -> list[int]:
        return self._numbers(calls, inputs=False)

    def runs_any(self, calls: Iterable[ModuleCall]) -> bool:
        """Whether the model makes one of these calls: those of a branch that it does not take are not made."""
        made = {tensors.call for tensors in self.watched.run.calls}
        return any(call in made for call in calls)

    def _numbers(self, calls: Iterable[ModuleCall], *, inputs: bool) -> list[int]:
        """Tensors of the run by number, in the order of arguments and without repeats."""
        by_call = {tensors.call: tensors for tensors in self.watched.run.calls}
        tensors = [by_call[call] for call in calls if call in by_call]
        numbers = (number for call in tensors for number in (call.inputs if inputs else call.outputs))
        return [number for number in dict.fromkeys(numbers) if number in self.spool]

    @cached_property
    def kept(self) -> list[int]:
        """All values that can be had: what crosses the border of any module."""
        return [number for number in range(len(self.watched.samples)) if number in self.spool]

    @property
    def samples(self) -> Sequence[Sample]:
        return self.watched.samples


def _run(part: Extraction, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    from modelexport.capture.onnxruntime.session import run_file

    try:
        return run_file(part.path, feed)
    except Exception as error:
        if missing := explain_missing_type(error, open_model(part.path).proto):
            raise RuntimeFailed(missing, USE_FLOAT32) from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise RuntimeFailed(
            f"ONNX Runtime cannot run {part.path}: {type(error).__name__}: {(lines or [''])[0][:300]}",
            "Try a newer onnxruntime, or inputs of another shape: --input NAME=SHAPE.",
        ) from error


class _Feeding:
    """Which tensor of PyTorch's goes into which input: by what the whole file holds there, else by shape and type."""

    def __init__(self, cut: Cut, reference: ExtractionReference) -> None:
        self.fed: dict[str, Feed] = {}
        self._cut = cut
        self._reference = reference
        self._given = reference.given(cut.selection.calls)
        self._used: set[int] = set()

    def tensor(self, end: End) -> np.ndarray | None:
        """None if nothing fits: the module was given something else than the file takes."""
        # A part that is handed something else than the whole file has there can only be fed by shape and type.
        seen = self._reference.values.get(end.value) if self._cut.handed is None else None
        number = self._by_content(seen) if seen is not None else self._by_type(end)
        if seen is not None and not self._is_alike(number, seen) and (reordered := self._reordered(seen)) is not None:
            self.fed[end.name] = Feed.GIVEN
            return reordered
        if number is not None:
            self._used.add(number)
            self.fed[end.name] = Feed.GIVEN if number in self._given else Feed.RUN
            array = self._reference.spool.get(number)
            # The file may hold it in fewer bits, or flattened: content is the same, type and shape are the file's.
            return array.astype(_dtype(end)) if seen is None else array.astype(seen.dtype).reshape(seen.shape)
        if seen is None:
            return None
        self.fed[end.name] = Feed.FILE
        return seen

    def _by_content(self, seen: np.ndarray) -> int | None:
        """What holds the same: of what the modules were given, else of the whole run; else what comes near."""
        wanted = sample(seen)
        kept = self._reference.kept if wanted.distinctive else ()
        for among in (self._given, kept):
            if same := [number for number in among if alike(self._reference.samples[number], wanted)]:
                return self._nearest(wanted, same)
        return self._nearest(wanted, self._given)

    def _is_alike(self, number: int | None, seen: np.ndarray) -> bool:
        return number is not None and alike(self._reference.samples[number], sample(seen))

    def _reordered(self, seen: np.ndarray) -> np.ndarray | None:
        """What the modules were given, with its axes in the order in which the file has it."""
        wanted = sample(seen)
        for number in self._given if wanted.distinctive else ():
            for array in _reorder_axes(self._reference.spool.get(number), seen.shape):
                if alike(sample(array), wanted):
                    self._used.add(number)
                    return array.astype(seen.dtype)
        return None

    def _nearest(self, wanted: Sample, among: Sequence[int]) -> int | None:
        apart = ((distance(self._reference.samples[number], wanted), number) for number in among)
        nearest, number = min(apart, default=(math.inf, None))
        # Integers are indices and masks: those that differ at all mean something else.
        return None if nearest > (_RELATED if wanted.kind == "float" else 0.0) else number

    def _by_type(self, end: End) -> int | None:
        unused = (number for number in self._given if number not in self._used)
        return next((number for number in unused if _fits(end, self._reference.spool.get(number))), None)


def _reorder_axes(array: np.ndarray, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The tensor with its axes in every other order in which it has this shape."""
    if array.ndim > _MOST_AXES or sorted(array.shape) != sorted(shape):
        return
    for order in permutations(range(array.ndim)):
        if order != tuple(range(array.ndim)) and tuple(array.shape[axis] for axis in order) == shape:
            yield array.transpose(order)


def _fits(end: End, array: np.ndarray) -> bool:
    """Whether it has the shape, and numbers of the kind; a file may hold them in fewer bits than the model."""
    if sample(array[:0]).kind != sample(np.empty(0, _dtype(end))).kind or len(end.shape) != array.ndim:
        return False
    sizes = zip(end.shape, array.shape, strict=True)
    return all(size == wanted for wanted, size in sizes if isinstance(wanted, int))


def _dtype(end: End) -> np.dtype[Any]:
    return onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(end.dtype.upper()))


class _Outputs:
    """What the part returned, each held against the tensor of the run that it must be.

    coarsest  the tolerance, or the largest one that the type of a tensor made necessary
    whole     whole calls were cut out: nodes of one need not return what it returned
    """

    def __init__(self, cut: Cut, reference: ExtractionReference, tolerance: float | None) -> None:
        self._usual = self.coarsest = TOLERANCE if tolerance is None else tolerance
        self._chosen = tolerance is not None
        self.whole = cut.selection.nodes is None
        self._reference = reference
        self._made = {value for node in cut.nodes for value in node.outputs} | set(cut.enters)
        self._left = reference.returned(cut.selection.calls)
        self._given = set(reference.given(cut.selection.calls))

    @property
    def missing(self) -> list[int]:
        """What was returned and is not in the file; what comes back as it was given needs no file."""
        return [number for number in self._left if number not in self._given]

    def compared(self, ends: Sequence[End], results: Sequence[np.ndarray]) -> tuple[OutputComparison, ...]:
        """First what agrees with something that was returned; what remains may be wrong, or something else.

        It is something else if the whole file has what was returned, only not here.
        """
        pairs = list(zip(ends, results, strict=True))
        comparisons = {end.name: self._returned(end, array, agreeing=True) for end, array in pairs}
        for end, array in pairs:
            if comparisons[end.name] is None:
                comparisons[end.name] = self._reordered(end, array) or self._elsewhere(end, array)
            if comparisons[end.name] is None and self.whole:
                comparisons[end.name] = self._returned(end, array, agreeing=False)
            if comparisons[end.name] is None:
                comparisons[end.name] = self._in_file(end, array)
        return tuple(comparison for comparison in comparisons.values() if comparison is not None)

    def _returned(self, end: End, array: np.ndarray, *, agreeing: bool) -> OutputComparison | None:
        """The nearest of what was returned and has not been found yet; it may be far away, and wrong."""
        seen = sample(array)
        apart = [(self._measured(number, array), number) for number in self._left if self._may_be(number, seen)]
        # What the file holds under another name is no candidate: this output is something else, and not wrong.
        apart = [
            (difference, number)
            for difference, number in apart
            if difference.agrees or not (agreeing or self._places.get(number, set()) - {end.value})
        ]
        if not apart:
            return None
        best, number = min(apart, key=lambda pair: (math.isnan(pair[0].max_abs), pair[0].max_abs))
        self._left.remove(number)
        return OutputComparison(end.name, RETURNED, best)

    def _reordered(self, end: End, array: np.ndarray) -> OutputComparison | None:
        """What was returned, if it agrees with its axes in another order. Few numbers would agree in some order."""
        seen = sample(array)
        for number in [number for number in self._left if seen.distinctive and self._may_be(number, seen)]:
            for returned in _reorder_axes(self._reference.spool.get(number), array.shape):
                difference = self._reference.rounding.settle(number, self._apart(returned, array))
                if difference.agrees:
                    self._left.remove(number)
                    return OutputComparison(end.name, RETURNED, difference, reordered=True)
        return None

    def lost(self, results: Sequence[np.ndarray]) -> int:
        """How many tensors that the module returned are made by what was not cut out: the cut ends too early.

        What nobody uses is not in the file at all, or does not leave the part.
        """
        if not self.whole:
            return 0
        results_seen = list(map(sample, results))
        left = [number for number in self.missing if not self._places.get(number, set()) <= self._made]
        return sum(not any(alike(self._reference.samples[number], seen) for seen in results_seen) for number in left)

    @cached_property
    def _places(self) -> Mapping[int, set[str]]:
        """By what was returned and is not among the results: the values of the whole file that hold the same."""
        # Zeros and ones are held by many values: samples that tell nothing are left out.
        samples = self._reference.samples
        wanted = [(number, samples[number]) for number in self.missing if samples[number].distinctive]
        values: dict[int, set[str]] = {}

        def see(name: str, array: np.ndarray) -> None:
            seen = sample(array)
            for number, returned in wanted:
                if alike(returned, seen):
                    values.setdefault(number, set()).add(name)

        if wanted:
            self._reference.again(see)
        return values

    def _may_be(self, number: int, seen: Sample) -> bool:
        returned = self._reference.samples[number]
        return returned.size == seen.size and (returned.kind == seen.kind or "other" in (returned.kind, seen.kind))

    def _measured(self, number: int, array: np.ndarray) -> Difference:
        difference = self._apart(self._reference.spool.get(number).reshape(array.shape), array)
        return self._reference.rounding.settle(number, difference)

    def _apart(self, reference: np.ndarray, array: np.ndarray) -> Difference:
        # Numbers of few bits cannot be closer than their grain; who chose a tolerance means that one all the same.
        tolerance = Tolerance(self._usual, self._usual) if self._chosen else Tolerance()
        tolerance = adapt_tolerance(tolerance, sample(reference), sample(array))
        self.coarsest = max(self.coarsest, tolerance.rtol or 0.0)
        return measure(reference, array, tolerance)

    def _elsewhere(self, end: End, array: np.ndarray) -> OutputComparison | None:
        """A value of the run that the module did not return, such as one that is kept for later."""
        wanted, samples = sample(array), self._reference.samples
        kept = [number for number in self._reference.kept if alike(samples[number], wanted)]
        differences = [self._measured(number, array) for number in kept]
        agreeing = [difference for difference in differences if difference.agrees]
        if not agreeing or not wanted.distinctive:
            return None
        return OutputComparison(end.name, "run", min(agreeing, key=lambda difference: difference.max_abs))

    def _in_file(self, end: End, array: np.ndarray) -> OutputComparison | None:
        """What no module returned has no other witness than the whole file: the cut at least must not change it."""
        seen = self._reference.values.get(end.value)
        if seen is None or seen.shape != array.shape:
            return None
        return OutputComparison(end.name, "file", self._apart(seen, array))
