"""Running a written file once in ONNX Runtime and comparing what it returns with PyTorch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from modelexport.capture.arguments import output_tensors
from modelexport.capture.failure import reason
from modelexport.capture.hierarchy import run_model
from modelexport.capture.session import TracedRun
from modelexport.capture.state import quiet
from modelexport.record.check import OutputCheck

_Arrays = Mapping[str, np.ndarray]


def runtime_installed() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


@dataclass(frozen=True)
class Tolerance:
    atol: float
    rtol: float


def check_outputs(path: Path, run: TracedRun, tolerance: Tolerance) -> OutputCheck:
    """Compare the outputs of the file, in order, with those that the model returned."""
    return _check(path, run.arguments.tensors, run.outputs, tolerance)


def check_other_sizes(
    path: Path, run: TracedRun, axes: Mapping[str, Mapping[int, str]], tolerance: Tolerance
) -> tuple[str, ...]:
    """Whether dynamic axes really are: the file against the model once more, with every such axis one longer."""
    grown = {name: _grown(tensor, axes.get(name, {})) for name, tensor in run.arguments.tensors.items()}
    try:
        with quiet():
            outputs = run_model(run.model, run.arguments.with_tensors(grown))
    except Exception:  # noqa: BLE001 - a model may have every right to refuse another size
        return ()
    check = _check(path, grown, output_tensors(outputs), tolerance)
    names = ", ".join(sorted({axis for by_axis in axes.values() for axis in by_axis.values()}))
    return () if check.ok else (f"the file is right for the sizes it was traced with only ({names}): {check.message}",)


def _check(
    path: Path, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor], tolerance: Tolerance
) -> OutputCheck:
    try:
        actual = _run(path, {name: _array(tensor) for name, tensor in inputs.items()})
    except Exception as error:  # noqa: BLE001 - onnxruntime has no common error class; what it says is the finding
        return _failed(f"ONNX Runtime cannot run the file: {reason(error, 3)}")
    if len(actual) != len(outputs):
        return _failed(f"the file returns {len(actual)} outputs, PyTorch {len(outputs)}")
    return _compare(actual, {name: _array(tensor) for name, tensor in outputs.items()}, tolerance)


def _failed(message: str) -> OutputCheck:
    return OutputCheck(False, float("inf"), float("inf"), message)


def _grown(tensor: torch.Tensor, axes: Mapping[int, str]) -> torch.Tensor:
    for axis in axes:
        size = tensor.shape[axis]
        tensor = tensor.index_select(axis, torch.arange(size + 1, device=tensor.device) % size)
    return tensor


def _run(path: Path, arrays: _Arrays) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    results: list[np.ndarray] = session.run(None, {name: array for name, array in arrays.items() if name in wanted})
    return results


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    # numpy has no bfloat16; ONNX Runtime takes none from numpy either.
    array: np.ndarray = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array


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
