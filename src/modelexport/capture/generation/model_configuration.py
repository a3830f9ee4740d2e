"""Configuration of a loaded model as plain values, by transformers' public methods."""

from __future__ import annotations

import json
from typing import Any

import torch

from modelexport.record.configuration import ModelConfiguration


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
