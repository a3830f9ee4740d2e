"""Holding a file against the model that it came from, or against another file of that model.

One file against another one of the same model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modelexport.api.attach import Source, prepared_for
from modelexport.api.observe import Finding, Observer, Opened, Sampler, open_tagged, see_stored_outputs
from modelexport.api.opened_file import Clock, Progress
from modelexport.api.verify_model import Plan, as_it_runs, drawing_notes, summed
from modelexport.errors import InputError, ModelMismatch, UserError
from modelexport.graph.crossings import calls_by_end
from modelexport.graph.related import module_overlap
from modelexport.graph.sample import Sample
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import Tolerance, Verification
from modelexport.record.signals import CallTensors
from modelexport.verify.numbers import ReferenceRun

if TYPE_CHECKING:
    import torch


def verify(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path,
    model: torch.nn.Module | str | Path | None = None,
    *,
    against: str | Path | None = None,
    inputs: object = None,
    samples: int = 1,
    atol: float | None = None,
    rtol: float | None = None,
    min_sqnr: float | None = None,
    as_deployed: bool = False,
    proof: bool = True,
    task: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    text: str | None = None,
    image: str | Path | None = None,
    input: Sequence[str] = (),
    input_specs: str | Path | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compare the numbers of an ONNX file module by module, and prove its attributions by values.

    model    what the file was exported from; it runs, and what each module is given and returns is compared
    against  another file of the same model, in the place of the model; `model` then only makes the inputs
    inputs   as in `export`; or a sequence of .npz files, or a list of dictionaries, each of them one sample
    samples  how many inputs to run on; the first is the given or made one, the others are drawn like it
    as_deployed  judge the graph that ONNX Runtime makes of the file, with all optimizations, in its place
    """
    if model is None and against is None:
        raise UserError(
            "there is nothing to verify the file against",
            "Give the model that it was exported from (-m), or another file of that model (--against).",
        )
    if samples < 1:
        raise UserError(f"samples is {samples}", "Give 1 or more.")
    if any(not bound >= 0 for bound in (atol or 0.0, rtol or 0.0)) or min_sqnr != min_sqnr:  # noqa: PLR0124 - NaN
        raise UserError(f"no tolerances: atol {atol}, rtol {rtol}, min_sqnr {min_sqnr}", "Give numbers from 0 on.")
    if model is None and (text or image or input_specs):
        raise UserError("text, images and input specs need the model to make inputs from them", "Give it as well: -m.")
    source = None
    if model is not None:
        source = Source(
            model, None, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
        )
    from modelexport.api.verify_model import Plan, against_model

    plan = Plan(inputs, samples, seed, tuple(input), Tolerance(atol, rtol, min_sqnr), as_deployed, proof)
    clock = Clock(progress)
    if against is not None:
        return against_file(Path(file), Path(against), source, plan, clock)
    assert source is not None
    return against_model(Path(file), source, plan, clock)


if TYPE_CHECKING:
    from modelexport.capture.eager import Spool

_BY_NAME = "Give a dictionary of them, by name."


def against_file(path: Path, other: Path, source: Source | None, plan: Plan, clock: Clock) -> Verification:
    """`other` is the one that is believed."""
    from modelexport.capture.eager import Spool
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun

    opened, believed = open_tagged(path), open_tagged(other)
    notes = _overlap_notes(opened, believed)
    reference = PiecewiseRun(believed.file, believed.wanted, often=plan.several)
    findings: list[Finding] = []
    with as_it_runs(opened, plan, clock) as judged:
        pieces = PiecewiseRun(judged.file, judged.wanted, often=plan.several)
        for feed in _feeds(believed, source, plan, clock):
            with Spool() as spool:
                recorder = _Recorder(believed, spool)
                with clock.step("reference"):
                    reference.run(_taken(feed, believed), recorder.see)
                with clock.step("file"):
                    observer = Observer(judged, recorder.reference(), recorder.outputs, plan.tolerance)
                    pieces.run(_taken(feed, judged), observer.see)
                    see_stored_outputs(judged, observer)
                findings.append(replace(observer.finding(recorder.calls), seen={}))
    found = summed(opened, str(other), findings, plan, clock)
    return replace(found, notes=(*notes, *found.notes, *drawing_notes(opened), *drawing_notes(believed)))


