"""Runs of a model that a file is held against: on each sample, watched from inside, and how much of them is rounding.

ModelRuns      the model as it was exported, traced on every sample
watch_run      one of these again, with all of its values; ModelUnrepeatable if they are others
RunNoise       the same once more with other last bits, for differences that are too small to be told from rounding
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from modelexport.api.environment import Clock
from modelexport.api.options import VerifyOptions
from modelexport.api.prepare_file import fit_dtype, prepare_for_file
from modelexport.errors import InputError, ModelMismatch, ModelUnrepeatable, some_of
from modelexport.graph.difference import measure, settle_by_noise
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.operators import random_nodes
from modelexport.graph.related import module_overlap
from modelexport.record.hierarchy import ROOT, Hierarchy
from modelexport.record.results.verification import Difference, Tolerance
from modelexport.verify.witness import find_first_difference

if TYPE_CHECKING:
    import torch

    from modelexport.capture.eager import WatchedRun
    from modelexport.capture.export import PreparedModel, TracedRun
    from modelexport.capture.tensor_spill import TensorSpill


class ModelRuns:
    """The model, run once on each sample.

    prepared  the model on the device and in the type that were asked for, with its first inputs
    first     the run on these; weights are compared by it before the others are made
    path      the way that it took: where a tensor became a Python value
    """

    def __init__(
        self, file: TaggedFile, options: VerifyOptions, clock: Clock, prepared: PreparedModel | None = None
    ) -> None:
        self._file, self._options, self._clock = file, options, clock
        self._source = fit_dtype(file, options.source)
        first, *self._more = self._source.samples if prepared is None else (None,)
        self.prepared = prepared or prepare_for_file(file, replace(self._source, inputs=first), clock)
        self.overlap_notes = overlap_notes(file, self.prepared.module, self.prepared.source)
        from modelexport.capture.decisions import PathRecorder

        with clock.step("trace"), PathRecorder(self.prepared.module) as recorder:
            self.first = self._traced(self.prepared)
        self.path = recorder.path

    def all(self) -> Iterator[TracedRun]:
        yield self.first
        for inputs in self._more:
            again = replace(self._source.with_module(self.prepared.module), inputs=inputs)
            yield self._traced(prepare_for_file(self._file, again, self._clock))
        for number in range(1 + len(self._more), self._options.samples):
            seed = self._source.seed + number
            if self.prepared.entry is None:
                yield self._trace_varied(number, seed)
            else:
                # A cache of random numbers is none: other tokens are generated.
                again = replace(self._source.with_module(self.prepared.module), seed=seed)
                yield self._trace(prepare_for_file(self._file, again, self._clock))

    def _trace_varied(self, number: int, seed: int) -> TracedRun:
        """Inputs of another sign, scale, sparsity or padding; drawn like the first where the model refuses them."""
        from modelexport.capture.arguments import resample_inputs
        from modelexport.capture.variations import vary_sample

        drawn = resample_inputs(self.first.arguments, seed)
        with suppress(InputError):
            varied = drawn.with_tensors(vary_sample(drawn.tensors, number, seed))
            return self._trace(replace(self.prepared, inputs=varied))
        return self._trace(replace(self.prepared, inputs=drawn))

    @property
    def notes(self) -> tuple[str, ...]:
        random_notes = _random_notes(self._file, self.prepared.module)
        return (*self.overlap_notes, *self.prepared.notes, *self.first.notes, *random_notes)

    def _traced(self, prepared: PreparedModel) -> TracedRun:
        """On inputs that leave the model all of its work, where nobody chose them."""
        from modelexport.capture.onnxruntime.session import assign_inputs

        busy = None
        if self._source.leaves_inputs_open and prepared.entry is None:
            # Models leave out the work of a mask that hides nothing, and the file does it all the same.
            busy = prepared.inputs.with_mask(set(assign_inputs(self._file.proto, prepared.inputs.arrays).values()))
        if busy is not None:
            with suppress(InputError):  # a model may have every right to refuse other inputs
                return self._trace(replace(prepared, inputs=busy))
        return self._trace(prepared)

    def _trace(self, prepared: PreparedModel) -> TracedRun:
        from modelexport.capture.export import trace_prepared
        from modelexport.capture.isolation import seed_torch

        # Not the state that somebody left: a second run with other random numbers is to be one.
        with seed_torch(self._source.seed):
            return trace_prepared(prepared)


def _random_notes(opened: TaggedFile, model: torch.nn.Module) -> Iterator[str]:
    """Dropout and running norms: an exported file has them as in evaluation mode, so the model is run in it, too."""
    from modelexport.capture.isolation import random_layers_in_training, running_norms_in_training

    concerned = (*random_layers_in_training(model), *running_norms_in_training(model))
    if concerned or model.training:
        named = f": {some_of(concerned)}" if concerned else ""
        yield f"the model is in training mode; it was run in evaluation mode{named}"
    yield from note_random_nodes(opened)


def note_random_nodes(opened: TaggedFile) -> Iterator[str]:
    drawing = random_nodes(opened.proto)
    if drawing:
        yield f"{opened.path} draws random numbers each time that it runs: {some_of(list(map(str, drawing)))}"


def overlap_notes(opened: TaggedFile, model: torch.nn.Module, source: str) -> tuple[str, ...]:
    """What to know about a model that is not quite that of the file; ModelMismatch for another one."""
    from modelexport.capture.hierarchy import read_modules

    recorded = opened.provenance.hierarchy
    overlap = module_overlap(recorded, Hierarchy.of(read_modules(model)))
    if not overlap.related:
        raise ModelMismatch(
            f"{opened.path} was not made from {source}: {overlap}",
            f"Give the model that it was exported from, a {recorded.modules[ROOT].class_name}.",
        )
    return overlap.notes


def watch_run(run: TracedRun, spool: TensorSpill, seed: int) -> WatchedRun:
    """The run again, seen from inside. Random numbers are other ones, so that a model that needs them is found out."""
    watched = _watch(run, spool, seed + 1)
    if _repeats(run, watched, spool):
        return watched
    from modelexport.capture.tensor_spill import TensorSpill as Scratch

    with Scratch() as scratch:
        where = find_first_difference(watched.run, watched.samples, _watch(run, scratch, seed + 2).samples)
    raise ModelUnrepeatable(
        f"{type(run.model).__name__} gives other numbers each time that it runs on the same inputs"
        + (f", from {where} on" if where else ""),
        "Make it deterministic: no random numbers outside of training, or a seed of its own.",
    )


def watch_again(run: TracedRun, spool: TensorSpill, seed: int, wanted: Collection[int]) -> WatchedRun:
    """The run that `watch_run` made once more, to keep more of its values."""
    return _watch(run, spool, seed + 1, wanted)


def _watch(run: TracedRun, spool: TensorSpill, seed: int, wanted: Collection[int] = ()) -> WatchedRun:
    from modelexport.capture.eager import watch_run
    from modelexport.capture.isolation import EXPORT_LOCK, exportable_moe
    from modelexport.capture.silence import quiet

    with EXPORT_LOCK, quiet(), exportable_moe(run.model), run.entered():
        return watch_run(run.model, run.arguments, spool, seed, wanted=wanted)


def measure_noise(run: TracedRun, watched: WatchedRun, spool: TensorSpill, seed: int) -> RunNoise:
    """What `watch_run` saw, and how much of it is rounding."""
    return RunNoise(run.model, lambda scratch: _watch(run, scratch, seed + 1), watched, spool)


class RunNoise:
    """How much of the values of a run is rounding, by a second run with other last bits (`capture/rounding.py`).

    It is made when the first value is asked for, which is hardly ever.

    watch    makes the run again, and keeps its values
    watched  the run itself, and `spool` its values
    """

    def __init__(
        self,
        model: torch.nn.Module,
        watch: Callable[[TensorSpill], WatchedRun],
        watched: WatchedRun,
        spool: TensorSpill,
    ) -> None:
        self._model, self._watch, self._watched, self.spool = model, watch, watched, spool

    def of(self, number: int) -> float | None:
        """None for a run that takes another way when last bits change: its values have other numbers."""
        return None if self._noise is None else self._noise.get(number)

    def settle(self, number: int, difference: Difference) -> Difference:
        noise = self.of(number) if difference.too_small else None
        return difference if noise is None else settle_by_noise(difference, noise)

    @cached_property
    def _noise(self) -> dict[int, float] | None:
        from modelexport.capture.rounding import RoundedDifferently, largest_array_change
        from modelexport.capture.tensor_spill import TensorSpill as Scratch

        with Scratch() as scratch, RoundedDifferently(self._model):
            try:
                again = self._watch(scratch)
            except InputError:
                return None
            if [op.name for op in again.run.ops] != [op.name for op in self._watched.run.ops]:
                return None
            numbers = (number for number in range(len(again.samples)) if number in scratch and number in self.spool)
            return {number: largest_array_change(self.spool.get(number), scratch.get(number)) for number in numbers}


def _repeats(run: TracedRun, watched: WatchedRun, spool: TensorSpill) -> bool:
    """Whether two runs return the same, within rounding: kernels on several threads may add in another order."""
    from modelexport.capture.arguments import to_array

    kept = {name: number for name, number in watched.run.outputs.items() if number in spool}
    pairs = [(to_array(run.outputs[name]), spool.get(number)) for name, number in kept.items()]
    return all(a.shape == b.shape and measure(a, b, Tolerance()).agrees for a, b in pairs)
