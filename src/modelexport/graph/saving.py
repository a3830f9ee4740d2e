"""Saving models whose weights were never read: the bytes go from where they are to where they shall be."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from modelexport.errors import FileUnwritable, UserError
from modelexport.graph import wire
from modelexport.graph.atomic import Stage, StagedFile, ensure_writable, staging
from modelexport.graph.layout import PROTOBUF_LIMIT, Layout, data_file, lay_out
from modelexport.graph.model_file import FIRST_TAG, with_initializers
from modelexport.graph.opened import ModelFile
from modelexport.graph.weights import attach, name_of_empty
from modelexport.graph.wire import Part


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


def ensure_model_target(path: Path) -> None:
    """Fail now rather than after a long computation if a model cannot, or should not, be written there."""
    ensure_writable(path)
    with path.open("rb") if path.is_file() else nullcontext() as file:
        start = b"" if file is None else file.read(1)
    # Every writer of ONNX files begins with this byte; anything else is a file of another kind.
    if start and start != FIRST_TAG:
        raise FileUnwritable(
            f"{path} is there already and is not an ONNX model", "Give another name, or remove that file first."
        )


def stage_model(
    stage: Stage, model: ModelFile, path: Path, *, external_data: bool | None = None, threshold: int = 1024
) -> tuple[Path, ...]:
    """Like `save_model`, for a model that appears together with other files."""
    layout = lay_out(model, path, external_data, threshold)
    parts = _spliced(layout)
    if wire.size_of(parts) > PROTOBUF_LIMIT:
        raise UserError(
            f"{path.name} would be {wire.size_of(parts) / 1e9:.1f} GB; one ONNX file holds at most 2 GB",
            "Let the weights go into a data file beside the model (external data).",
        )
    if not layout.outside:
        _write_parts(stage.open(path), parts)
        return (path,)
    data = data_file(path)
    _write_outside(stage.open(data), layout)  # first: a model must never be there before its data is
    _write_parts(stage.open(path), parts)
    return path, data


def _spliced(layout: Layout) -> list[Part]:
    """The serialized model with its initializers' data in it."""

    def with_data(tensor: memoryview) -> list[Part] | None:
        data = layout.inside.get(name_of_empty(tensor) or "")
        return None if data is None else attach(tensor, data)

    return with_initializers(memoryview(layout.proto.SerializeToString()), with_data)


def _write_parts(file: StagedFile, parts: list[Part]) -> None:
    for part in parts:
        file.write(part if isinstance(part, memoryview) else part.raw())


def _write_outside(file: StagedFile, layout: Layout) -> None:
    for place in layout.outside:
        file.pad_to(place.offset)
        file.write(place.data.raw())
