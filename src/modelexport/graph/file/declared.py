"""Declared weights: initializers with name, type and shape, and where their numbers are to come from.

    initializer  h.0.fc.weight  float32 4x8
                 metadata       pkg.modelexport.weight: {"op": "transpose", …}        (record/weight_recipe.py)
                 external data  llama/model.safetensors, offset, length               where it is there as it is

A file of declared weights says everything of a graph but its numbers, in some megabytes. Weights that lie in a
checkpoint of the file's folder in the right type and order are external data of it, as ONNX has them; those are there
for everybody who opens the file. `fill` puts all others in.

https://onnx.ai/onnx/repo-docs/ExternalData.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import onnx

from modelexport.errors import FileMalformed, UserError, quote_argument, shorten, some_of
from modelexport.graph.file import external
from modelexport.graph.file.checkpoint import DTYPES, Checkpoint
from modelexport.graph.file.filling import recipe_dtype, recipe_shape
from modelexport.graph.file.reading import ModelFile, has_numbers
from modelexport.graph.file.weights import clear_data
from modelexport.record.weight_recipe import FixedArray, Recipe, StoredTensor, read_recipe, stored_tensors, write_recipe

WEIGHT_KEY = "pkg.modelexport.weight"
_Opened = TypeVar("_Opened", bound=ModelFile)


def declare(tensor: onnx.TensorProto, recipe: Recipe) -> None:
    """Put a recipe in the place of an initializer's numbers."""
    clear_data(tensor)
    _set_inside(tensor)
    forget_recipe(tensor)
    tensor.metadata_props.add(key=WEIGHT_KEY, value=write_recipe(recipe))


def forget_recipe(tensor: onnx.TensorProto) -> None:
    kept = [(entry.key, entry.value) for entry in tensor.metadata_props if entry.key != WEIGHT_KEY]
    tensor.ClearField("metadata_props")
    for key, value in kept:
        tensor.metadata_props.add(key=key, value=value)


def _set_inside(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def has_recipe(tensor: onnx.TensorProto) -> bool:
    return any(entry.key == WEIGHT_KEY for entry in tensor.metadata_props)


def declared_recipe(tensor: onnx.TensorProto) -> Recipe:
    """Raises FileMalformed for a recipe that cannot be read, or that makes another tensor than this one."""
    text = next(entry.value for entry in tensor.metadata_props if entry.key == WEIGHT_KEY)
    try:
        recipe = read_recipe(text)
        shape, dtype = recipe_shape(recipe), recipe_dtype(recipe)
        wanted = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (ValueError, KeyError) as error:
        raise _unusable(tensor, str(error)) from error
    if shape != tuple(tensor.dims) or dtype != wanted:
        raise _unusable(tensor, f"it makes {dtype} {list(shape)}, and it is {wanted} {list(tensor.dims)}")
    return recipe


def _unusable(tensor: onnx.TensorProto, reason: str) -> FileMalformed:
    return FileMalformed(
        f"the weight {shorten(tensor.name)!r} has a recipe that cannot be used: {shorten(reason)}",
        "Export the file again.",
    )


def declared_weights(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, Recipe]]:
    """Initializers that have a recipe, with it; their numbers may be there as well."""
    for tensor in filter(has_recipe, model.graph.initializer):
        yield tensor, declared_recipe(tensor)


def refer_to_checkpoint(file: _Opened, checkpoint: Checkpoint, path: Path) -> _Opened:
    """The file, to be written at `path`, with digests of what its weights are made of, and external data where it can.

    Only what lies inside of the folder of a model can be its external data.
    """
    digests: dict[str, str] = {}
    weights = dict(file.weights)
    folder = path.parent.resolve()
    for tensor, recipe in declared_weights(file.proto):
        for stored in stored_tensors(recipe):
            digests.setdefault(stored.name, checkpoint.digest(stored))
        declare(tensor, _with_digests(recipe, digests))
        if isinstance(recipe, StoredTensor) and (checkpoint.folder / recipe.file).resolve().is_relative_to(folder):
            location = (checkpoint.folder.resolve() / recipe.file).relative_to(folder).as_posix()
            size = math.prod(recipe.shape) * DTYPES[recipe.dtype].itemsize
            external.set_external(tensor, location, recipe.offset, size)
            weights[tensor.name] = external.external_data(tensor, folder)
    checkpoint.close()
    return replace(file, weights=weights, directory=path.parent, file_name=path.name)


def _with_digests(recipe: Recipe, digests: dict[str, str]) -> Recipe:
    if isinstance(recipe, StoredTensor):
        return replace(recipe, digest=digests[recipe.name])
    if isinstance(recipe, FixedArray):
        return recipe
    return replace(recipe, operands=tuple(_with_digests(operand, digests) for operand in recipe.operands))


def missing_weights(file: ModelFile) -> list[str]:
    """Initializers that are declared, and whose numbers are not there."""
    declared = filter(has_recipe, file.proto.graph.initializer)
    return [tensor.name for tensor in declared if not has_numbers(file, tensor)]


def ensure_weights(file: ModelFile, path: Path) -> None:
    """Raise UserError for a file whose graph can be read, but not run."""
    missing = missing_weights(file)
    if missing:
        raise UserError(
            f"{path} has no numbers for {len(missing)} of its weights ({some_of(missing)}), so that it cannot be run",
            f"Fill it: modelexport fill {quote_argument(path)} -m CHECKPOINT_FOLDER -o FILLED.onnx",
        )
