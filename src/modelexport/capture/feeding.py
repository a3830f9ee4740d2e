"""Which of a model's inputs an ONNX graph wants where."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from modelexport.errors import InputError


def feed_for(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays by the names of the graph's inputs, as the graph wants them."""
    places = assigned(proto, arrays)
    wanted = {value.name: value for value in proto.graph.input}
    for name, source in places.items():
        if not _fits(wanted[name], arrays[source]):
            raise _unfit(wanted[name], arrays[source])
    return {name: _converted(wanted[name], arrays[source]) for name, source in places.items()}


def assigned(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Which array goes into each input of the graph: by name, and what remains by order, where type and shape fit."""
    data = {tensor.name for tensor in proto.graph.initializer}
    wanted = [value for value in proto.graph.input if value.name not in data]
    places = {value.name: value.name for value in wanted if value.name in arrays}
    spare = [name for name in arrays if name not in places]
    for value in wanted:
        if value.name not in places:
            match = next((name for name in spare if _fits(value, arrays[name])), None)
            if match is None:
                raise _missing(value, arrays)
            spare.remove(match)
            places[value.name] = match
    return {value.name: places[value.name] for value in wanted}


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
    if onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).kind == "V":
        return InputError(
            f"the graph takes {value.name!r} as {_wanted(value)}, which ONNX Runtime cannot be given from Python",
            "Export the model in another type to compare it: --dtype float32.",
        )
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
