"""Step comparison: one run of one file of a package beside the same call of the model.

    given     what links and cache pairs handed to the file      against what the model had there
    calls     what every module was given and returned           as `verify` compares a file (`value_comparison`)
    outputs   logits and every tensor of the cache               where tokens are no padding

Who is to blame is asked in this order: a wrong input makes everything wrong, a wrong module its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modelexport.api.model_runs import RunNoise
from modelexport.api.value_comparison import RunComparison, SampleComparison, compare_stored_outputs
from modelexport.errors import RuntimeFailed
from modelexport.graph.difference import adapt_tolerance, measure
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.sample import Sample, sample
from modelexport.record.hierarchy import ROOT, ModuleCall
from modelexport.record.results.package_verification import StepCheck, StepDivergence
from modelexport.record.results.verification import Difference, Tolerance
from modelexport.record.signals import CallTensors, EagerRun
from modelexport.verify.divergence import class_name
from modelexport.verify.numbers import ReferenceRun

if TYPE_CHECKING:
    import torch

    from modelexport.capture.eager import WatchedRun
    from modelexport.capture.entry_point import EntryPoint
    from modelexport.capture.generation.replay import EntryCall
    from modelexport.capture.onnxruntime.chain import ChainRun
    from modelexport.capture.tensor_spill import TensorSpill

_LOGITS = "logits"


@dataclass(frozen=True)
class ComparedFile:
    """A component and the entry point of the model that it was made from."""

    name: str
    file: TaggedFile
    entry: EntryPoint


class StepComparer:
    """Compares runs of files with calls of one model."""

    def __init__(self, model: torch.nn.Module, components: Mapping[str, ComparedFile], tolerance: Tolerance) -> None:
        from modelexport.capture.onnxruntime.piecewise import PiecewiseRun

        self._model, self._components, self._tolerance = model, components, tolerance
        self._token_axes = _find_token_axes(item.entry for item in components.values())
        # Sessions are not kept: their pieces are made for the sizes of one run, and every step has others.
        self._pieces = {name: PiecewiseRun(item.file, often=False) for name, item in components.items()}

    def compare(self, step: int, run: ChainRun, call: EntryCall, *, padding: str = "") -> StepCheck:
        """One run, module by module. The model computes from its own cache, the file from what it was handed."""
        from modelexport.capture.tensor_spill import TensorSpill

        component = self._components[run.component]
        with TensorSpill() as spool:
            watched = self._watch(component.entry, call, spool)
            rounding = RunNoise(
                self._model, lambda scratch: self._watch(component.entry, call, scratch), watched, spool
            )
            given = {name: self._measure(_array(call.inputs[name]), run.feed[name]) for name in run.handed}
            outputs = dict(self._compare_outputs(run, call, watched, rounding))
            finding = None
            if all(difference.agrees for difference in given.values()):
                finding = self._compare_modules(component, run, watched, rounding)
        blame = _Blame(component, run, watched.run)
        return StepCheck(
            step=step,
            component=run.component,
            batch=next((len(tensor) for tensor in call.inputs.values() if tensor.dim()), 1),
            past=call.past,
            query=call.query,
            given=given,
            outputs=outputs,
            calls=0 if finding is None else sum(item.outputs is not None for item in finding.calls),
            padding=padding,
            divergence=blame.handed_on(given) or blame.module(finding) or blame.output(outputs),
        )

    def fail(self, step: int, component: str, call: EntryCall, error: RuntimeFailed, padding: str = "") -> StepCheck:
        """A run that did not come to an end."""
        batch = next((len(tensor) for tensor in call.inputs.values() if tensor.dim()), 1)
        wrong = StepDivergence(component, None, "", "", error.message)
        return StepCheck(step, component, batch, call.past, call.query, {}, {}, 0, padding, wrong)

    def _watch(self, entry: EntryPoint, call: EntryCall, spool: TensorSpill) -> WatchedRun:
        from modelexport.capture.arguments import CallArguments
        from modelexport.capture.eager import watch_run

        with _entered_quietly(self._model, entry):
            return watch_run(self._model, CallArguments(dict(call.inputs)), spool)

    def _compare_modules(
        self, component: ComparedFile, run: ChainRun, watched: WatchedRun, rounding: RunNoise
    ) -> SampleComparison:
        calls = tuple(_floats_of(item, watched.samples) for item in watched.run.calls)
        spool, samples = rounding.spool, dict(enumerate(watched.samples))
        reference = ReferenceRun(calls, samples, spool.__contains__, spool.get, rounding.settle)
        observer = RunComparison(component.file, reference, watched.run.outputs, self._tolerance)
        self._pieces[component.name].run(dict(run.feed), observer.see)
        compare_stored_outputs(component.file, observer)
        return observer.finding(calls)

    def _compare_outputs(
        self, run: ChainRun, call: EntryCall, watched: WatchedRun, rounding: RunNoise
    ) -> Iterator[tuple[str, Difference]]:
        axes, spool = self._token_axes, rounding.spool
        mask = None if call.mask is None else _array(call.mask)
        for name, number in watched.run.outputs.items():
            if name in run.outputs and number in spool:
                expected, got = spool.get(number), run.outputs[name]
                if expected.shape == got.shape and mask is not None and name in axes:
                    expected, got = (_without_padding(array, mask, axes[name]) for array in (expected, got))
                yield name, rounding.settle(number, self._measure(expected, got, watched.samples[number]))

    def _measure(self, expected: np.ndarray, got: np.ndarray, *samples: Sample) -> Difference:
        """
        samples  of tensors that are as coarse as what `expected` was made from
        """
        if expected.shape != got.shape:
            nan = float("nan")
            return Difference(nan, nan, float("-inf"), nan, expected.size, agrees=False)
        return measure(expected, got, adapt_tolerance(self._tolerance, sample(expected), sample(got), *samples))


class _Blame:
    """Who is to blame for what differs in one run. Modules are the model's own: which of them reads, or makes, what."""

    def __init__(self, component: ComparedFile, run: ChainRun, model: EagerRun) -> None:
        self._component, self._run, self._model = component, run, model

    def handed_on(self, given: Mapping[str, Difference]) -> StepDivergence | None:
        name = next((name for name, difference in given.items() if not difference.agrees), None)
        if name is None:
            return None
        number = self._model.inputs.get(name)
        reader = next((op.call for op in self._model.ops if number in op.reads), None)
        return self._diverging(reader, name, f"handed on from {self._run.handed[name]}, and wrong", given[name])

    def module(self, finding: SampleComparison | None) -> StepDivergence | None:
        divergence = None if finding is None else finding.divergence
        if divergence is None or divergence.calls[0].path == ROOT:
            return None  # an output says more
        return self._diverging(
            divergence.calls[0], divergence.node, "what the module returns is wrong", divergence.outputs
        )

    def output(self, outputs: Mapping[str, Difference]) -> StepDivergence | None:
        name = next((name for name, difference in outputs.items() if not difference.agrees), None)
        if name is None:
            return None
        number = self._model.outputs[name]
        maker = next((op.call for op in self._model.ops if number in op.makes), None)
        return self._diverging(maker, name, "the output is wrong", outputs[name])

    def _diverging(self, call: ModuleCall | None, value: str, reason: str, difference: Difference) -> StepDivergence:
        hierarchy = self._component.file.provenance.hierarchy
        name = "" if call is None else class_name(hierarchy, call)
        return StepDivergence(
            self._component.name, None if call is None else call.path, name, value, reason, difference
        )


