"""Inputs of `generate`, made from a sample of the inputs of `forward`.

    input_ids 2x8, labels, decoder_input_ids       input_ids 2x11, the first row with three tokens of padding on the
    attention_mask of ones                         left, attention_mask 2x11 with zeros there; no labels, no
                                                   decoder_input_ids

Padding is there so that a graph is made for it: a mask of ones could be left out, and positions would be the same in
every row. There are at least two rows, because exporters take an axis of size 1 for a constant. The length is a prime
number: code that fills up a last block asks first whether it is full, and an exporter keeps the answer for the sample.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from modelexport.capture.generation.captures import are_close
from modelexport.capture.generation.decoder_step import MASK

TOKENS = "input_ids"
_PADDING = 2  # columns of it, at least
_SHORTEST = 4  # tokens that are left where the sample may not be made longer
# `generate` makes these by itself, from tokens and mask.
_MADE_BY_GENERATE = ("labels", "position_ids", "cache_position", "past_key_values")


def make_generate_inputs(
    model: torch.nn.Module, sample: Mapping[str, torch.Tensor], given: bool = False
) -> dict[str, torch.Tensor]:
    """
    sample  inputs of `forward`
    given   whether they are the user's, whose tokens stay as they are: padding is then a matter of the mask alone
    """
    inputs = {name: tensor for name, tensor in sample.items() if given or not _is_made(name)}
    if len(next(iter(inputs.values()), ())) == 1:
        inputs = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
    if TOKENS not in inputs:
        return inputs if MASK in inputs else _mask_frames(model, inputs)
    return _hide_tokens(inputs) if given else _pad_left(model, inputs)


def _is_made(name: str) -> bool:
    return name.startswith("decoder_") or name in _MADE_BY_GENERATE


def _pad_left(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """More columns: padding in the first row, the first token again in the others."""
    tokens, padded = inputs[TOKENS], dict(inputs)
    count = _next_prime(tokens.shape[1] + _PADDING) - tokens.shape[1]
    padded.setdefault(MASK, torch.ones_like(tokens))
    for name, tensor in padded.items():
        if tensor.shape != tokens.shape or tensor.is_floating_point():
            continue
        columns = tensor[:, :1].repeat(1, count)
        if name in (TOKENS, MASK):
            columns[0] = _find_padding(model) if name == TOKENS else 0
        padded[name] = torch.cat([columns, tensor], dim=1)
    return padded


def _next_prime(number: int) -> int:
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number


def _hide_tokens(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tokens; where there is no mask yet, it hides the first ones of the first row."""
    tokens = inputs[TOKENS]
    if MASK in inputs or tokens.shape[1] < _PADDING + _SHORTEST:
        return {MASK: torch.ones_like(tokens), **inputs}
    mask = torch.ones_like(tokens)
    mask[0, :_PADDING] = 0
    return {**inputs, MASK: mask}


def _find_padding(model: torch.nn.Module) -> int:
    """The token for padding; where there is none, the end of text, or any token: the mask hides it."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    known = getattr(text, "vocab_size", None) or 0
    for settings in (getattr(model, "generation_config", None), config, text):
        for name in ("pad_token_id", "eos_token_id"):
            token = getattr(settings, name, None)
            first = token[0] if isinstance(token, list) and token else token
            if isinstance(first, int) and 0 <= first < known:
                return first
    return 0


def _mask_frames(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Sounds with a mask that hides the end of the first row, if the model's encoder makes any use of one."""
    find_encoder: Any = getattr(model, "get_encoder", None)
    encoder: Any = model if find_encoder is None else find_encoder()
    if MASK not in inspect.signature(encoder.forward).parameters:
        return inputs
    for tensor in inputs.values():
        for axis in range(1, tensor.dim()) if tensor.dim() in (2, 3) else ():
            mask = torch.ones(len(tensor), tensor.shape[axis], dtype=torch.int64, device=tensor.device)
            mask[0, -(tensor.shape[axis] // 3) :] = 0
            with suppress(Exception), torch.no_grad():  # only the model knows which axis is that of frames
                plain, hidden = encoder(**inputs), encoder(**inputs, **{MASK: mask})
                if not are_close(hidden["last_hidden_state"], plain["last_hidden_state"]):
                    return {**inputs, MASK: mask}
    return inputs
