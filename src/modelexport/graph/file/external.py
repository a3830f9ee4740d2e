"""External data: tensors whose bytes are in another file beside the model.

    external_data   {location: "model.onnx.data", offset: 4096, length: 1048576}

A location comes from whoever made the file: it must stay inside of the model's folder, and offsets inside of the file.
`writing.py` lays such files out. https://onnx.ai/onnx/repo-docs/ExternalData.html
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from modelexport.errors import FileUnreadable
from modelexport.graph.file.weights import Lazy, clear_data, storage_size
from modelexport.record.regular_files import open_regular

_KINDS = onnx.AttributeProto
KEEP_DATA = "Keep the data file beside the model that it belongs to, as it was written."


def is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: of its graph, the bodies inside, functions and training graphs."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _attribute_tensors(attribute for node in function.node for attribute in node.attribute)
        yield from _attribute_tensors(function.attribute_proto)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _sparse_tensors(graph.sparse_initializer)
    yield from _attribute_tensors(attribute for node in graph.node for attribute in node.attribute)


def _attribute_tensors(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.type == _KINDS.TENSOR:
            yield attribute.t
        elif attribute.type == _KINDS.GRAPH:
            yield from _graph_tensors(attribute.g)
        # Most attributes are numbers: a look at each of the fields below would cost more than all the rest.
        elif attribute.type in _RARE_KINDS:
            yield from attribute.tensors
            yield from _sparse_tensors([attribute.sparse_tensor, *attribute.sparse_tensors])
            for graph in attribute.graphs:
                yield from _graph_tensors(graph)


_RARE_KINDS = {_KINDS.TENSORS, _KINDS.GRAPHS, _KINDS.SPARSE_TENSOR, _KINDS.SPARSE_TENSORS}


def _sparse_tensors(sparse: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for tensor in sparse:
        yield tensor.values
        yield tensor.indices


def external_data(tensor: onnx.TensorProto, directory: Path | None) -> Lazy:
    """The data of an external tensor; its file is not even looked for before the data is asked for."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    subject = f"tensor {tensor.name!r}"
    try:
        offset = int(entries.get("offset", "0"))
        nbytes = int(entries.get("length") or storage_size(tensor))
    except ValueError as error:
        raise FileUnreadable(f"{subject} has external data at a place that is not a number: {entries}") from error
    # Entries are text in the file and may say anything.
    if offset < 0 or nbytes < 0 or not entries.get("location"):
        raise FileUnreadable(f"{subject} does not say where its external data is: {entries}")
    return Lazy(nbytes, partial(_read, subject, directory, entries["location"], slice(offset, offset + nbytes)))


def missing_data(model: onnx.ModelProto, directory: Path | None) -> Iterator[tuple[str, str]]:
    """Names of tensors whose external data cannot be had, and why; the data itself is not read."""
    for tensor in tensors(model):
        if is_external(tensor):
            try:
                _check_data(tensor, directory)
            except FileUnreadable as error:
                yield tensor.name, error.message


def _check_data(tensor: onnx.TensorProto, directory: Path | None) -> None:
    end = _end_of_data(tensor, directory)
    path = data_path(tensor, directory)
    if not path.is_file():
        raise FileUnreadable(f"its data file {path} is not there")
    if (size := path.stat().st_size) < end:
        raise FileUnreadable(f"its data ends at byte {end} of {path}, which has {size}")


def explain_missing_data(model: onnx.ModelProto, directory: Path) -> str:
    """Why not all external data of a model can be had, by its files; empty if it can."""
    needed: dict[Path, int] = {}
    for tensor in filter(is_external, tensors(model)):
        try:
            path, end = data_path(tensor, directory), _end_of_data(tensor, directory)
        except FileUnreadable as error:
            return error.message
        needed[path] = max(end, needed.get(path, 0))
    for path, size in needed.items():
        if not path.is_file():
            return f"its data file {path} is not there"
        if path.stat().st_size < size:
            return f"its data file {path} has {path.stat().st_size:,} bytes, and {size:,} are needed"
    return ""


def _end_of_data(tensor: onnx.TensorProto, directory: Path | None) -> int:
    offset = next((entry.value for entry in tensor.external_data if entry.key == "offset"), "0")
    return int(offset or 0) + external_data(tensor, directory).nbytes


def set_external(tensor: onnx.TensorProto, location: str, offset: int, nbytes: int) -> None:
    clear_data(tensor)
    tensor.ClearField("external_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", nbytes)):
        tensor.external_data.add(key=key, value=str(value))


def data_files(model: onnx.ModelProto, directory: Path) -> set[Path]:
    """Every file that a tensor says its data is in, wherever that is and whether it is there or not."""
    outside = filter(is_external, tensors(model))
    entries = (entry for tensor in outside for entry in tensor.external_data)
    # What has a NUL in it is no name of a file, and nothing to keep from being overwritten.
    return {directory / entry.value for entry in entries if entry.key == "location" and "\0" not in entry.value}


def own_data_files(model: onnx.ModelProto, directory: Path) -> set[Path]:
    """The same of files that have to be in the folder of the model. Raises FileUnreadable for one that is not."""
    by_location = {_read_location(tensor): tensor for tensor in filter(is_external, tensors(model))}
    for tensor in by_location.values():
        data_path(tensor, directory)
    return {directory / location for location in by_location if location}


def data_path(tensor: onnx.TensorProto, directory: Path | None) -> Path:
    return find_data_file(f"tensor {tensor.name!r}", directory, _read_location(tensor))


def _read_location(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def find_data_file(subject: str, directory: Path | None, location: str) -> Path:
    """A model comes from anywhere, so it must not be able to name a file outside of its own folder."""
    if directory is None:
        raise FileUnreadable(f"{subject} has its data in {location!r}, but the model was not read from a folder")
    if "\0" in location:
        raise FileUnreadable(f"{subject} has its data in {location!r}, which is no name of a file")
    steps = {*PurePosixPath(location).parts, *PureWindowsPath(location).parts}
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor != ""
    path = (directory / location).resolve()
    if absolute or ".." in steps or not path.is_relative_to(directory.resolve()):
        raise FileUnreadable(
            f"{subject} has its data in {location!r}, which is outside of the model's folder {directory}",
            "Put the data file itself (not a link to it) beside the model.",
        )
    return path


def _read(subject: str, directory: Path | None, location: str, span: slice) -> memoryview:
    path = find_data_file(subject, directory, location)
    try:
        with open_regular(path) as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        reason = getattr(error, "strerror", None) or str(error)
        raise FileUnreadable(
            f"cannot read {path}, the data of {subject}: {reason.lower()}",
            KEEP_DATA,
        ) from error
    if len(data) < span.stop:
        raise FileUnreadable(f"{path} is truncated: {subject} ends at byte {span.stop} of {len(data)}")
    return data[span]