class _Recorder:
    """Keeps what crosses the modules of the file that is believed."""

    def __init__(self, believed: Opened, spool: Spool) -> None:
        self._numbers: dict[str, int] = {}
        self._samples: dict[int, Sample] = {}
        self._sampler = Sampler(believed)
        self._believed = believed
        self._spool = spool

    def see(self, name: str, array: np.ndarray) -> None:
        number = self._numbers[name] = len(self._numbers)
        taken = self._samples[number] = self._sampler.take(name, array)
        if taken.kind != "other":
            self._spool.put(number, array)

    @property
    def outputs(self) -> dict[str, int]:
        return {name: self._numbers[name] for name in self._believed.subject.graph.outputs if name in self._numbers}

    @property
    def calls(self) -> tuple[CallTensors, ...]:
        crossings = self._believed.crossings
        outputs, inputs = self._by_call(crossings.leaves), self._by_call(crossings.enters)
        ended = calls_by_end(self._believed.subject.provenance.hierarchy)
        return tuple(CallTensors(call, inputs.get(call, ()), outputs.get(call, ())) for call in ended)

    def reference(self) -> ReferenceRun:
        return ReferenceRun(self.calls, self._samples, self._spool.__contains__, self._spool.get)

    def _by_call(self, crossing: Mapping[str, tuple[ModuleCall, ...]]) -> dict[ModuleCall, tuple[int, ...]]:
        found: dict[ModuleCall, list[int]] = {}
        for value, calls in crossing.items():
            number = self._numbers.get(value)
            if number is not None and self._samples[number].kind == "float":
                for call in calls:
                    found.setdefault(call, []).append(number)
        return {call: tuple(numbers) for call, numbers in found.items()}


def _feeds(believed: Opened, source: Source | None, plan: Plan, clock: Clock) -> Iterator[Mapping[str, np.ndarray]]:
    if source is not None:
        yield from _model_feeds(believed, source, plan, clock)
        return
    from modelexport.capture.onnxruntime.inputs import SampleRequest, graph_feed, graph_samples
    from modelexport.capture.onnxruntime.session import feed_for

    proto, graph = believed.subject.proto, believed.subject.graph
    given = [feed_for(proto, one) for one in _given(plan.inputs, graph.inputs)] if not plan.files else []
    if plan.files or not given:
        given = list(graph_samples(proto, graph, SampleRequest(plan.samples, plan.seed, plan.shapes, plan.files)))
    yield from given
    shapes = {name: array.shape for name, array in given[0].items()}
    for number in range(len(given), plan.samples):
        yield graph_feed(proto, graph, seed=plan.seed + number, shapes=shapes)


def _given(inputs: object, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
    """Inputs as Python has them: by name, one alone, several in the order of the graph, or a list of any of these."""
    if inputs is None:
        return
    if isinstance(inputs, Mapping):
        yield {name: _array(value) for name, value in inputs.items()}
    elif isinstance(inputs, list | tuple) and inputs and all(isinstance(one, Mapping) for one in inputs):
        for one in inputs:
            yield from _given(one, names)
    else:
        values = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(values) != len(names):
            raise InputError(f"the file takes {len(names)} inputs, and {len(values)} were given", _BY_NAME)
        yield {name: _array(value) for name, value in zip(names, values, strict=True)}


def _array(value: object) -> np.ndarray:
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    if torch is not None and isinstance(value, torch.Tensor):
        from modelexport.capture.arguments import to_array

        return to_array(value)
    return np.asarray(value)


def _model_feeds(believed: Opened, source: Source, plan: Plan, clock: Clock) -> Iterator[Mapping[str, np.ndarray]]:
    from modelexport.capture.arguments import redrawn, to_array

    given = plan.files or (plan.inputs,)
    prepared = prepared_for(believed.file.proto, replace(source, inputs=given[0]), clock)
    arguments = [prepared.inputs]
    again = replace(source, model=prepared.module)
    arguments += [prepared_for(believed.file.proto, replace(again, inputs=one), clock).inputs for one in given[1:]]
    arguments += [redrawn(prepared.inputs, plan.seed + number) for number in range(len(given), plan.samples)]
    for one in arguments:
        yield {name: to_array(tensor) for name, tensor in one.tensors.items()}


def _taken(feed: Mapping[str, np.ndarray], opened: Opened) -> dict[str, np.ndarray]:
    from modelexport.capture.onnxruntime.session import feed_for

    return feed_for(opened.file.proto, feed)


def _overlap_notes(opened: Opened, believed: Opened) -> tuple[str, ...]:
    found = module_overlap(opened.subject.provenance.hierarchy, believed.subject.provenance.hierarchy)
    if not found.related:
        raise ModelMismatch(
            f"{opened.subject.path} and {believed.subject.path} are not of one model: {found}",
            "Give two files that were made from the same model.",
        )
    return found.notes
