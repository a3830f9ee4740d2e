"""Reference: what the model itself computes, step by step, its cache read under the names of the files.

steps = generate_steps(example)                 tokens of `generate`, and the cache after each of its calls
run_forward(family, model, tokens, mask)        logits and cache of one call without a past
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from measure.generation.chain import Arrays
from measure.generation.models import NEW_TOKENS, Example

# Arguments and outputs of `forward` that are caches.
_CACHES = ("past_key_values", "cache_params", "state")
_PARTS = {"keys": "key", "values": "value"}


@dataclass(frozen=True)
class Call:
    """One call of the model: its arguments that are tensors, and the cache after it."""

    arguments: Arrays
    cache: Arrays


@dataclass(frozen=True)
class GeneratedSteps:
    """
    tokens  that were generated, a row for each prompt
    first   what the decoder was given first
    """

    tokens: np.ndarray
    first: np.ndarray
    calls: tuple[Call, ...]


def generate_steps(example: Example) -> GeneratedSteps:
    """Run `generate` greedily, and look at every call of the model."""
    calls: list[Call] = []

    def record(_: Any, __: Any, kwargs: Mapping[str, Any], outputs: Any) -> None:
        tensors = {name: value.numpy(force=True) for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        # Copied: a cache may be changed in place by the next call.
        cache = read_cache(outputs, kwargs) | read_attributes(example.model)
        calls.append(Call(tensors, {name: array.copy() for name, array in cache.items()}))

    handle = example.model.register_forward_hook(record, with_kwargs=True)
    try:
        with torch.no_grad(), keep_attributes(example.model):
            tokens = example.generate()
    finally:
        handle.remove()
    arguments = calls[0].arguments
    first = arguments["decoder_input_ids"] if "decoder_input_ids" in arguments else example.inputs["input_ids"].numpy()
    return GeneratedSteps(tokens[:, -NEW_TOKENS:].numpy(), first, tuple(calls))


def run_forward(model: Any, inputs: Mapping[str, torch.Tensor], tokens: np.ndarray, mask: np.ndarray) -> Call:
    """One call on all tokens, from an empty cache; its logits are among the arrays as `logits`.

    inputs  of the encoder, for models that have one; what else there is for each token
    """
    accepted = inspect.signature(model.forward).parameters
    if model.config.is_encoder_decoder:
        arguments = {**inputs, "decoder_input_ids": torch.from_numpy(tokens)}
    else:
        positions = np.where(mask == 0, 0, np.cumsum(mask, axis=1) - 1)
        offered = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
        arguments = {name: torch.from_numpy(array) for name, array in offered.items() if name in accepted}
        arguments |= inputs
    with torch.no_grad(), keep_attributes(model):
        outputs, cache = model(**arguments, use_cache=True), {}
        if not read_cache(outputs, {}) and "past_key_values" in accepted:
            cache = {"past_key_values": DynamicCache(config=model.config)}  # it does not return what it made itself
    with torch.no_grad(), keep_attributes(model):
        outputs = model(**arguments, **cache, use_cache=True) if cache else outputs
        states = read_cache(outputs, cache) | read_attributes(model)
    return Call({"logits": outputs["logits"].numpy()}, states)


@contextmanager
def keep_attributes(model: torch.nn.Module) -> Iterator[None]:
    """Some modules keep their state in attributes, and begin the next text with it: afterwards they are as before."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).update(attributes)


def read_attributes(model: torch.nn.Module) -> Arrays:
    """Tensors in attributes of modules that are neither parameters nor buffers, by path."""
    return {
        f"{path}.{name}": value.numpy(force=True)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


def read_cache(outputs: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Arrays:
    """Tensors of a cache by their names without prefix: `0.key`, `0.decoder.key`, `1.conv_states`."""
    held = [source[name] for source in (outputs, kwargs) for name in _CACHES if source.get(name) is not None]
    return {name: tensor.numpy(force=True) for name, tensor in _walk_cache(held[0])} if held else {}


def _walk_cache(cache: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if hasattr(cache, "cross_attention_cache"):
        for part, inner in (("decoder", cache.self_attention_cache), ("encoder", cache.cross_attention_cache)):
            for name, tensor in _walk_cache(inner):
                layer, _, rest = name.partition(".")
                yield f"{layer}.{part}.{rest}", tensor
    elif hasattr(cache, "layers"):
        for number, layer in enumerate(cache.layers):
            for name, value in vars(layer).items():
                yield from _name_tensors(f"{number}.{_PARTS.get(name, name)}", value)
    else:
        yield from ((str(number), tensor) for number, tensor in enumerate(cache) if isinstance(tensor, torch.Tensor))


def _name_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """A number is part of the name where there are several."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    tensors = {key: item for key, item in items if isinstance(item, torch.Tensor)}
    if isinstance(value, torch.Tensor):
        yield name, value
    elif len(tensors) == 1:
        yield name, next(iter(tensors.values()))
    else:
        yield from ((f"{name}.{key}", tensor) for key, tensor in tensors.items())
