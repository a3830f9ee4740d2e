"""Components of a model: the model loaded once, and an entry point for each file that it takes.

prepare_components(ModelSource("./qwen3"), step)      one entry point, `decoder`
prepare_components(ModelSource("./bert"), step)       one entry point, `model`: it does not generate
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.export import Step, bind_inputs
from modelexport.capture.generation.entry_points import find_entry_points
from modelexport.capture.isolation import isolate_model
from modelexport.capture.loading.models import load_model
from modelexport.capture.loading.third_party import LoadedModel
from modelexport.record.model_source import ModelSource

WHOLE = "model"


@dataclass(frozen=True)
class Components:
    """
    folder  the folder or hub id that the model came from, with the files that lie beside it; None for a live model
    inputs  of `generate`; empty for a model that does not generate
    """

    module: torch.nn.Module
    entries: tuple[EntryPoint, ...]
    source: str
    folder: Path | None = None
    notes: tuple[str, ...] = ()
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def configuration(self) -> Mapping[str, Any]:
        """The model's configuration, empty where it has none."""
        config: Any = getattr(self.module, "config", None)
        return config.to_dict() if hasattr(config, "to_dict") else {}


def prepare_components(source: ModelSource, step: Step) -> Components:
    model = source.model
    with step("load"):
        if isinstance(model, torch.nn.Module):
            loaded = LoadedModel(model, type(model).__name__)
        else:
            loaded = load_model(str(model), source)
    with step("inputs"):
        prepared = bind_inputs(loaded, source)
    can_generate = getattr(loaded.module, "can_generate", None)
    if not (callable(can_generate) and can_generate()):
        entry = EntryPoint(WHOLE, loaded.module.forward, prepared.inputs.tensors, prepared.axes)
        return Components(loaded.module, (entry,), prepared.source, loaded.folder, prepared.notes)
    with step("steps"), isolate_model(loaded.module):
        prompt = _pad_left(prepared.inputs.tensors)
        entries = find_entry_points(loaded.module, prompt)
    return Components(loaded.module, entries, prepared.source, loaded.folder, prepared.notes, prompt)


def _pad_left(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Inputs of `generate`, with the first tokens of the first row as padding."""
    kept = {name: tensor.clone() for name, tensor in inputs.items() if not name.startswith("decoder_")}
    tokens, mask = kept.get("input_ids"), kept.get("attention_mask")
    if tokens is not None and mask is not None and tokens.shape[1] > 3:
        mask[0, :2] = 0
    return kept
