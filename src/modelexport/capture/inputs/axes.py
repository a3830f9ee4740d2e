"""Which axes of which inputs should be dynamic: one rule, by input name and rank.

Axis 0 is the batch. Token-like inputs also have a sequence axis, raw audio its samples. Sizes that the
architecture or the preprocessing fixes (pixels, mel frames, patches) stay static, as do tensors in lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

BATCH = "batch"
SEQUENCE = "sequence"
DECODER_SEQUENCE = "decoder_sequence"
AUDIO_SAMPLES = "audio_samples"

_PER_TOKEN = re.compile(
    r"(?P<part>|decoder_|encoder_|qformer_|mm_|global_)"
    r"(?P<kind>input_ids|attention_mask|token_type_ids|position_ids|inputs_embeds|hidden_states|bbox)"
)
_SAME_SEQUENCE = {"mm_", "global_"}
# One vector per token: the sequence is axis 1. The others hold one number per token: it is the last axis.
_VECTORS = {"inputs_embeds", "hidden_states", "bbox"}
# Not one row per sample: flattened patches of all images, and the layout of those patches.
_BATCHLESS = re.compile(r"(\w+_)?grid_thw|cache_position")
_MATRIX, _CUBE, _IMAGE_RANK = 2, 3, 4


def axis_names(name: str, rank: int, audio: bool = False) -> Mapping[int, str]:
    """The axes of one input; `audio` says that its sequence is that of raw samples."""
    if rank == 0 or _BATCHLESS.fullmatch(name) or _is_flattened(name, rank):
        return {}
    matched = _PER_TOKEN.fullmatch(name)
    if matched is None:
        return {0: BATCH, 1: AUDIO_SAMPLES} if name == "input_values" and rank == _MATRIX else {0: BATCH}
    if rank == 1 or (matched["kind"] == "position_ids" and rank > _MATRIX):
        return {0: BATCH} if rank == 1 else {}
    part = "" if matched["part"] in _SAME_SEQUENCE else matched["part"]
    sequence = AUDIO_SAMPLES if audio and name == "attention_mask" else f"{part}{SEQUENCE}"
    return {0: BATCH, _sequence_axis(matched["kind"], rank): sequence}


def _is_flattened(name: str, rank: int) -> bool:
    return name.startswith("pixel_values") and rank < _IMAGE_RANK - 1


def _sequence_axis(kind: str, rank: int) -> int:
    if kind in _VECTORS:
        return 1
    return 1 if kind == "attention_mask" and rank > _CUBE else rank - 1


def dynamic_axes(values: Mapping[str, Any]) -> Mapping[str, Mapping[int, str]]:
    """The axes rule for tensors at hand; axes that share a name have the same size."""
    audio = "input_values" in values and not {"input_ids", "inputs_embeds"} & set(values)
    sizes: dict[str, int] = {}
    axes: dict[str, Mapping[int, str]] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            named = axis_names(name, value.dim(), audio)
            if kept := _agreeing(name, value, named, sizes):
                axes[name] = kept
    return axes


def _agreeing(name: str, value: torch.Tensor, named: Mapping[int, str], sizes: dict[str, int]) -> Mapping[int, str]:
    """An axis of another size than its namesakes is broadcast (size 1: static) or has a name of its own."""
    kept: dict[int, str] = {}
    for axis, label in named.items():
        size = value.shape[axis]
        if size == sizes.setdefault(label, size):
            kept[axis] = label
        elif size > 1:
            kept[axis] = f"{name}_{label}"
    return kept
