"""Structure alone: a model of a folder or a configuration whose weights have type and shape, and no numbers.

    ./llama-70b               parameters know which tensors of the checkpoint they are made of, and how
    ./llama-70b/config.json   the same with the names that a checkpoint of this model has; there need not be one

transformers loads the checkpoint as it always does, by way of `state_dict`, and is given traced weights
(traced_weights.py) in the place of tensors. So names, types, ties and what is missing are as in a full export.
https://huggingface.co/docs/transformers/main_classes/model#transformers.PreTrainedModel.from_pretrained
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.isolation import seed_torch
from modelexport.capture.loading import pretrained
from modelexport.capture.loading.dtypes import loading_dtype, note_conversion
from modelexport.capture.loading.third_party import LoadedModel, explain_failure, library, quiet_transformers
from modelexport.capture.traced_weights import forget_numbers, stored_name, trace_stored
from modelexport.errors import ModelUnloadable
from modelexport.graph.file.checkpoint import Checkpoint, open_checkpoint
from modelexport.record.model_source import ModelSource
from modelexport.record.weight_recipe import StoredTensor

_HINT = "Give a folder with config.json and safetensors, or the path of a config.json."


def load_structure(source: str, path: Path, options: ModelSource) -> LoadedModel:
    folder, checkpoint = path if path.is_dir() else path.parent, None
    if path.is_dir():
        raw, weights = pretrained.open_checkpoint(path, allow_pickle=options.allow_pickle)
        if weights == "pickle":
            raise ModelUnloadable(f"--no-weights refers to tensors in safetensors, and {source!r} has a pickle", _HINT)
        checkpoint = None if weights is None else open_checkpoint(path)
    elif path.is_file() and path.suffix == ".json":
        raw = pretrained.read_config(path)
    else:
        raise ModelUnloadable(f"--no-weights takes a folder or a configuration, and {source!r} is neither", _HINT)
    with quiet_transformers():
        blueprint = pretrained.read_blueprint(source, path, raw, options)
        with explain_failure(f"transformers cannot build {source!r} without weights"):
            blueprint.ensure_buildable(options)
            module, report = _load_traced(blueprint, checkpoint, options)
    pretrained.refuse_foreign_weights(blueprint, module, report)
    forget_numbers(module, checkpoint)
    if checkpoint is not None:
        checkpoint.close()
    named = "its configuration" if checkpoint is None else "its checkpoint"
    notes = (*blueprint.notes, *pretrained.note_missing(report, options), f"no weights: they are declared by {named}")
    notes += note_conversion(raw, None if checkpoint is None else folder, options)
    loaded = LoadedModel(module.eval(), source, folder, notes=notes, processing=folder, dtype=loading_dtype(options))
    return replace(loaded, checkpoint=checkpoint)


def _load_traced(
    blueprint: pretrained.Blueprint, checkpoint: Checkpoint | None, options: ModelSource
) -> tuple[torch.nn.Module, Mapping[str, Any]]:
    builder = blueprint.builder
    if checkpoint is None or hasattr(builder, "from_config"):
        with torch.device("meta"), seed_torch(options.seed):
            empty = blueprint.build(blueprint.config, options)
        builder = type(empty)  # an Auto class takes no tensors in the place of a folder
    stored: Iterable[StoredTensor] = _name_stored(empty) if checkpoint is None else checkpoint.tensors.values()
    with seed_torch(options.seed):
        module, report = builder.from_pretrained(
            None,
            config=blueprint.config,
            state_dict={tensor.name: trace_stored(tensor) for tensor in stored},
            dtype=loading_dtype(options) or "auto",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    module.config.name_or_path = str(blueprint.origin)
    return module, report


def _name_stored(empty: torch.nn.Module) -> list[StoredTensor]:
    """What a checkpoint of a model would hold, by the names that it is saved under."""
    tensors = {name: tensor for name, tensor in empty.state_dict().items() if tensor.device.type == "meta"}
    with suppress(AttributeError, NotImplementedError):  # another version, or a conversion that goes one way only
        tensors = library("transformers.core_model_loading").revert_weight_conversion(empty, tensors)
    return [StoredTensor(name, stored_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()]
