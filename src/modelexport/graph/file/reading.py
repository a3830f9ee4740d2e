"""Model file: an ONNX model whose weights stay where they are.

Protobuf would decode every weight to answer a question about structure. Here the file is mapped into memory, the data
of large initializers is stepped over, and only the rest becomes a proto; `writing` puts the mapped bytes back.

    open_model(path).proto                  structure; initializers have name, type and shape
    open_model(path).weights["fc.weight"]   where the data is: bytes when they are asked for

`initializer_array` reads a weight from where it lies. Small tensors in other files can be taken into the structure
(`with_small_external_data`): shapes and axes, which say what a graph does.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.numpy_helper
from google.protobuf.message import DecodeError

from modelexport.errors import FileUnreadable, ModelExportError, shorten
from modelexport.graph.file import external
from modelexport.graph.file import weights as wire
from modelexport.graph.file.external import external_data, is_external, tensors
from modelexport.graph.file.faults import ensure_text, ensure_wellformed
from modelexport.graph.file.mapped_memory import stay_within_limit
from modelexport.graph.file.weights import Part, WeightData, detach, has_data, storage_size
from modelexport.graph.index import Graph, index_model
from modelexport.record.regular_files import open_regular

if TYPE_CHECKING:
    from modelexport.graph.functions import InlinedModel


@dataclass(frozen=True, eq=False)
class ModelFile:
    """An ONNX model whose large tensors stay where they are.

    proto: everything but the data of initializers in `weights`; their name, shape and type are there.
    weights: data of the main graph's large and external initializers. Data in `proto` goes before data here.
    directory: the folder that external data is relative to.
    file_name: the file in that folder that was opened; saving over it leaves external data alone.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, WeightData]
    directory: Path | None = None
    file_name: str = ""

    @cached_property
    def graph(self) -> Graph:
        """The index of what `proto` was when it was first asked for. Tagging changes names and metadata only."""
        return index_model(self.proto)

    @cached_property
    def inlined(self) -> InlinedModel:
        from modelexport.graph.functions import InlinedModel, inline_graph

        return InlinedModel(self.proto, inline_graph(self.graph))

    def is_detached(self, initializer: onnx.TensorProto) -> bool:
        """Whether this initializer's data is neither in the proto nor in an external file."""
        return initializer.name in self.weights and not is_external(initializer) and not has_data(initializer)


_CHUNK = 1 << 22
DETACHED_ABOVE = 1024  # smaller constants stay: shape arithmetic needs them
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
# Before this version of the format a model named no operator sets.
_IR_WITH_OPSETS = 3
FIRST_TAG = b"\x08"  # ir_version, which every writer of ONNX files puts first
_LFS_POINTER = b"version https://git-lfs"


def open_model(path: Path) -> ModelFile:
    """Map a model file; the time it takes does not depend on the size of the weights."""
    file = _model_file(_mapped(path), str(path), path.parent, path.name)
    ensure_wellformed(file.proto, file.weights, file.directory, str(path))
    return file


def have_equal_bytes(path: Path, other: Path) -> bool:
    """Two names of one file, or a copy of it. What differs early, or in size, is not read on."""
    if path.samefile(other):
        return True
    if path.stat().st_size != other.stat().st_size:
        return False
    with open_regular(path) as left, open_regular(other) as right:
        return all(chunk == right.read(_CHUNK) for chunk in iter(lambda: left.read(_CHUNK), b""))


def parse_model(data: bytes | bytearray | memoryview) -> ModelFile:
    """A model from memory, such as an exporter's buffer; its weights are views of `data`."""
    return _model_file(memoryview(data).cast("B"), "the data", None, "")


def _mapped(path: Path) -> memoryview:
    try:
        if path.is_dir():
            from modelexport.graph.file.package import explain_folder  # only needed when something is wrong

            raise explain_folder(path)
        with open_regular(path) as file:
            # mmap refuses empty files with a message about its own arguments.
            if file.seek(0, 2) == 0:
                raise FileUnreadable(f"{path} is empty", "Export the model again.")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise FileUnreadable.from_os_error(path, error) from error


def _model_file(data: memoryview, subject: str, directory: Path | None, file_name: str) -> ModelFile:
    try:
        proto, weights = _take_apart(data, subject)
    except (DecodeError, ValueError) as error:  # ValueError: not wire format, or a name that is not UTF-8
        raise _not_onnx(data, subject) from error
    # Any bytes can be valid protobuf; these three fields tell a model from a coincidence.
    opsets_missing = proto.ir_version >= _IR_WITH_OPSETS and not proto.opset_import
    if not proto.HasField("graph") or not proto.ir_version or opsets_missing:
        raise _not_onnx(data, subject)
    for tensor in filter(external.is_external, proto.graph.initializer):
        # What does not say where its data is, is a fault; all of them are told together.
        with suppress(FileUnreadable):
            weights[tensor.name] = external.external_data(tensor, directory)
    return ModelFile(proto, weights, directory, file_name)


