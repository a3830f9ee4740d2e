"""Saving a model whose weights were never read: bytes go from where they are to where they shall be.

`Layout` decides for each tensor whether its data goes into the model file or a data file beside it. A protobuf
message ends at 2 GiB, so larger models are split. A model that was read from two files and is saved over the first one
keeps the second.
https://protobuf.dev/programming-guides/proto-limits/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import onnx

from modelexport.errors import FileUnwritable, ModelExportError, UserError
from modelexport.graph.file import external
from modelexport.graph.file import weights as wire
from modelexport.graph.file.atomic import Stage, StagedFile, ensure_writable, staging
from modelexport.graph.file.metadata import read_outline, sidecar_path
from modelexport.graph.file.reading import FIRST_TAG, ModelFile, open_model, with_initializers
from modelexport.graph.file.weights import Part, WeightData, attach, clear_data, data_inside, has_data, name_of_empty
from modelexport.record.regular_files import open_regular

PROTOBUF_LIMIT = 2**31 - 1
# A file that is written just below the limit could not be given metadata any more.
_COMFORTABLE = PROTOBUF_LIMIT - 2**26
_ALIGNMENT = 4096  # a page, so that runtimes can map a tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """A model as it will be in its file.

    inside: data for those initializers of `proto` that have none.
    outside: the data file in its order: offsets, and what goes there.
    """

    proto: onnx.ModelProto
    inside: Mapping[str, WeightData]
    outside: tuple[tuple[int, WeightData], ...] = ()


def data_file(path: Path) -> Path:
    return path.with_name(path.name + ".data")


def lay_out(model: ModelFile, path: Path, external_data: bool | None, threshold: int) -> Layout:
    """Decide what goes where; the model's own proto is left as it is.

    Data that already is outside stays outside: untouched if the model is rewritten in its place, else copied.
    """
    detached = filter(model.is_detached, model.proto.graph.initializer)
    size = model.proto.ByteSize() + sum(model.weights[tensor.name].nbytes for tensor in detached)
    crowded = external_data is None and size > _COMFORTABLE
    leaving = list(_movable(model, threshold)) if external_data or crowded else []
    outside = [tensor for tensor in external.tensors(model.proto) if external.is_external(tensor)]
    # Nothing moves: the layout is the model as it is, and no copy of the structure is made.
    if not leaving and (not outside or (_in_place(model, path) and external_data is not False)):
        return Layout(model.proto, model.weights)
    if external_data is False:
        return _all_inside(model)
    # A copy may not overwrite the data file that it is still reading from.
    if not _in_place(model, path):
        _check_not_source(model, outside, data_file(path))
    return _moved_out(model, set(leaving), data_file(path).name)


def _movable(model: ModelFile, threshold: int) -> Iterator[int]:
    """Positions of the initializers that are large enough for the data file and not there yet."""
    for position, tensor in enumerate(model.proto.graph.initializer):
        plain = not external.is_external(tensor) and tensor.data_type != onnx.TensorProto.STRING
        data = initializer_data(model, tensor) if plain else None
        if data is not None and data.nbytes >= threshold:
            yield position


def initializer_data(model: ModelFile, tensor: onnx.TensorProto) -> WeightData | None:
    """The data of an initializer that is in the file itself."""
    return data_inside(tensor) if has_data(tensor) else model.weights.get(tensor.name)


def _in_place(model: ModelFile, path: Path) -> bool:
    here = model.directory is not None and model.directory.resolve() == path.parent.resolve()
    return here and model.file_name == path.name


def _check_not_source(model: ModelFile, outside: list[onnx.TensorProto], target: Path) -> None:
    for tensor in outside:
        if external.data_path(tensor, model.directory) == target.resolve():
            raise FileUnwritable(
                f"cannot write {target}: it holds the weights of the model that is being copied",
                "Write the copy under another name or into another folder.",
            )


def _all_inside(model: ModelFile) -> Layout:
    proto = deepcopy(model.proto)
    inside = dict(model.weights)
    for tensor in filter(external.is_external, proto.graph.initializer):
        inside[tensor.name] = external.external_data(tensor, model.directory)
        _set_inside(tensor)
    # What is left belongs to bodies and attributes, where tensors are few.
    for tensor in filter(external.is_external, external.tensors(proto)):
        data = bytes(external.external_data(tensor, model.directory).raw())
        _set_inside(tensor)
        tensor.raw_data = data
    return Layout(proto, inside)


def _set_inside(tensor: onnx.TensorProto) -> None:
    clear_data(tensor)
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _moved_out(model: ModelFile, leaving: set[int], location: str) -> Layout:
    proto = deepcopy(model.proto)
    moved: list[tuple[onnx.TensorProto, WeightData]] = []
    for position, tensor in enumerate(proto.graph.initializer):
        if position in leaving:
            data = initializer_data(model, model.proto.graph.initializer[position])
            moved += [] if data is None else [(tensor, data)]
    outside = filter(external.is_external, external.tensors(proto))
    moved += [(tensor, external.external_data(tensor, model.directory)) for tensor in outside]
    return Layout(proto, model.weights, tuple(assign_offsets(moved, location)))


def assign_offsets(
    moved: Iterable[tuple[onnx.TensorProto, WeightData]], location: str, end: int = 0
) -> Iterator[tuple[int, WeightData]]:
    """Have tensors refer to a data file, one after the other; gives what goes where in it.

    end  of what is in the data file already
    """
    for tensor, data in moved:
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        external.set_external(tensor, location, offset, data.nbytes)
        yield offset, data
        end = offset + data.nbytes


def save_model(
    model: ModelFile, path: Path, *, external_data: bool | None = None, threshold: int = 1024
) -> tuple[Path, ...]:
    """Write a model and give the files written; all appear at once, or none.

    external_data: True puts initializers of at least `threshold` bytes into `<name>.data` beside the model,
    False puts everything into one file, None leaves each tensor where it is unless the file would pass the
    2 GB that protobuf can hold. A data file that only the replaced model used stays: others may share it.
    """
    with staging() as stage:
        return stage_model(stage, model, path, external_data=external_data, threshold=threshold)


_MODEL_START, _RECORD_START = re.compile(re.escape(FIRST_TAG)), re.compile(rb'\s*{\s*"schema"')


def ensure_model_target(path: Path) -> None:
    """Fail now rather than after a long computation if a model and its record cannot, or should not, be written there.

    Every writer of ONNX files begins with one byte, and every record with its schema; anything else is somebody's file.
    """
    ensure_writable(path)
    beside = sidecar_path(path)
    for target, start, what in ((path, _MODEL_START, "an ONNX model"), (beside, _RECORD_START, "a hierarchy record")):
        with open_regular(target) if target.is_file() else nullcontext() as file:
            head = b"" if file is None else file.read(64)
        if head and not start.match(head):
            raise FileUnwritable(
                f"{target} is there already and is not {what}", "Give another name, or remove that file first."
            )


def stage_model(
    stage: Stage, model: ModelFile, path: Path, *, external_data: bool | None = None, threshold: int = 1024
) -> tuple[Path, ...]:
    """Like `save_model`, for a model that appears together with other files."""
    return stage_layout(stage, lay_out(model, path, external_data, threshold), path)


def stage_layout(stage: Stage, layout: Layout, path: Path, data: Path | None = None) -> tuple[Path, ...]:
    """Write what was laid out; what lies outside goes into `data`, which is `data_file(path)` if it is not given."""
    parts = _spliced(layout)
    if wire.size_of(parts) > PROTOBUF_LIMIT:
        raise UserError(
            f"{path.name} would be {wire.size_of(parts) / 1e9:.1f} GB; one ONNX file holds at most 2 GB",
            "Let the weights go into a data file beside the model (external data).",
        )
    if not layout.outside:
        _write_parts(stage.open(path), parts)
        return (path,)
    data = data or data_file(path)
    # First, because a model must never be there before its data is.
    data_stream = stage.open(data)
    for offset, block in layout.outside:
        data_stream.pad_to(offset)
        data_stream.write(block.raw())
    _write_parts(stage.open(path, away_first=data.exists() and not _knows_data(path)), parts)
    return path, data


def _knows_data(path: Path) -> bool:
    """Whether the model that is there can tell if its data is exchanged, because it has an outline of its weights."""
    try:
        return read_outline(open_model(path).proto) is not None
    except ModelExportError:
        return False


def _spliced(layout: Layout) -> list[Part]:
    def with_data(tensor: memoryview) -> list[Part] | None:
        data = layout.inside.get(name_of_empty(tensor) or "")
        return None if data is None else attach(tensor, data)

    return with_initializers(memoryview(layout.proto.SerializeToString()), with_data)


def _write_parts(file: StagedFile, parts: list[Part]) -> None:
    for part in parts:
        file.write(part if isinstance(part, memoryview) else part.raw())