def _floats_of(item: CallTensors, samples: Sequence[Sample]) -> CallTensors:
    """Integers that cross a module are positions and sizes: in a step of one token, too many of them are alike."""
    inputs, outputs = (
        tuple(number for number in numbers if samples[number].kind == "float")
        for numbers in (item.inputs, item.outputs)
    )
    return CallTensors(item.call, inputs, outputs)


@contextmanager
def _entered_quietly(model: torch.nn.Module, entry: EntryPoint) -> Iterator[None]:
    from modelexport.capture.entry_point import entered
    from modelexport.capture.generation.windows import exportable_windows
    from modelexport.capture.isolation import EXPORT_LOCK, exportable_moe
    from modelexport.capture.silence import quiet

    with ExitStack() as stack:
        for context in (EXPORT_LOCK, quiet(), exportable_moe(model), entered(model, entry), exportable_windows()):
            stack.enter_context(context)
        yield


def _find_token_axes(entries: Iterable[EntryPoint]) -> dict[str, int]:
    """By output: the axis that tokens are along. A first call returns the cache that a later one takes."""
    from modelexport.capture.generation.captures import PAST, WINDOW

    axes = {_LOGITS: 1}
    for entry in entries:
        for pair in entry.cache:
            for axis, label in entry.axes.get(pair.past, {}).items():
                if label in (PAST, WINDOW):
                    axes[pair.present] = axis
    return axes


def _without_padding(array: np.ndarray, mask: np.ndarray, axis: int) -> np.ndarray:
    """Zeros where a token is padding: what is computed for it is nobody's business."""
    count = array.shape[axis]
    if mask.ndim != 2 or count > mask.shape[1] or len(mask) != len(array):
        return array
    shape = [1] * array.ndim
    shape[0], shape[axis] = len(mask), count
    real = mask[:, mask.shape[1] - count :].reshape(shape) != 0
    return np.where(real, array, np.zeros((), array.dtype))


def _array(tensor: torch.Tensor) -> np.ndarray:
    from modelexport.capture.arguments import to_array

    return to_array(tensor)
