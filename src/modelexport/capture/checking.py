"""Running a written file once in ONNX Runtime and comparing what it returns with PyTorch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modelexport.capture.arguments import output_tensors
from modelexport.capture.arrays import to_array
from modelexport.capture.failure import reason
from modelexport.capture.hierarchy import run_model
from modelexport.capture.probing import other_values
from modelexport.capture.running import open_session, run_session
from modelexport.capture.session import TracedRun
from modelexport.capture.state import quiet
from modelexport.errors import InputError
from modelexport.record.check import OutputCheck

_Arrays = Mapping[str, np.ndarray]
# ONNX Runtime's messages go on with paths and operators of its own.
_LONGEST = 300


def runtime_installed() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


@dataclass(frozen=True)
class Tolerance:
    atol: float
    rtol: float


class OutputChecker:
    """Compares one written file with the model that it came from."""

    def __init__(self, path: Path, run: TracedRun, tolerance: Tolerance) -> None:
        self._path = path
        self._run = run
        self._tolerance = tolerance

    def check(self) -> OutputCheck:
        """On the inputs that the model was exported with."""
        return self._compare(self._run.arguments.tensors, self._run.outputs)

    @property
    def can_run(self) -> bool:
        """Whether ONNX Runtime can be given the inputs at all."""
        return all(tensor.dtype is not torch.bfloat16 for tensor in self._run.arguments.tensors.values())

    # An exporter that traces takes decisions from the sample, once and for all. Other inputs show it.

    def frozen_sizes(self, axes: Mapping[str, Mapping[int, str]]) -> str:
        """What goes wrong when every dynamic axis is one longer; empty if nothing does."""
        tensors = self._run.arguments.tensors
        names = ", ".join(sorted({axis for by_axis in axes.values() for axis in by_axis.values()}))
        longer = {name: _longer(tensor, axes.get(name, {})) for name, tensor in tensors.items()} if axes else {}
        return self._remark(longer, f"the sizes it was traced with ({names})")

    def frozen_values(self) -> str:
        """What goes wrong with other values; empty if nothing does."""
        tensors = self._run.arguments.tensors
        return self._remark({name: other_values(tensor) for name, tensor in tensors.items()}, "inputs like the sample")

    def _remark(self, tensors: Mapping[str, torch.Tensor], what: str) -> str:
        if not tensors:
            return ""
        try:
            with quiet():
                outputs = run_model(self._run.model, self._run.arguments.with_tensors(tensors))
        except InputError:
            return ""  # a model may have every right to refuse other inputs
        check = self._compare(tensors, output_tensors(outputs))
        return "" if check.ok else f"the file is right only for {what}: {check.message}"

    def _compare(self, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> OutputCheck:
        try:
            actual = run_session(self._session, {name: to_array(tensor) for name, tensor in inputs.items()})
        except Exception as error:  # noqa: BLE001 - onnxruntime has no common error class; what it says is the finding
            return _failed(f"ONNX Runtime cannot run the file: {reason(error, 1)[:_LONGEST]}")
        if len(actual) != len(outputs):
            return _failed(f"the file returns {len(actual)} outputs, PyTorch {len(outputs)}")
        return _compare(actual, {name: to_array(tensor) for name, tensor in outputs.items()}, self._tolerance)

    @cached_property
    def _session(self) -> Any:
        return open_session(self._path)


def _failed(message: str) -> OutputCheck:
    return OutputCheck(False, float("inf"), float("inf"), message)


def _longer(tensor: torch.Tensor, axes: Mapping[int, str]) -> torch.Tensor:
    for axis in axes:
        size = tensor.shape[axis]
        tensor = tensor.index_select(axis, torch.arange(size + 1, device=tensor.device) % size)
    return tensor


def _compare(actual: list[np.ndarray], expected: _Arrays, tolerance: Tolerance) -> OutputCheck:
    worst_abs = worst_rel = 0.0
    wrong: list[str] = []
    for (name, want), got in zip(expected.items(), actual, strict=True):
        if got.shape != want.shape:
            return _failed(f"{name} has shape {got.shape}, PyTorch {want.shape}")
        absolute, relative = _differences(got, want)
        worst_abs, worst_rel = max(worst_abs, absolute), max(worst_rel, relative)
        if not np.allclose(got, want, atol=tolerance.atol, rtol=tolerance.rtol, equal_nan=True):
            allowed = f"{tolerance.atol:g} + {tolerance.rtol:g} × value"
            wrong.append(f"{name} differs from PyTorch by up to {absolute:.2g} (allowed: {allowed})")
    return OutputCheck(not wrong, worst_abs, worst_rel, "; ".join(wrong))


def _differences(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    if not want.size:
        return 0.0, 0.0
    # Infinities and NaN in the same place are no difference: attention masks are full of them.
    same = (got == want) | (np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))
    difference = np.where(same, 0.0, np.abs(got.astype(np.float64) - want.astype(np.float64)))
    scale = np.maximum(np.abs(want.astype(np.float64)), 1e-12)
    return float(np.max(difference)), float(np.max(np.where(same, 0.0, difference / scale)))
