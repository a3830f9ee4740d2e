"""Tokens of onnxruntime-genai: a folder that was exported for it, loaded and run as its users do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measure.generation.models import IMAGE, NEW_TOKENS, Example


def compare_tokens(folder: Path, example: Example) -> str:
    """What is wrong; empty where every prompt, alone, gives the tokens of `generate`."""
    for row, inputs in enumerate(list_prompts(example)):
        alone = Example(example.model, inputs)
        want = alone.generate()[0, -NEW_TOKENS:].tolist()
        got = generate_tokens(folder, inputs, start=_find_start(example.model))
        if want != got:
            differing = [number for number, pair in enumerate(zip(want, got, strict=False)) if pair[0] != pair[1]]
            return f"prompt {row}, token {differing[0] if differing else len(got)} is another"
    return ""


def list_prompts(example: Example) -> Iterator[dict[str, torch.Tensor]]:
    """Inputs of each row without padding: genai pads on the right, and takes padding on the left for text."""
    masks = example.inputs.get("attention_mask")
    rows = len(next(iter(example.inputs.values()))) if masks is None else len(masks)
    for row in range(rows):
        alone = {}
        for name, tensor in example.inputs.items():
            share = len(tensor) // rows  # patches of images lie in one list
            own = tensor[row * share : (row + 1) * share]
            per_token = masks is not None and tensor.shape == masks.shape
            alone[name] = own[:, masks[row] != 0] if per_token and masks is not None else own
        yield alone


def _find_start(model: Any) -> int | None:
    """What a decoder beside an encoder starts with."""
    return model.generation_config.decoder_start_token_id if model.config.is_encoder_decoder else None


def generate_tokens(folder: Path, inputs: Mapping[str, torch.Tensor], start: int | None = None) -> list[int]:
    """New tokens behind a prompt, greedily.

    start  the prompt of a model that reads sound
    """
    import onnxruntime_genai as genai

    model = genai.Model(str(folder))
    prompt = inputs["input_ids"].int().numpy() if start is None else np.array([[start]], np.int32)
    parameters = genai.GeneratorParams(model)
    length = prompt.shape[1] + NEW_TOKENS
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=1)
    generator = genai.Generator(model, parameters)
    media = {name: tensor.numpy() for name, tensor in inputs.items() if name not in ("input_ids", "attention_mask")}
    if media:
        named = genai.NamedTensors()
        counted = {"num_image_tokens": np.array([(prompt == IMAGE).sum()])} if start is None else {}
        for name, array in {"input_ids": prompt, **media, **counted}.items():
            named[name] = array
        generator.set_inputs(named)
    else:
        generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    tokens: list[int] = generator.get_sequence(0).tolist()
    return tokens[prompt.shape[1] :]