def _not_onnx(data: memoryview, subject: str) -> FileUnreadable:
    start = bytes(data[: len(_LFS_POINTER)])
    if start == _LFS_POINTER:
        return FileUnreadable(f"{subject} is a git-lfs pointer, not the model itself", "Fetch it with `git lfs pull`.")
    if start.startswith(FIRST_TAG):
        return FileUnreadable(f"{subject} is truncated or damaged", "Export or download the model again.")
    return FileUnreadable(f"{subject} is not an ONNX model", "Give the .onnx file that an exporter wrote.")


def _take_apart(
    model: memoryview, subject: str, kept: frozenset[str] = frozenset()
) -> tuple[onnx.ModelProto, dict[str, WeightData]]:
    """The model without its large initializers' data, and that data; those named in `kept` stay whole."""
    weights: dict[str, WeightData] = {}

    def without_data(tensor: memoryview) -> list[Part] | None:
        detached = detach(tensor, DETACHED_ABOVE)
        if detached is None or detached.name in kept:
            return None
        weights[detached.name] = detached.data
        return [detached.header]

    structure = wire.join(with_initializers(model, without_data))
    ensure_text(structure, subject)
    proto = onnx.ModelProto.FromString(structure)
    names = Counter(tensor.name for tensor in proto.graph.initializer)
    # A name that occurs twice (which is not valid) says nothing about whose data this is.
    repeated = frozenset(name for name in weights if names[name] > 1)
    return _take_apart(model, subject, repeated) if repeated else (proto, weights)


def with_initializers(model: memoryview, edit: wire.Edit) -> list[Part]:
    return wire.rewrite(model, {_MODEL_GRAPH: lambda graph: wire.rewrite(graph, {_GRAPH_INITIALIZER: edit})})


# `dtype.isbuiltin` of the types that numpy itself has; others (bfloat16) were added to it.
_NUMPYS_OWN = 1


def initializer_arrays(file: ModelFile) -> Iterator[tuple[str, np.ndarray]]:
    """The main graph's initializers by name, one at a time; those without numbers are left out."""
    for tensor in file.proto.graph.initializer:
        if has_numbers(file, tensor):
            yield tensor.name, initializer_array(file, tensor)
            stay_within_limit()


def largest_weight(file: ModelFile) -> int:
    """Bytes of the largest initializer."""
    return max((data.nbytes for data in file.weights.values()), default=0)


def has_numbers(file: ModelFile, tensor: onnx.TensorProto) -> bool:
    """False for strings, for a header alone (a file may leave out its weights), and for what has no name."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return False
    if is_data_outside(file, tensor):
        return tensor.name in file.weights
    return has_data(tensor) or 0 in tensor.dims


def initializer_array(file: ModelFile, tensor: onnx.TensorProto) -> np.ndarray:
    """A view of the file where numpy has the type, else a copy."""
    if not has_numbers(file, tensor):
        raise FileUnreadable(
            f"the tensor {shorten(tensor.name)!r} is a header without numbers", "Give the file with all of its weights."
        )
    if not is_data_outside(file, tensor) or not is_numpy_type(tensor):
        return onnx.numpy_helper.to_array(tensor_with_data(file, tensor))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.frombuffer(file.weights[tensor.name].raw(), dtype).reshape(tuple(tensor.dims))


def tensor_with_data(file: ModelFile, tensor: onnx.TensorProto) -> onnx.TensorProto:
    if not is_data_outside(file, tensor):
        return tensor
    raw = bytes(file.weights[tensor.name].raw())
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=raw)


def is_data_outside(file: ModelFile, tensor: onnx.TensorProto) -> bool:
    return file.is_detached(tensor) or is_external(tensor)


def is_numpy_type(tensor: onnx.TensorProto) -> bool:
    return onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).isbuiltin == _NUMPYS_OWN


_MOST_BYTES = 2048


def with_small_external_data(file: ModelFile) -> onnx.ModelProto:
    """The file's own structure where nothing small is outside. What cannot be read stays outside."""
    if not any(map(_is_small_outside, tensors(file.proto))):
        return file.proto
    model = deepcopy(file.proto)
    for tensor in filter(_is_small_outside, tensors(model)):
        try:
            data = bytes(external_data(tensor, file.directory).raw())
        except ModelExportError:
            continue
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = data
    return model


def _is_small_outside(tensor: onnx.TensorProto) -> bool:
    return is_external(tensor) and storage_size(tensor) <= _MOST_BYTES
