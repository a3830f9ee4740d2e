"""Output check: the written file in ONNX Runtime, against the model that it came from.

    check()            on the inputs that it was exported with                           wrong numbers: the check fails
    find_frozen(axes)  on others: longer axes, other branches (branch_search.py), other values

An exporter that traces takes decisions from the sample, once and for all. A file that returns wrong numbers for other
inputs without a word fails the check; one that ONNX Runtime refuses to run at other sizes says so itself, and is noted.

A model with large weights and its file take turns: each gives back the pages of its weights, which both have mapped,
before the other one runs. So the check of 20 GB needs 20 GB and not 40, and no more than that where it has less.

How far apart elements may be is decided as for `verify` (`graph/difference.py`), by the coarsest type in the file: what
a model returns in float32 it may have computed in float16.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from modelexport.capture.arguments import output_tensors, storage_pointer, to_array
from modelexport.capture.branch_search import BranchSearch, ProbeInputs
from modelexport.capture.decisions import BOOL, NUMBER, SIZE, Decision, RunPath
from modelexport.capture.export import TracedRun
from modelexport.capture.hierarchy import run_model
from modelexport.capture.isolation import EXPORT_LOCK, exportable_moe, root_cause
from modelexport.capture.onnxruntime.session import bind_inputs, open_session, run_session
from modelexport.capture.rounding import measure_output_noise
from modelexport.capture.silence import quiet
from modelexport.capture.variations import label_sizes, resize
from modelexport.errors import InputError, RuntimeFailed
from modelexport.graph.difference import adapt_tolerance, describe_tolerance, measure, settle_by_noise
from modelexport.graph.file.external import data_files
from modelexport.graph.file.mapped_memory import release_mapped
from modelexport.graph.file.reading import open_model
from modelexport.graph.missing_types import USE_FLOAT32, explain_missing_type
from modelexport.graph.sample import sample
from modelexport.graph.types import float_types
from modelexport.record.results.verification import Difference, Tolerance
from modelexport.record.signals import OutputCheck

# ONNX Runtime's messages go on with paths and operators of its own.
_LONGEST = 300
# A relative tolerance below this is about rounding on the sample, and not about how much a file may be off.
_FINE = 1e-4
# Bytes of external data from which on weights are mapped; smaller ones are copied by every optimization that there is.
MAPPED_ABOVE = 1 << 28
_LIKE_SAMPLE = "inputs like the sample"
_Tensors = Mapping[str, torch.Tensor]


def runtime_installed() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


@dataclass(frozen=True)
class FrozenPart:
    """Where a file follows its sample: what goes wrong with other inputs.

    refused  only sizes, which ONNX Runtime does not run the file at: nobody gets wrong numbers
    """

    message: str
    refused: bool = False


class OutputChecker:
    """
    names      of the model's outputs that the file's are compared with, by the file's; None: all, in their order
    undecided  after `find_frozen`: decisions that depend on the inputs, and that nothing changed
    """

    def __init__(
        self,
        path: Path,
        run: TracedRun,
        tolerance: Tolerance,
        proto: onnx.ModelProto,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._path, self._run, self._proto, self._names = path, run, proto, names
        empty = [np.empty(0, onnx.helper.tensor_dtype_to_np_dtype(kind)) for kind in float_types(proto)]
        self._tolerance = adapt_tolerance(tolerance, *map(sample, empty))
        # Of made-up inputs nobody knows the scale: a limit that was chosen comes on top of what numbers explain.
        fine = tolerance.rtol is None or tolerance.rtol < _FINE
        self._slack = tolerance.atol or 0.0
        self.undecided: tuple[str, ...] = ()
        relative = Tolerance(rtol=None if fine else tolerance.rtol)
        self._elsewhere = adapt_tolerance(relative, *map(sample, empty))

    def check(self) -> OutputCheck:
        """On the inputs that the model was exported with. RuntimeFailed where ONNX Runtime has not the file's types."""
        tensors = self._run.arguments.tensors
        if any(tensor.dtype is torch.bfloat16 for tensor in tensors.values()):
            raise RuntimeFailed("ONNX Runtime cannot be given bfloat16 from Python", USE_FLOAT32)
        try:
            actual = self._run_file(tensors)
        except _FileRefused as error:
            return _failed_check(str(error))
        return self._judge(actual, tensors, self._run.outputs)

    def find_frozen(self, axes: Mapping[str, Mapping[int, str]], path: RunPath | None = None) -> Iterator[FrozenPart]:
        """What the file has of its sample for good. The caller may stop at the first.

        axes  that the file leaves open, by input
        path  of the model on the sample, if it is known
        """
        search = BranchSearch(self._run, axes, path)
        for probe in search.probes():
            of_size = bool(probe.sizes) and (probe.decision is None or probe.decision.kind == SIZE)
            for part in self._compare(probe.tensors, probe.outputs):
                yield FrozenPart(_explain(part, probe, axes if of_size else {}), part.refused and bool(probe.sizes))
        yield from self._compare_sizes(search, axes)
        self.undecided = tuple(map(_describe_unmoved, search.unmoved))
        for part in self._compare_with_model(self._run.arguments.negate_or_mask(), _LIKE_SAMPLE):
            yield replace(part, refused=False)

    def _compare_sizes(self, search: BranchSearch, axes: Mapping[str, Mapping[int, str]]) -> Iterator[FrozenPart]:
        """All axes longer, and each of size 1: most files are deployed with a batch of 1.

        Comes after the search, which names the decisions that go wrong at the sizes of the sample: sizes are not to
        blame for those.
        """
        for tensors in _resize_sample(self._run.arguments.tensors, axes):
            probe = search.run_on(tensors)
            for part in [] if probe is None else self._compare(tensors, probe.outputs):
                # A number is another one at most sizes, and the search has tried others of it.
                by_value = probe is not None and probe.decision is not None and probe.decision.kind == BOOL
                blamed = {} if by_value and not part.refused else axes
                yield part if probe is None else FrozenPart(_explain(part, probe, blamed), part.refused)

    def differ(self, tensors: _Tensors) -> str:
        """How the file differs from the model on these inputs; empty if it does not."""
        sizes = ", ".join(f"{name} {'x'.join(map(str, tensor.shape))}" for name, tensor in tensors.items())
        what = f"the sizes it was traced with, not for {sizes}"
        return next((part.message for part in self._compare_with_model(tensors, what)), "")

    def _compare_with_model(self, tensors: _Tensors, what: str) -> Iterator[FrozenPart]:
        try:
            with quiet():
                outputs = run_model(self._run.model, self._run.arguments.with_tensors(tensors))
        except InputError:
            return  # a model may have every right to refuse other inputs
        for part in self._compare(tensors, output_tensors(outputs)):
            yield FrozenPart(f"the file is right only for {what}: {part.message}", part.refused)

    def _compare(self, tensors: _Tensors, outputs: _Tensors) -> Iterator[FrozenPart]:
        """How the file differs on inputs that are not its sample. Numbers that rounding can change prove nothing."""
        try:
            actual = self._run_file(tensors)
        except _FileRefused as error:
            yield FrozenPart(str(error), refused=True)
            return
        check = self._judge(actual, tensors, outputs, is_sample=False)
        if not check.ok:
            yield FrozenPart(check.message)

    def _run_file(self, tensors: _Tensors) -> list[np.ndarray]:
        arrays = {name: to_array(tensor) for name, tensor in tensors.items()}
        try:
            with self._taking_turns():
                return run_session(self._session, bind_inputs(self._proto, arrays))
        except Exception as error:
            if missing := explain_missing_type(error, self._proto):
                raise RuntimeFailed(missing, USE_FLOAT32) from error
            raise _FileRefused(f"ONNX Runtime cannot run the file: {root_cause(error, 1)[:_LONGEST]}") from error

    def _judge(
        self, actual: list[np.ndarray], inputs: _Tensors, outputs: _Tensors, *, is_sample: bool = True
    ) -> OutputCheck:
        pairs = self._pair(actual, outputs)
        if pairs is None:
            return _failed_check(f"the file returns {len(actual)} outputs, PyTorch {len(outputs)}")
        differences: dict[str, Difference] = {}
        for name, got in pairs:
            want = to_array(outputs[name])
            if got.shape != want.shape:
                return _failed_check(f"{name} has shape {got.shape}, PyTorch {want.shape}")
            if is_sample:
                differences[name] = measure(want, got, self._tolerance)
            else:
                differences[name] = measure(*_hide_padding(inputs, want, got), self._elsewhere)
        return self._sum_up(self._settle(differences, inputs, outputs, is_sample))

    def _pair(self, actual: list[np.ndarray], outputs: _Tensors) -> list[tuple[str, np.ndarray]] | None:
        if self._names is None:
            return list(zip(outputs, actual, strict=True)) if len(actual) == len(outputs) else None
        by_name = dict(zip((value.name for value in self._proto.graph.output), actual, strict=True))
        return [(label, by_name[name]) for name, label in self._names.items() if label in outputs]

    def _settle(
        self, differences: dict[str, Difference], inputs: _Tensors, outputs: _Tensors, is_sample: bool
    ) -> dict[str, Difference]:
        """Where numbers are too small to tell by themselves, by what rounding changes in them.

        On inputs that were made up, anything may be ill-conditioned: nothing that rounding explains is held against
        the file there.
        """
        doubtful = [item for item in differences.values() if item.excess or (item.unlike and not is_sample)]
        if not doubtful:
            return differences
        noise = self._measure_noise(inputs, outputs)
        if is_sample:
            return {name: settle_by_noise(item, noise[name]) for name, item in differences.items()}
        settled = {
            name: settle_by_noise(item, noise[name], limit=math.inf)
            for name, item in differences.items()
            if not (item.unlike and noise[name] == math.inf)
        }
        return {
            name: replace(item, agrees=item.agrees or (item.excess <= self._slack and not item.unlike))
            for name, item in settled.items()
        }

    def _measure_noise(self, inputs: _Tensors, outputs: _Tensors) -> dict[str, float]:
        run = self._run
        try:
            with EXPORT_LOCK, exportable_moe(run.model), run.entered():
                return measure_output_noise(run.model, run.arguments.with_tensors(inputs), outputs)
        except InputError:  # other last bits, and the model refuses what it computed itself
            return dict.fromkeys(outputs, math.inf)

    def _sum_up(self, differences: Mapping[str, Difference]) -> OutputCheck:
        worst_abs = worst_rel = 0.0
        for item in differences.values():
            # Something that is finite in one of them only is infinitely far away.
            apart = (math.inf, math.inf) if item.unlike else (item.max_abs, item.max_rel)
            worst_abs, worst_rel = max(worst_abs, apart[0]), max(worst_rel, apart[1])
        wrong = [
            f"{name} differs from PyTorch by {self._amount(item)}"
            for name, item in differences.items()
            if not item.agrees
        ]
        too_small = tuple(name for name, item in differences.items() if item.too_small)
        nothing_finite = tuple(name for name, item in differences.items() if item.nothing_finite)
        return OutputCheck(not wrong, worst_abs, worst_rel, "; ".join(wrong), too_small, nothing_finite)

    def _amount(self, difference: Difference) -> str:
        if difference.unlike:
            return f"NaN or infinity in {difference.unlike} places"
        return f"up to {difference.max_abs:.2g} (allowed: {describe_tolerance(self._tolerance)})"

    @contextmanager
    def _taking_turns(self) -> Iterator[None]:
        """While the file runs, the model's weights need not be in memory, and the other way round."""
        if not self._is_mapped:
            yield
            return
        model = self._run.model
        release_mapped(addresses=[storage_pointer(tensor) for tensor in (*model.parameters(), *model.buffers())])
        try:
            yield
        finally:
            release_mapped(self._data_files)

    @cached_property
    def _is_mapped(self) -> bool:
        return sum(path.stat().st_size for path in self._data_files if path.is_file()) >= MAPPED_ABOVE

    @cached_property
    def _data_files(self) -> list[Path]:
        """As the system names them."""
        proto = open_model(self._path).proto  # what was exported may have lain elsewhere
        return [path.resolve() for path in data_files(proto, self._path.parent)]

    @cached_property
    def _session(self) -> Any:
        return open_session(self._path, mapped=self._is_mapped)


