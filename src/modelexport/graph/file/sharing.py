"""Shared data: weights that several files of a folder have are stored once, in a data file that all of them refer to.

    decoder_model.onnx            embed 50257x768 ─┐
    decoder_with_past_model.onnx  embed 50257x768 ─┴─►  shared.onnx.data

Weights are shared by content, whatever they are called. Only files of one folder share: external data may not lie
outside of a model's folder (https://onnx.ai/onnx/repo-docs/ExternalData.html). Weights are read through memory maps,
one after the other, and copied once.

`rename_data` gives a file with weights the name that a consumer looks for.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import onnx

from modelexport.graph.file import external
from modelexport.graph.file.atomic import Stage, staging
from modelexport.graph.file.reading import ModelFile, open_model
from modelexport.graph.file.weights import WeightData
from modelexport.graph.file.writing import (
    DataFile,
    Layout,
    assign_offsets,
    data_file,
    initializer_data,
    save_model,
    stage_layout,
)

# Bytes. Smaller tensors stay in the graph: shape inference reads them, and there are too few bytes in them to matter.
_SMALL = 1024
# Bytes that must be saved. A file that is complete by itself is easier to hand on than one that needs another.
WORTHWHILE = 1 << 20

# Where the data of an initializer is: the file and the offset in it; for data inside of a model, the initializer.
_Place = tuple[Path, int | str]


@dataclass(frozen=True, eq=False)
class _Weight:
    """An initializer that could be shared."""

    model: ModelFile
    tensor: onnx.TensorProto
    data: WeightData
    place: _Place


def share_data(files: Iterable[Path], name: str = "shared.onnx.data", *, worthwhile: int = WORTHWHILE) -> list[Path]:
    """Store weights once that several of these files have; gives the data files made, one for a folder at most.

    name        of a data file, in the folder of the models that share it
    worthwhile  bytes that must be saved in a folder
    """
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    made: list[Path] = []
    for folder, paths in folders.items():
        models = [open_model(path) for path in paths] if len(paths) > 1 else []
        groups = list(_find_groups(models))
        saved = sum((len({weight.place for weight in group}) - 1) * group[0].data.nbytes for group in groups)
        if groups and saved >= worthwhile:
            target = _free_name(folder, name)
            _move_groups(groups, models, target)
            made.append(target)
    return made


def _find_groups(models: list[ModelFile]) -> Iterator[list[_Weight]]:
    """Weights of equal content in more than one file."""
    weights = [list(_find_weights(model)) for model in models]
    # Content is only read where another file has a weight of that size.
    sizes = Counter(size for listed in weights for size in {weight.data.nbytes for weight in listed})
    groups: dict[bytes, list[_Weight]] = {}
    for weight in chain.from_iterable(weights):
        if sizes[weight.data.nbytes] > 1:
            groups.setdefault(hashlib.sha256(weight.data.raw()).digest(), []).append(weight)
    for group in groups.values():
        if len({id(weight.model) for weight in group}) > 1 and len({weight.place for weight in group}) > 1:
            yield group


def _find_weights(model: ModelFile) -> Iterator[_Weight]:
    for tensor in model.proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.STRING:
            continue
        path = _path_of(model)
        place: _Place = path, tensor.name
        data: WeightData | None
        if external.is_external(tensor):
            data = external.external_data(tensor, path.parent)
            offset = next((entry.value for entry in tensor.external_data if entry.key == "offset"), "0")
            place = external.data_path(tensor, path.parent), int(offset)
        else:
            data = initializer_data(model, tensor)
        if data is not None and data.nbytes >= _SMALL:
            yield _Weight(model, tensor, data, place)


def _path_of(model: ModelFile) -> Path:
    assert model.directory is not None, "it was read from a folder"
    return model.directory / model.file_name


def _free_name(folder: Path, name: str) -> Path:
    """A name that no other data file has: a component may be called as this file would be."""
    stem, dot, ending = name.partition(".")
    numbered = (folder / f"{stem}_{number}{dot}{ending}" for number in range(1, 1000))
    return next(path for path in (folder / name, *numbered) if not path.exists())


def _move_groups(groups: list[list[_Weight]], models: list[ModelFile], target: Path) -> None:
    before = Counter(path for model in models for path in external.data_files(model.proto, target.parent))
    with staging() as stage:
        shared = stage.open(target)
        for group in groups:
            first = group[0]
            for offset, data in assign_offsets([(first.tensor, first.data)], target.name, shared.position):
                shared.pad_to(offset)
                shared.write(data.raw())
            for weight in group[1:]:
                _refer_to(weight.tensor, first.tensor)
        for model in {id(weight.model): weight.model for group in groups for weight in group}.values():
            own = [path for path in external.data_files(model.proto, target.parent) if before[path] == 1]
            _stage_rest(stage, model, next(iter(own), None))
    after = {path for model in models for path in external.data_files(model.proto, target.parent)}
    for path in before.keys() - after:
        path.unlink(missing_ok=True)


def _refer_to(tensor: onnx.TensorProto, shared: onnx.TensorProto) -> None:
    entries = {entry.key: entry.value for entry in shared.external_data}
    external.set_external(tensor, entries["location"], int(entries["offset"]), int(entries["length"]))


def _stage_rest(stage: Stage, model: ModelFile, own: Path | None) -> None:
    """The model without the data that it shares; what is left in its own data file moves together there."""
    path = _path_of(model)
    left = [
        (tensor, external.external_data(tensor, path.parent))
        for tensor in external.tensors(model.proto)
        if own is not None and external.is_external(tensor) and _location(tensor) == _relative(own, path)
    ]
    outside: tuple[DataFile, ...] = ()
    if own is not None and left:
        outside = (DataFile(_relative(own, path), tuple(assign_offsets(left, _relative(own, path)))),)
    stage_layout(stage, Layout(model.proto, model.weights, outside), path)


def _location(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _relative(data: Path, model: Path) -> str:
    return data.relative_to(model.parent).as_posix()


def rename_data(path: Path, name: str) -> None:
    """Call the data file of a model `name`; nothing happens if it has none of its own."""
    written = data_file(path)
    if not written.is_file() or written.name == name:
        return
    model = open_model(path)
    written.replace(path.with_name(name))
    for tensor in filter(external.is_external, external.tensors(model.proto)):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value == written.name:
                entry.value = name
    save_model(model, path)
