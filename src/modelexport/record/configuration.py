"""Configuration of a model as plain values: what transformers saves as `config.json` and `generation_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelConfiguration:
    """
    model       content of `config.json`
    decoder     configuration of the part that generates, under transformers' common names: GPT-2's `n_positions` is
                `max_position_embeddings` here
    generation  content of `generation_config.json`; empty if the model does not generate
    """

    model: Mapping[str, Any]
    decoder: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        return str(self.model.get("model_type", ""))

    @property
    def window(self) -> int | None:
        """How many tokens a layer with a sliding window attends to; the last one among them is the token itself."""
        size = self.decoder.get("sliding_window") or self.decoder.get("attention_chunk_size")
        return int(size) if size else None
