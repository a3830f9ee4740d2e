"""Components of a model: the model loaded once, and an entry point for each file that it takes.

    prepare_components(ModelSource("./qwen3"), step)      one entry point, `decoder`
    prepare_components(ModelSource("./bert"), step)       one entry point, `model`: it does not generate

Which entry points there are is found by running `generate` (entry_points.py), or comes with the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.export import Step, bind_inputs, load_source
from modelexport.capture.generation.entry_points import find_entry_points
from modelexport.capture.generation.generate_inputs import make_generate_inputs
from modelexport.capture.isolation import isolate_model
from modelexport.capture.loading.parts import find_part_entries
from modelexport.record.configuration import ModelConfiguration
from modelexport.record.model_source import ModelSource

WHOLE = "model"


@dataclass(frozen=True)
class Components:
    """
    module         the whole model
    entries        one for each file
    configuration  the model's own, for the consumer of the package
    folder         where files of its tokenizer lie; None for a live model
    kind           of components, where their names do not tell it
    beside         files of the folder that belong to the package as they are
    inputs         of `generate` that the entry points are right for; empty for a model that does not generate
    """

    module: torch.nn.Module
    entries: tuple[EntryPoint, ...]
    source: str
    configuration: ModelConfiguration
    folder: Path | None = None
    notes: tuple[str, ...] = ()
    kind: str = ""
    beside: tuple[Path, ...] = ()
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)


Refuse = Callable[[ModelConfiguration, bool], None]


def prepare_components(
    source: ModelSource,
    step: Step,
    refuse: Refuse = lambda *_: None,
    *,
    merged: bool = False,
    encodes_keys: bool = False,
) -> Components:
    """
    merged  one decoder for all steps of an encoder-decoder
    encodes_keys   the same, with keys and values of the encoder's states from the encoder
    refuse  raises for a model that is not wanted: its configuration, and whether it generates, are known before it runs
    """
    with step("load"):
        loaded = load_source(source)
    # Before inputs are made and `generate` runs: a consumer that cannot run the model is told at once.
    configuration, generates = read_configuration(loaded.module), can_generate(loaded.module)
    refuse(configuration, generates)
    notes, prompt = loaded.notes, {}
    if loaded.parts or loaded.entries:
        entries = loaded.entries or find_part_entries(loaded)
    else:
        with step("inputs"):
            prepared = bind_inputs(loaded, source)
        notes = prepared.notes
        if generates:
            given = bool(source.text or source.input or source.input_specs) or source.inputs is not None
            with step("steps"), isolate_model(loaded.module):
                prompt = make_generate_inputs(loaded.module, prepared.inputs.tensors, given=given)
                entries = find_entry_points(loaded.module, prompt, merged, encodes_keys)
                prompt = next((dict(entry.prompt) for entry in entries if entry.prompt), prompt)
        else:
            entries = (EntryPoint(WHOLE, loaded.module.forward, prepared.inputs.tensors, prepared.axes),)
    return Components(
        loaded.module, entries, loaded.source, configuration, loaded.folder, notes, loaded.kind, loaded.beside, prompt
    )


def can_generate(model: torch.nn.Module) -> bool:
    answer = getattr(model, "can_generate", None)
    return callable(answer) and bool(answer())


def read_configuration(model: torch.nn.Module) -> ModelConfiguration:
    """Empty for a model without configuration, which is not one of transformers."""
    config: Any = getattr(model, "config", None)
    generation: Any = getattr(model, "generation_config", None)
    if not hasattr(config, "to_json_string"):
        return ModelConfiguration({})
    find_text = getattr(config, "get_text_config", None)
    text: Any = find_text(decoder=True) if find_text is not None else config
    common = {name: getattr(text, name, None) for name in getattr(text, "attribute_map", {})}
    saved = {} if generation is None else json.loads(generation.to_json_string())
    # As `save_pretrained` writes it: without what is as everywhere, and with the class of the model.
    written = {"architectures": [type(model).__name__], **json.loads(config.to_json_string(use_diff=True))}
    return ModelConfiguration(written, {**text.to_dict(), **common}, saved)