class _FileRefused(Exception):
    """ONNX Runtime does not run the file on some inputs."""


def _failed_check(message: str) -> OutputCheck:
    return OutputCheck(False, float("inf"), float("inf"), message)


def _describe_sizes(axes: Mapping[str, Mapping[int, str]]) -> str:
    names = ", ".join(sorted({axis for by_axis in axes.values() for axis in by_axis.values()}))
    return f"the sizes it was traced with ({names})"


def _describe_unmoved(decision: Decision) -> str:
    number = decision.kind == NUMBER
    return f"{decision}, and no input was found that {'takes another path there' if number else 'changes it'}"


def _explain(part: FrozenPart, probe: ProbeInputs, axes: Mapping[str, Mapping[int, str]]) -> str:
    """
    axes  that are to blame; none if it is values
    """
    what = _describe_sizes(axes) if axes else _LIKE_SAMPLE
    sizes = f", not for {probe.sizes}" if probe.sizes else ""
    is_shown = probe.decision is not None and (not axes or probe.decision.kind == SIZE)
    return f"the file is right only for {what}{sizes}: {part.message}" + (f"; {probe.decision}" if is_shown else "")


def _resize_sample(tensors: _Tensors, axes: Mapping[str, Mapping[int, str]]) -> Iterator[_Tensors]:
    """All open axes one longer, then each of them with size 1."""
    sizes = label_sizes(tensors, axes)
    if sizes:
        yield {name: _lengthen(item, axes.get(name, {})) for name, item in tensors.items()}
    yield from (resize(tensors, axes, label, 1) for label in sorted(sizes) if sizes[label] != 1)


def _lengthen(tensor: torch.Tensor, axes: Mapping[int, str]) -> torch.Tensor:
    for axis in axes:
        size = tensor.shape[axis]
        tensor = tensor.index_select(axis, torch.arange(size + 1, device=tensor.device) % size)
    return tensor


def _hide_padding(inputs: _Tensors, want: np.ndarray, got: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Zeros where a mask says that a token is padding: what is computed for it is nobody's business."""
    for name, tensor in inputs.items():
        padding = tensor.dim() == 2 and not tensor.is_floating_point() and "mask" in name and bool((tensor == 0).any())
        if padding and want.shape[:2] == tuple(tensor.shape):
            shown = (to_array(tensor) != 0).reshape(*tensor.shape, *(1 for _ in want.shape[2:]))
            want, got = (np.where(shown, array, np.zeros((), array.dtype)) for array in (want, got))
    return want, got
