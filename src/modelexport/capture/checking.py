"""Running a written file once in ONNX Runtime and comparing what it returns with PyTorch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from modelexport.capture.failure import reason
from modelexport.record.check import OutputCheck

_Arrays = Mapping[str, np.ndarray]


def runtime_installed() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


def check_outputs(
    path: Path, inputs: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], atol: float, rtol: float
) -> OutputCheck:
    """Compare the outputs of the file, in order, with those of the model."""
    try:
        actual = _run(path, {name: _array(tensor) for name, tensor in inputs.items()})
    except Exception as error:
        # onnxruntime has no common base class for its errors; whatever it says is the finding.
        return OutputCheck(False, float("inf"), float("inf"), f"ONNX Runtime cannot run the file: {reason(error, 3)}")
    if len(actual) != len(expected):
        return OutputCheck(
            False, float("inf"), float("inf"), f"the file returns {len(actual)} outputs, PyTorch {len(expected)}"
        )
    return _compare(actual, {name: _array(tensor) for name, tensor in expected.items()}, atol, rtol)


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


def _compare(actual: list[np.ndarray], expected: _Arrays, atol: float, rtol: float) -> OutputCheck:
    worst_abs = worst_rel = 0.0
    wrong: list[str] = []
    for (name, want), got in zip(expected.items(), actual, strict=True):
        if got.shape != want.shape:
            return OutputCheck(False, float("inf"), float("inf"), f"{name} has shape {got.shape}, PyTorch {want.shape}")
        absolute, relative = _differences(got, want)
        worst_abs, worst_rel = max(worst_abs, absolute), max(worst_rel, relative)
        if not np.allclose(got, want, atol=atol, rtol=rtol, equal_nan=True):
            wrong.append(f"{name} differs from PyTorch by up to {absolute:.2g} (allowed: {atol:g} + {rtol:g} × value)")
    return OutputCheck(not wrong, worst_abs, worst_rel, "; ".join(wrong))


def _differences(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    if not want.size:
        return 0.0, 0.0
    # Infinities and NaN in the same place are no difference: attention masks are full of them.
    same = (got == want) | (np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))
    difference = np.where(same, 0.0, np.abs(got.astype(np.float64) - want.astype(np.float64)))
    scale = np.maximum(np.abs(want.astype(np.float64)), 1e-12)
    return float(np.max(difference)), float(np.max(np.where(same, 0.0, difference / scale)))
