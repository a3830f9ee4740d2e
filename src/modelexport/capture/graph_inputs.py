"""Inputs for an ONNX file, made from the file alone.

Types and fixed sizes are the graph's own; axes of one name have one size. What the numbers may be follows from what the
graph does with them, never from the name of an input. Nothing here needs torch: two files are compared without it.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from modelexport.capture.feeding import feed_for
from modelexport.errors import InputError
from modelexport.graph.axis_sizes import AxisSizes, Shape, dims_of, fits
from modelexport.graph.index import Graph
from modelexport.graph.index_bounds import index_bounds

_EXAMPLE = "Write NAME=SHAPE, for example x=1x3x224x224, or flag= for a scalar."
_GIVE_IT = "Give it: --input {name}=SHAPE, for example {name}=1x8; or --inputs FILE.npz."


@dataclass(frozen=True)
class SampleRequest:
    """What a file is to be run on.

    shapes  of inputs, as the command line takes them: NAME=SHAPE[:DTYPE]
    files   .npz files, each of them one sample; then nothing is made, and `count` and `seed` mean nothing
    """

    count: int = 1
    seed: int = 0
    shapes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


def graph_samples(proto: onnx.ModelProto, graph: Graph, request: SampleRequest) -> Iterator[dict[str, np.ndarray]]:
    """One feed after the other, as the graph takes them. Raises InputError for what does not fit it."""
    for path in request.files:
        yield feed_for(proto, read_arrays(path))
    if not request.files:
        if request.seed < 0:
            raise InputError(f"the seed is {request.seed}", "Give 0 or more.")
        shapes = _parsed(proto, request.shapes)
        for number in range(request.count):
            yield graph_feed(proto, graph, seed=request.seed + number, shapes=shapes)


def graph_feed(
    proto: onnx.ModelProto, graph: Graph, *, seed: int, shapes: Mapping[str, Shape] = MappingProxyType({})
) -> dict[str, np.ndarray]:
    """Floats are random; integers too where they are indices, within their table, and 1 elsewhere; bools are true.

    shapes  of inputs; they also say how long the axes are that other inputs have in common with them
    """
    inputs = taken_inputs(proto)
    dtypes = {name: _dtype(name, value) for name, value in inputs.items()}
    bounds = index_bounds(proto, graph)
    feed = {}
    for name, shape in _shapes(inputs, shapes).items():
        # Each input has its own source, so that one more or less changes nothing about the others.
        random = np.random.default_rng([seed, zlib.crc32(name.encode())])
        # An index into something of unknown size can only be the first.
        below = (bounds[name] or 1) if name in bounds else None
        feed[name] = _filled(shape, dtypes[name], random, below)
    return feed


def taken_inputs(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    stored = {tensor.name for tensor in proto.graph.initializer}
    return {value.name: value for value in proto.graph.input if value.name not in stored}


def _filled(shape: Shape, dtype: np.dtype[Any], random: np.random.Generator, below: int | None) -> np.ndarray:
    """`below` is for an index: the number that it must stay below."""
    if dtype.kind == "b":
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        numbers = np.ones(shape) if below is None else random.integers(0, below, shape)
        return numbers.astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _dtype(name: str, value: onnx.ValueInfoProto) -> np.dtype[Any]:
    kind = value.type.tensor_type.elem_type
    if not kind:
        raise InputError(f"the file takes {name!r}, which is no tensor; it cannot be made", "Compare other files.")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    if dtype.kind not in "biufV":
        stated = onnx.TensorProto.DataType.Name(kind).lower()
        raise InputError(f"the file takes {name!r} as {stated}, which cannot be made up", _GIVE_IT.format(name=name))
    return dtype


def _shapes(inputs: Mapping[str, onnx.ValueInfoProto], given: Mapping[str, Shape]) -> dict[str, Shape]:
    for name, shape in given.items():
        _check(inputs, name, shape)
    sizes = AxisSizes(inputs, given)
    found: dict[str, Shape] = {}
    for name in inputs:
        shape_of = given[name] if name in given else sizes.shape(name)
        if shape_of is None:
            raise InputError(f"the file does not say what shape {name!r} has", _GIVE_IT.format(name=name))
        found[name] = shape_of
    return found


def _check(inputs: Mapping[str, onnx.ValueInfoProto], name: str, shape: Shape) -> None:
    if name not in inputs:
        raise InputError(f"the file takes no input {name!r}", f"It takes: {', '.join(inputs)}.")
    dims = dims_of(inputs[name])
    if dims is not None and not fits(dims, shape):
        raise InputError(
            f"the file takes {name!r} as {_written(dims)}, not as {_written(shape)}",
            "Give a shape with the sizes that the file has fixed.",
        )


def _written(shape: Sequence[int | str]) -> str:
    return "x".join(str(size) or "?" for size in shape) or "scalar"


# What the user gives.


def _parsed(proto: onnx.ModelProto, texts: Sequence[str]) -> dict[str, Shape]:
    """Names of a graph's inputs may hold anything, so it is the last `=` that ends them."""
    inputs = taken_inputs(proto)
    found: dict[str, Shape] = {}
    for text in texts:
        name, equals, rest = text.rpartition("=")
        sizes, _, dtype = rest.partition(":")
        if not equals or not name or not re.fullmatch(r"(\d+([x,]\d+)*)?", sizes.strip()):
            raise InputError(f"cannot read the input {text!r}", _EXAMPLE)
        if name in found:
            raise InputError(f"input {name!r} is given twice", "Give each input once.")
        found[name] = tuple(int(size) for size in re.findall(r"\d+", sizes))
        if 0 in found[name]:
            raise InputError(f"input {name!r}: every size of {sizes} must be at least 1", _EXAMPLE)
        _check(inputs, name, found[name])
        _check_type(inputs[name], dtype.strip())
    return found


def _check_type(value: onnx.ValueInfoProto, stated: str) -> None:
    """The width may differ from the file's: the same is asked of two files of which one is narrower."""
    dtype = _dtype(value.name, value)
    try:
        fits = not stated or stated == dtype.name or np.dtype(stated).kind == dtype.kind
    except TypeError as error:
        raise InputError(f"input {value.name!r}: unknown dtype {stated!r}", f"The file takes {dtype}.") from error
    if not fits:
        raise InputError(f"the file takes {value.name!r} as {dtype}, not as {stated}", "Leave the dtype out.")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """An archive with Python objects inside is refused, never unpickled."""
    try:
        with path.open("rb") as file:
            return _named_arrays(path, np.load(file, allow_pickle=False))
    except OSError as error:
        raise InputError(
            f"cannot read the arrays {str(path)!r}: {error.strerror or error}", "Check the path."
        ) from error
    except (ValueError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{str(path)!r} is not an npz file of plain arrays: {error}",
            "Write it with numpy.savez(path, input_ids=..., ...).",
        ) from error


def _named_arrays(path: Path, loaded: np.ndarray | np.lib.npyio.NpzFile) -> dict[str, np.ndarray]:
    if isinstance(loaded, np.ndarray):
        raise InputError(
            f"{str(path)!r} holds one array, which does not say the input that it is for",
            "Give an npz file with an array for each input: "
            f"numpy.savez({str(path.with_suffix('.npz'))!r}, NAME=numpy.load({str(path)!r}), …).",
        )
    with loaded as archive:
        return {name: archive[name] for name in archive.files}
