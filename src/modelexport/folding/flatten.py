"""A model without functions: exactly as it was before it was folded, or else with functions put in their place."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from google.protobuf.message import DecodeError

from modelexport.errors import RecordUnreadable
from modelexport.folding.recipe import Recipe, read_recipe
from modelexport.folding.restoring import digest, has_same_opsets, restored
from modelexport.graph.folded import is_folded
from modelexport.graph.index import index_model

_CHANGED = "the graph was changed after it was folded"
_GONE = "what folding wrote down is no longer in the file"


@dataclass(frozen=True, eq=False)
class Restored:
    """
    model  the flat model; None if it cannot be had exactly
    note   why not
    record the packed record that was not in the flat model, but beside it
    """

    model: onnx.ModelProto | None
    record: str = ""
    note: str = ""


def restore_model(model: onnx.ModelProto) -> Restored:
    """The model that was folded, if this one is still what folding made of it."""
    if not is_folded(model):
        return Restored(None)
    try:
        recipe = read_recipe(model)
    except RecordUnreadable as error:
        return Restored(None, note=error.message)
    if recipe is None:
        return Restored(None, note=_GONE)
    if recipe.graph != index_model(model).fingerprint:
        return Restored(None, note=_CHANGED)
    return _tried(model, recipe)


def _tried(model: onnx.ModelProto, recipe: Recipe) -> Restored:
    try:
        flat = restored(model, recipe)
    except (ValueError, LookupError, TypeError, StopIteration, RuntimeError, DecodeError) as error:
        return Restored(None, note=f"what folding wrote down does not fit the file: {error}")
    if digest(flat.graph) != recipe.flat or not has_same_opsets(model, recipe):
        return Restored(None, note=_CHANGED)
    return Restored(flat, recipe.record)
