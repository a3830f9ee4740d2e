"""Fill: the weights of a checkpoint, into a file that was exported without them.

    export("llama", "structure.onnx", no_weights=True)     a graph with names, types, shapes and recipes of its weights
    fill("structure.onnx", "llama.onnx", model="llama")    what `export("llama", "llama.onnx")` writes

Needs neither torch nor the model: recipes (record/weight_recipe.py) say what an exporter did to each weight, and
graph/file/checkpoint.py does it again, some rows at a time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from modelexport.api.environment import Clock, Progress
from modelexport.api.writing import ensure_apart, write_tagged
from modelexport.errors import ModelMismatch, UserError, shorten
from modelexport.graph.file.checkpoint import Checkpoint, open_checkpoint
from modelexport.graph.file.declared import declared_weights, forget_recipe
from modelexport.graph.file.filling import FilledWeight, find_weight
from modelexport.graph.file.metadata import EmbedOptions, level_of
from modelexport.graph.file.reading import DETACHED_ABOVE
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.file.weights import WeightData
from modelexport.graph.file.writing import LEAST_SHARD, choose_storage, ensure_model_target, save_model
from modelexport.record.amounts import read_size
from modelexport.record.results.files import FillResult
from modelexport.record.weight_recipe import Recipe, StoredTensor, stored_tensors


def fill(
    file: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    external_data: bool | None = None,
    shard_size: int | str | None = None,
    progress: Progress | None = None,
) -> FillResult:
    """Put the weights of a checkpoint into a file that was exported with `no_weights`.

    model          the checkpoint, a folder with safetensors; None for the folder of the file
    external_data  weights in a file of their own; None for more than 1 GB of them
    shard_size     weights in several files, of this size at most: `2GB`
    """
    path, target = Path(file), Path(output)
    size = read_size(shard_size, "--shard-size", LEAST_SHARD)
    ensure_model_target(target)
    ensure_apart(target, path)
    clock = Clock(progress)
    opened = open_tagged(path)
    folder = path.parent if model is None else Path(model)
    checkpoint = open_checkpoint(folder)
    try:
        with clock.step("find weights"):
            weights = _find_weights(opened, checkpoint)
        with clock.step("write"):
            filled = _with_weights(opened, weights)
            record = opened.related_record
            storage = choose_storage(filled, external_data, size)
            if record is None:
                files = save_model(filled, target, external_data=storage.external, shard_size=size)
            else:
                options = EmbedOptions(level_of(opened.proto))
                written = write_tagged(filled, record, target, options, storage=storage)
                files, record = written.files, written.provenance
    finally:
        checkpoint.close()
    made = sum(1 for weight in weights.values() if not isinstance(weight.recipe, StoredTensor))
    nbytes = sum(weight.nbytes for weight in weights.values())
    return FillResult(target, files, len(weights), nbytes, made, record)


def _find_weights(opened: TaggedFile, checkpoint: Checkpoint) -> dict[str, FilledWeight]:
    """By initializer. Raises UserError for a file that has nothing to fill."""
    recipes = {tensor.name: recipe for tensor, recipe in declared_weights(opened.proto)}
    weights = {name: find_weight(recipe, checkpoint, name) for name, recipe in recipes.items()}
    # Last: of another model, names and shapes say more than numbers do.
    seen: dict[str, str] = {}
    for recipe in recipes.values():
        _ensure_same_content(recipe, checkpoint, seen)
    if not weights:
        raise UserError(
            f"{opened.path} declares no weights: there is nothing to fill", "Give a file of `export --no-weights`."
        )
    return weights


def _ensure_same_content(recipe: Recipe, checkpoint: Checkpoint, seen: dict[str, str]) -> None:
    for expected in stored_tensors(recipe):
        if not expected.digest:
            continue
        if expected.name not in seen:
            seen[expected.name] = checkpoint.digest(checkpoint.tensors[expected.name])
        if seen[expected.name] != expected.digest:
            raise ModelMismatch(
                f"{shorten(expected.name)!r} has other numbers in {checkpoint.folder} than in the checkpoint that the "
                "file was exported from",
                "Give that checkpoint, or export this one: constants of the graph may depend on its numbers.",
            )


def _with_weights(opened: TaggedFile, weights: dict[str, FilledWeight]) -> TaggedFile:
    """The same graph with numbers, as an export has it in memory: what it says of where they come from is gone."""
    for tensor in opened.proto.graph.initializer:
        if tensor.name in weights:
            forget_recipe(tensor)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            # As every export has constants of this size.
            if weights[tensor.name].nbytes <= DETACHED_ABOVE:
                tensor.raw_data = bytes(weights[tensor.name].raw())
    data: dict[str, WeightData] = {**opened.weights, **weights}
    return replace(opened, weights=data)
