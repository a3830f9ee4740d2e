"""Opening ONNX models whose weights stay where they are.

Protobuf would decode every weight to answer a question about structure. Here the file is mapped, the data of large
initializers is stepped over, and only the rest becomes a proto; `saving.py` puts the mapped bytes back.
"""

from __future__ import annotations

import mmap
from collections import Counter
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from modelexport.errors import FileUnreadable
from modelexport.graph import external, wire
from modelexport.graph.opened import ModelFile
from modelexport.graph.weights import WeightData, detach
from modelexport.graph.wire import Part

DETACHED_ABOVE = 1024  # smaller constants stay: shape arithmetic needs them
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_IR_WITH_OPSETS = 3
__all__ = ["DETACHED_ABOVE", "FIRST_TAG", "ModelFile", "open_model", "parse_model", "with_initializers"]

FIRST_TAG = b"\x08"  # ir_version, which every writer of ONNX files puts first
_LFS_POINTER = b"version https://git-lfs"


def open_model(path: Path) -> ModelFile:
    """Map a model file; the time it takes does not depend on the size of the weights."""
    return _model_file(_mapped(path), str(path), path.parent, path.name)


def parse_model(data: bytes | bytearray | memoryview) -> ModelFile:
    """A model from memory, such as an exporter's buffer; its weights are views of `data`."""
    return _model_file(memoryview(data).cast("B"), "the data", None, "")


def _mapped(path: Path) -> memoryview:
    try:
        if path.is_dir():
            raise FileUnreadable(f"{path} is a folder", "Give the .onnx file inside it.")
        if path.exists() and not path.is_file():
            raise FileUnreadable(f"{path} is not a regular file")
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise FileUnreadable(f"{path} is empty", "Export the model again.")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FileUnreadable(f"cannot read {path}: {reason}", "Check the path and its permissions.") from error


def _model_file(data: memoryview, subject: str, directory: Path | None, file_name: str) -> ModelFile:
    try:
        proto, weights = _take_apart(data)
    except (DecodeError, ValueError) as error:  # ValueError: not wire format, or a name that is not UTF-8
        raise _not_onnx(data, subject) from error
    opsets_missing = proto.ir_version >= _IR_WITH_OPSETS and not proto.opset_import
    if not proto.HasField("graph") or not proto.ir_version or opsets_missing:
        raise _not_onnx(data, subject)
    for tensor in filter(external.is_external, proto.graph.initializer):
        weights[tensor.name] = external.external_data(tensor, directory)
    return ModelFile(proto, weights, directory, file_name)


def _not_onnx(data: memoryview, subject: str) -> FileUnreadable:
    start = bytes(data[: len(_LFS_POINTER)])
    if start == _LFS_POINTER:
        return FileUnreadable(f"{subject} is a git-lfs pointer, not the model itself", "Fetch it with `git lfs pull`.")
    if start.startswith(FIRST_TAG):
        return FileUnreadable(f"{subject} is truncated or damaged", "Export or download the model again.")
    return FileUnreadable(f"{subject} is not an ONNX model", "Give the .onnx file that an exporter wrote.")


def _take_apart(model: memoryview, kept: frozenset[str] = frozenset()) -> tuple[onnx.ModelProto, dict[str, WeightData]]:
    """The model without its large initializers' data, and that data; those named in `kept` stay whole."""
    weights: dict[str, WeightData] = {}

    def without_data(tensor: memoryview) -> list[Part] | None:
        detached = detach(tensor, DETACHED_ABOVE)
        if detached is None or detached.name in kept:
            return None
        weights[detached.name] = detached.data
        return [detached.header]

    proto = onnx.ModelProto.FromString(wire.join(with_initializers(model, without_data)))
    names = Counter(tensor.name for tensor in proto.graph.initializer)
    # A name that occurs twice (which is not valid) says nothing about whose data this is.
    repeated = frozenset(name for name in weights if names[name] > 1)
    return _take_apart(model, repeated) if repeated else (proto, weights)


def with_initializers(model: memoryview, edit: wire.Edit) -> list[Part]:
    """A serialized model with its initializers edited one by one."""
    return wire.rewrite(model, {_MODEL_GRAPH: lambda graph: wire.rewrite(graph, {_GRAPH_INITIALIZER: edit})})
