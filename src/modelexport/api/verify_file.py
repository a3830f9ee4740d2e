"""Verification of two files: both run on the same inputs, value by value, without torch.

    verify_against_file(int8, float32, options, clock)

Modules are known on both sides, so what crosses a module is paired by call, whatever a tool renamed or fused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from modelexport.api.environment import Clock
from modelexport.api.model_runs import note_random_nodes
from modelexport.api.opening import open_file
from modelexport.api.options import VerifyOptions
from modelexport.api.output_effects import Effects, NoisyRun, measure_effects
from modelexport.api.prepare_file import fit_dtype, prepare_for_file
from modelexport.api.relink import relink_graph
from modelexport.api.value_comparison import (
    RunComparison,
    SampleComparison,
    ValueSampler,
    compare_stored_outputs,
    crossing_values,
)
from modelexport.api.verify_model import open_judged, summarize_samples
from modelexport.errors import InputError, ModelMismatch, RuntimeFailed
from modelexport.graph.crossings import calls_by_end
from modelexport.graph.file.tagged_file import TaggedFile, find_ancestor
from modelexport.graph.related import module_overlap
from modelexport.graph.sample import Sample
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import Verification
from modelexport.record.signals import CallTensors
from modelexport.verify.numbers import ReferenceRun

if TYPE_CHECKING:
    from modelexport.capture.tensor_spill import TensorSpill


def link_files(file: TaggedFile, other: TaggedFile) -> tuple[TaggedFile, TaggedFile]:
    """Both with modules. One without a record has those of the other, along what the two have in common.

    What two files tell of themselves cannot be compared: a tool that makes one of the other changes names and metadata.
    """
    if file.is_recorded and other.is_recorded:
        return file, other
    if file.is_recorded:
        return file, _link(other, file)
    known = open_file(other.path)
    return _link(file, known), known


def _link(file: TaggedFile, known: TaggedFile) -> TaggedFile:
    relinked = relink_graph(find_ancestor(known), file, "verify")
    if not relinked.related:
        raise ModelMismatch(
            f"{file.path} and {known.path} are not of one model: {relinked.lineage.overlap}",
            "Give two files that were made from the same model.",
        )
    return file.believing(relinked.provenance)


def verify_against_file(file: TaggedFile, believed: TaggedFile, options: VerifyOptions, clock: Clock) -> Verification:
    """Run both files on the same inputs, value by value; the other one takes the part of the model.

    Modules are known on both sides, so what crosses a module is paired by call, whatever a tool renamed or fused.
    """
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
    from modelexport.capture.onnxruntime.session import bind_inputs
    from modelexport.capture.tensor_spill import TensorSpill

    overlap = module_overlap(file.provenance.hierarchy, believed.provenance.hierarchy)
    if not overlap.related:
        raise ModelMismatch(
            f"{file.path} and {believed.path} are not of one model: {overlap}",
            "Give two files that were made from the same model.",
        )
    # Only what crosses a module is kept of the believed run: the rest would be all activations of the model at once.
    reference = PiecewiseRun(believed, crossing_values(believed), often=options.runs_often)
    findings: list[SampleComparison] = []
    effects = Effects({}, 0)
    with open_judged(file, options, clock) as judged:
        pieces = PiecewiseRun(judged, crossing_values(judged), often=options.runs_often)
        for feed in _feeds(believed, options, clock):
            with TensorSpill() as spool:
                recorder = _ReferenceRecorder(believed, spool)
                with clock.step("reference"):
                    reference.run(bind_inputs(believed.proto, feed), recorder.see)
                with clock.step("file"):
                    noise = _FileNoise(believed, bind_inputs(believed.proto, feed), recorder.find_array)
                    known = recorder.reference(noise.of)
                    observer = RunComparison(judged, known, recorder.outputs, options.tolerance)
                    pieces.run(bind_inputs(judged.proto, feed), observer.see)
                    compare_stored_outputs(judged, observer)
                finding = observer.finding(recorder.calls)
                # Of the first inputs: two runs for each module would take too long on all of them.
                if not findings and not any(note_random_nodes(believed)):
                    with clock.step("effects"):
                        feeds = bind_inputs(believed.proto, feed), bind_inputs(judged.proto, feed)
                        run = NoisyRun(believed, judged, feeds, finding.compared, recorder.names, spool)
                        effects = measure_effects(run)
                # Samples of values are for a proof, which needs the model; of many inputs they would fill the memory.
                findings.append(replace(finding, seen={}, compared={}))
    verification = summarize_samples(file, str(believed.path), findings, options, clock)
    calls = tuple(replace(item, effect=effects.by_call.get(item.call)) for item in verification.calls)
    notes = (*note_random_nodes(file), *note_random_nodes(believed), *effects.notes)
    return replace(verification, calls=calls, notes=(*overlap.notes, *verification.notes, *notes))


class _ReferenceRecorder:
    """Keeps what crosses the modules of the file that is believed, in the form that a run of a model has.

    Values get numbers in the order in which they are made, as tensors of a model do.
    """

    def __init__(self, believed: TaggedFile, spool: TensorSpill) -> None:
        self._numbers: dict[str, int] = {}
        self._samples: dict[int, Sample] = {}
        self._sampler = ValueSampler(believed)
        self._believed, self._spool = believed, spool

    def see(self, name: str, array: np.ndarray) -> None:
        number = self._numbers[name] = len(self._numbers)
        self._samples[number] = self._sampler.take(name, array)
        if self._samples[number].kind != "other":
            self._spool.put(number, array)

    @property
    def names(self) -> dict[int, str]:
        return {number: name for name, number in self._numbers.items()}

    @property
    def outputs(self) -> dict[str, int]:
        return {name: self._numbers[name] for name in self._believed.graph.outputs if name in self._numbers}

    @property
    def calls(self) -> tuple[CallTensors, ...]:
        crossings = self._believed.crossings
        outputs, inputs = self._by_call(crossings.leaves), self._by_call(crossings.enters)
        ended = calls_by_end(self._believed.provenance.hierarchy)
        return tuple(CallTensors(call, inputs.get(call, ()), outputs.get(call, ())) for call in ended)

    def reference(self, noise: Callable[[str], float | None]) -> ReferenceRun:
        """noise  by how much rounding changes a value of the file, by name"""
        names, spool = self.names, self._spool

        def noise_of(number: int) -> float | None:
            return noise(names[number])

        return ReferenceRun(self.calls, self._samples, spool.__contains__, spool.get, noise=noise_of)

    def find_array(self, name: str) -> np.ndarray | None:
        number = self._numbers.get(name)
        return None if number is None or number not in self._spool else self._spool.get(number)

    def _by_call(self, crossing: Mapping[str, tuple[ModuleCall, ...]]) -> dict[ModuleCall, tuple[int, ...]]:
        """Floats alone: integers that cross a module are indices and shapes, which are right or fail at once."""
        numbers_by_call: dict[ModuleCall, tuple[int, ...]] = {}
        for value, calls in crossing.items():
            number = self._numbers.get(value)
            if number is not None and self._samples[number].kind == "float":
                numbers_by_call.update({call: (*numbers_by_call.get(call, ()), number) for call in calls})
        return numbers_by_call


class _FileNoise:
    """How much of the values of a file is rounding; it runs once more when the first value is asked for."""

    def __init__(
        self, file: TaggedFile, feed: Mapping[str, np.ndarray], find_array: Callable[[str], np.ndarray | None]
    ) -> None:
        self._file, self._feed, self._find_array = file, feed, find_array

    def of(self, name: str) -> float | None:
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, float]:
        from modelexport.capture.onnxruntime.value_noise import measure_value_noise

        if any(note_random_nodes(self._file)):
            return {}
        with suppress(RuntimeFailed):  # what is not known is no reproach
            return measure_value_noise(self._file, crossing_values(self._file), self._feed, self._find_array)
        return {}


def _feeds(believed: TaggedFile, options: VerifyOptions, clock: Clock) -> Iterator[Mapping[str, np.ndarray]]:
    """The inputs of each run: those that were given, then made ones of the same shapes up to `samples`."""
    source = options.source
    if source.model is not None:
        yield from _model_feeds(believed, options, clock)
        return
    from modelexport.capture.onnxruntime.inputs import SampleRequest, make_feed, sample_feeds
    from modelexport.capture.onnxruntime.session import bind_inputs

    proto, graph = believed.sized_proto, believed.graph
    live_inputs = None if source.input_files else source.inputs
    feeds = [bind_inputs(proto, feed) for feed in _given_feeds(live_inputs, graph.inputs)]
    if not feeds:
        request = SampleRequest(options.samples, source.seed, tuple(source.input), source.input_files)
        feeds = list(sample_feeds(proto, graph, request))
    yield from feeds
    shapes = {name: array.shape for name, array in feeds[0].items()}
    for number in range(len(feeds), options.samples):
        yield make_feed(proto, graph, seed=source.seed + number, shapes=shapes)


def _given_feeds(inputs: object, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
    """Inputs as Python has them: by name, one alone, several in the order of the graph, or a list of any of these."""
    if inputs is None:
        return
    if isinstance(inputs, Mapping):
        yield {name: _array(value) for name, value in inputs.items()}
    elif isinstance(inputs, list | tuple) and inputs and all(isinstance(item, Mapping) for item in inputs):
        for item in inputs:
            yield from _given_feeds(item, names)
    else:
        values = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(values) != len(names):
            counts = f"the file takes {len(names)} inputs, and {len(values)} were given"
            raise InputError(counts, "Give a dictionary of them, by name.")
        yield {name: _array(value) for name, value in zip(names, values, strict=True)}


def _array(value: object) -> np.ndarray:
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    if torch is not None and isinstance(value, torch.Tensor):
        from modelexport.capture.arguments import to_array

        return to_array(value)
    return np.asarray(value)


def _model_feeds(believed: TaggedFile, options: VerifyOptions, clock: Clock) -> Iterator[Mapping[str, np.ndarray]]:
    from modelexport.capture.arguments import resample_inputs

    source = fit_dtype(believed, options.source)
    first, *more = source.samples
    prepared = prepare_for_file(believed, replace(source, inputs=first), clock)
    again = source.with_module(prepared.module)  # loaded once, whatever the number of samples
    arguments = [prepared.inputs]
    arguments += [prepare_for_file(believed, replace(again, inputs=sample), clock).inputs for sample in more]
    drawn = range(len(arguments), options.samples)
    arguments += [resample_inputs(prepared.inputs, source.seed + number) for number in drawn]
    yield from (call.arrays for call in arguments)
