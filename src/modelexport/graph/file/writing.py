"""Saving a model whose weights were never read: bytes go from where they are to where they shall be.

`Layout` decides for each tensor whether its data goes into the model file or a data file beside it. A protobuf
message ends at 2 GiB, so larger models are split. A model that was read from two files and is saved over the first one
keeps the second.
https://protobuf.dev/programming-guides/proto-limits/
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import onnx

from modelexport.errors import FileUnwritable, ModelExportError, UserError
from modelexport.graph.file import external
from modelexport.graph.file import weights as wire
from modelexport.graph.file.atomic import Stage, StagedFile, ensure_room, ensure_writable, staging
from modelexport.graph.file.filling import FilledWeight
from modelexport.graph.file.mapped_memory import stay_within_limit
from modelexport.graph.file.metadata import read_outline, sidecar_path
from modelexport.graph.file.reading import FIRST_TAG, ModelFile, open_model, with_initializers
from modelexport.graph.file.weights import (
    Deferred,
    Part,
    WeightData,
    attach,
    clear_data,
    data_inside,
    has_data,
    name_of_empty,
)
from modelexport.record.regular_files import open_regular

PROTOBUF_LIMIT = 2**31 - 1
# A file that is written just below the limit could not be given metadata any more.
_COMFORTABLE = PROTOBUF_LIMIT - 2**26
# Bytes of a data file that somebody asks for: one for every tensor would be of no use to anybody.
LEAST_SHARD = 1_000_000
_ALIGNMENT = 4096  # a page, so that runtimes can map a tensor


@dataclass(frozen=True, eq=False)
class DataFile:
    """A file that holds data of a model.

    location: as tensors name it, from the folder of the model.
    blocks: in its order: offsets, and what goes there.
    """

    location: str
    blocks: tuple[tuple[int, WeightData], ...]

    @property
    def nbytes(self) -> int:
        return max((offset + data.nbytes for offset, data in self.blocks), default=0)


@dataclass(frozen=True)
class Storage:
    """Where weights shall be: in the model file or in files of their own.

    external: True puts initializers of at least `threshold` bytes into `<name>.data` beside the model, False puts
    everything into one file, None leaves each tensor where it is unless the file would pass the 2 GB that protobuf
    can hold.
    shard_size: bytes that a data file is to have at most; one tensor may have more.
    """

    external: bool | None = None
    threshold: int = 1024
    shard_size: int | None = None


STAYS = Storage()
# Of weights in a model file ONNX Runtime makes two copies when it loads it; those in a file of their own it maps.
OUTSIDE_ABOVE = 1_000_000_000


def choose_storage(model: ModelFile, external_data: bool | None, shard_size: int | None) -> Storage:
    """As it was asked for; else weights that runtimes had better map than read go into a file of their own."""
    large = sum(data.nbytes for data in model.weights.values()) > OUTSIDE_ABOVE
    outside = True if external_data is None and (large or shard_size) else external_data
    return Storage(outside, shard_size=shard_size)


@dataclass(frozen=True, eq=False)
class Layout:
    """A model as it will be in its file.

    inside: data for those initializers of `proto` that have none.
    outside: the data files.
    """

    proto: onnx.ModelProto
    inside: Mapping[str, WeightData]
    outside: tuple[DataFile, ...] = ()


def data_file(path: Path) -> Path:
    return path.with_name(path.name + ".data")


def shard_name(path: Path, number: int, count: int) -> str:
    """`bert.onnx-00002-of-00003.data`; one data file alone has the name that data files always have."""
    return data_file(path).name if count == 1 else f"{path.name}-{number:05}-of-{count:05}.data"


def lay_out(model: ModelFile, path: Path, storage: Storage) -> Layout:
    """Decide what goes where; the model's own proto is left as it is.

    Data that already is outside stays outside: untouched if the model is rewritten in its place, else copied.
    """
    detached = filter(model.is_detached, model.proto.graph.initializer)
    size = model.proto.ByteSize() + sum(model.weights[tensor.name].nbytes for tensor in detached)
    crowded = storage.external is None and size > _COMFORTABLE
    leaving = list(_movable(model, storage.threshold)) if storage.external or crowded else []
    outside = [tensor for tensor in external.tensors(model.proto) if external.is_external(tensor)]
    # Nothing moves: the layout is the model as it is, and no copy of the structure is made.
    if not leaving and (not outside or (_in_place(model, path) and storage.external is not False)):
        return Layout(model.proto, model.weights)
    if storage.external is False:
        return _all_inside(model)
    layout = _moved_out(model, set(leaving), path, storage.shard_size)
    # A copy may not overwrite the data file that it is still reading from.
    if not _in_place(model, path):
        _check_not_source(model, outside, {(path.parent / file.location).resolve() for file in layout.outside})
    return layout


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


def _check_not_source(model: ModelFile, outside: list[onnx.TensorProto], targets: Collection[Path]) -> None:
    for tensor in outside:
        if (target := external.data_path(tensor, model.directory)) in targets:
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


def _moved_out(model: ModelFile, leaving: set[int], path: Path, shard_size: int | None) -> Layout:
    proto = deepcopy(model.proto)
    moved: list[tuple[onnx.TensorProto, WeightData]] = []
    for position, tensor in enumerate(proto.graph.initializer):
        if position in leaving:
            data = initializer_data(model, model.proto.graph.initializer[position])
            moved += [] if data is None else [(tensor, data)]
    outside = filter(external.is_external, external.tensors(proto))
    moved += [(tensor, external.external_data(tensor, model.directory)) for tensor in outside]
    shards = list(_sharded(moved, shard_size))
    names = (shard_name(path, number, len(shards)) for number in range(1, len(shards) + 1))
    files = (DataFile(name, tuple(assign_offsets(shard, name))) for name, shard in zip(names, shards, strict=True))
    return Layout(proto, model.weights, tuple(files))


_Stored = tuple[onnx.TensorProto, WeightData]


def _sharded(moved: Iterable[_Stored], size: int | None) -> Iterator[list[_Stored]]:
    """In the order of the model, as many in a file as fit."""
    shard: list[_Stored] = []
    end = 0
    for tensor, data in moved:
        start = _aligned(end)
        if shard and size is not None and start + data.nbytes > size:
            yield shard
            shard, start = [], 0
        shard.append((tensor, data))
        end = start + data.nbytes
    if shard:
        yield shard


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def assign_offsets(
    moved: Iterable[tuple[onnx.TensorProto, WeightData]], location: str, end: int = 0
) -> Iterator[tuple[int, WeightData]]:
    """Have tensors refer to a data file, one after the other; gives what goes where in it.

    end  of what is in the data file already
    """
    for tensor, data in moved:
        offset = _aligned(end)
        external.set_external(tensor, location, offset, data.nbytes)
        yield offset, data
        end = offset + data.nbytes


def save_model(
    model: ModelFile,
    path: Path,
    *,
    external_data: bool | None = None,
    threshold: int = 1024,
    shard_size: int | None = None,
) -> tuple[Path, ...]:
    """Write a model and give the files written; all appear at once, or none. See `Storage`.

    A data file that only the replaced model used stays: others may share it.
    """
    with staging() as stage:
        return stage_model(stage, model, path, Storage(external_data, threshold, shard_size))


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


def stage_model(stage: Stage, model: ModelFile, path: Path, storage: Storage = STAYS) -> tuple[Path, ...]:
    """Like `save_model`, for a model that appears together with other files."""
    return stage_layout(stage, lay_out(model, path, storage), path)


def stage_layout(stage: Stage, layout: Layout, path: Path) -> tuple[Path, ...]:
    """Write what was laid out."""
    parts = _spliced(layout)
    if wire.size_of(parts) > PROTOBUF_LIMIT:
        raise UserError(
            f"{path.name} would be {wire.size_of(parts) / 1e9:.1f} GB; one ONNX file holds at most 2 GB",
            "Let the weights go into a data file beside the model (external data).",
        )
    ensure_room(path, wire.size_of(parts) + sum(file.nbytes for file in layout.outside))
    # First, because a model must never be there before its data is.
    data = [_stage_data(stage, file, path.parent) for file in layout.outside]
    exchanged = any(file.exists() for file in data)
    _write_parts(stage.open(path, away_first=exchanged and not _knows_data(path)), parts)
    return path, *data


def _stage_data(stage: Stage, file: DataFile, folder: Path) -> Path:
    stream = stage.open(folder / file.location)
    for offset, block in file.blocks:
        stream.pad_to(offset)
        _write_pieces(stream, block)
        stay_within_limit()
    return folder / file.location


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
        if isinstance(part, memoryview):
            file.write(part)
        else:
            _write_pieces(file, part)
        stay_within_limit()


def _write_pieces(file: StagedFile, data: Deferred) -> None:
    """What is made when it is written is never in memory as a whole."""
    for piece in data.pieces() if isinstance(data, FilledWeight) else (data.raw(),):
        file.write(piece)
