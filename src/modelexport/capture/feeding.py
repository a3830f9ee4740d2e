"""Which of a model's inputs an ONNX graph wants where."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from modelexport.errors import InputError


def feed_for(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays by the names of the graph's inputs: by name, and what remains by order, where type and shape fit."""
    data = {tensor.name for tensor in proto.graph.initializer}
    wanted = [value for value in proto.graph.input if value.name not in data]
    fed = {value.name: arrays[value.name] for value in wanted if value.name in arrays}
    spare = [name for name in arrays if name not in fed]
    for value in wanted:
        if value.name not in fed:
            match = next((name for name in spare if _fits(value, arrays[name])), None)
            if match is None:
                raise _missing(value, arrays)
            spare.remove(match)
            fed[value.name] = arrays[match]
    for value in wanted:
        if not _fits(value, fed[value.name]):
            raise _unfit(value, fed[value.name])
    return {value.name: _converted(value, fed[value.name]) for value in wanted}


def _fits(value: onnx.ValueInfoProto, array: np.ndarray) -> bool:
    kind = value.type.tensor_type
    if kind.elem_type and onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).kind != array.dtype.kind:
        return False
    if not kind.HasField("shape"):
        return True
    dims = kind.shape.dim
    sizes = zip(dims, array.shape, strict=False)
    return len(dims) == array.ndim and all(
        not dim.HasField("dim_value") or dim.dim_value == size for dim, size in sizes
    )


def _converted(value: onnx.ValueInfoProto, array: np.ndarray) -> np.ndarray:
    """The array in the width that the graph wants: a file may have been made smaller than the model."""
    kind = value.type.tensor_type.elem_type
    return array.astype(onnx.helper.tensor_dtype_to_np_dtype(kind), copy=False) if kind else array


def _missing(value: onnx.ValueInfoProto, arrays: Mapping[str, np.ndarray]) -> InputError:
    given = ", ".join(f"{name} ({_described(array)})" for name, array in arrays.items())
    return InputError(
        f"the graph takes an input {value.name!r} ({_wanted(value)}) that the model was not run with: it had {given}",
        f"Run the model on what the file takes: --input {value.name}=SHAPE:DTYPE, or --inputs FILE.npz.",
    )


def _unfit(value: onnx.ValueInfoProto, array: np.ndarray) -> InputError:
    return InputError(
        f"the graph takes {value.name!r} as {_wanted(value)}; the model was run with {_described(array)}",
        "Give inputs of the shape that the file was exported with: --input NAME=SHAPE:DTYPE.",
    )


def _described(array: np.ndarray) -> str:
    return f"{'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype}"


def _wanted(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    dims = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim]
    return f"{'x'.join(dims) or 'scalar'} {onnx.TensorProto.DataType.Name(kind.elem_type).lower()}"
