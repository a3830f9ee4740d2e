"""Calibration data: samples for a static quantizer, out of .npz files.

An archive holds one array for each input, or one for each input of each sample:

    input_ids            as the model takes it: one sample
    input_ids            with one axis more in front, or with several times the size of a first axis that the model
                         has fixed: a sample for each
    input_ids/0, …/1     a sample each, in the order of their numbers

For a graph that takes `x: float 1x3`, an archive with `x` of shape 4x3 gives four feeds of shape 1x3. ONNX Runtime's
quantizer runs the model on each: https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from modelexport.capture.onnxruntime.arrays import read_arrays
from modelexport.capture.onnxruntime.session import format_shape, required_inputs
from modelexport.errors import InputError
from modelexport.graph.types import Dims, fits, input_dims

_NUMBERED = re.compile(r"(?P<name>.+)[/.](?P<number>\d+)", re.DOTALL)
_HOW = "Write it with numpy.savez(path, NAME=samples, …); see docs/quantize.md."


def calibration_feeds(proto: onnx.ModelProto, paths: Sequence[Path]) -> Iterator[dict[str, np.ndarray]]:
    """One feed after the other. Raises InputError for what does not fit the graph."""
    inputs = required_inputs(proto)
    for path in paths:
        arrays = _group_by_input(path, read_arrays(path), inputs)
        samples = {name: _split_samples(path, inputs[name], array) for name, array in arrays.items()}
        for number in range(_sample_count(path, samples)):
            yield {name: _check_sample(path, inputs[name], several[number]) for name, several in samples.items()}


def _group_by_input(
    path: Path, arrays: Mapping[str, np.ndarray], inputs: Mapping[str, onnx.ValueInfoProto]
) -> dict[str, np.ndarray | list[np.ndarray]]:
    by_input: dict[str, np.ndarray | list[np.ndarray]] = {}
    numbered: dict[str, dict[int, np.ndarray]] = {}
    for key, array in arrays.items():
        match = _NUMBERED.fullmatch(key)
        if key in inputs:
            by_input[key] = array
        elif match and match["name"] in inputs:
            numbered.setdefault(match["name"], {})[int(match["number"])] = array
        else:
            raise InputError(f"{path}: the file takes no input {key!r}", f"It takes: {', '.join(inputs)}. {_HOW}")
    for name, several in numbered.items():
        if name in by_input:
            raise InputError(f"{path} has {name!r} both as a whole and in numbered samples", "Leave one of them out.")
        by_input[name] = [several[number] for number in sorted(several)]
    missing = [name for name in inputs if name not in by_input]
    if missing:
        held = ", ".join(arrays) or "nothing"
        raise InputError(f"{path} has no samples for the input {missing[0]!r}: it holds {held}", _HOW)
    return {name: by_input[name] for name in inputs}


def _split_samples(
    path: Path, value: onnx.ValueInfoProto, array: np.ndarray | list[np.ndarray]
) -> Sequence[np.ndarray]:
    if isinstance(array, list):
        return array
    dims = input_dims(value)
    if dims is None or fits(dims, array.shape):
        return [array]
    if array.ndim == len(dims) + 1:
        return list(array)
    first = dims[0] if dims else 0
    if isinstance(first, int) and first and array.ndim == len(dims) and array.shape[0] % first == 0:
        return [array[start : start + first] for start in range(0, array.shape[0], first)]
    raise _unfit(path, value, dims, array)


def _sample_count(path: Path, samples: Mapping[str, Sequence[np.ndarray]]) -> int:
    lengths = {name: len(several) for name, several in samples.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{length} of {name!r}" for name, length in lengths.items())
        raise InputError(f"{path} has not as many samples of each input: {listed}", "Give as many of each.")
    length = next(iter(lengths.values()), 0)
    if not length:
        raise InputError(f"there is not one sample in {path}", _HOW)
    return length


def _check_sample(path: Path, value: onnx.ValueInfoProto, array: np.ndarray) -> np.ndarray:
    dims = input_dims(value)
    if dims is not None and not fits(dims, array.shape):
        raise _unfit(path, value, dims, array)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if array.dtype.kind != dtype.kind:
        raise InputError(
            f"{path}: the file takes {value.name!r} as {dtype}, not as {array.dtype}",
            f"Convert it: array.astype({dtype}).",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{path}: there are NaN or infinite numbers in {value.name!r}", "Calibrate on finite numbers.")
    return array.astype(dtype, copy=False)


def _unfit(path: Path, value: onnx.ValueInfoProto, dims: Dims, array: np.ndarray) -> InputError:
    wanted = format_shape(dims)
    return InputError(
        f"{path}: the file takes {value.name!r} as {wanted}, and {format_shape(array.shape)} is neither that nor "
        "several of it",
        f"Give it as {wanted}, or with an axis for samples in front. {_HOW}",
    )
