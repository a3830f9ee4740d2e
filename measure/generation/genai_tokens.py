"""Tokens of onnxruntime-genai: a folder that was exported for it, loaded and run as its users do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from measure.generation.models import NEW_TOKENS, Example


def compare_tokens(folder: Path, example: Example) -> str:
    """What is wrong; empty where every prompt, alone, gives the tokens of `generate`."""
    for row, prompt in enumerate(list_prompts(example)):
        alone = Example(example.model, {"input_ids": prompt[None], "attention_mask": torch.ones_like(prompt[None])})
        want = alone.generate()[0, -NEW_TOKENS:].tolist()
        got = generate_tokens(folder, prompt)
        if want != got:
            differing = [number for number, pair in enumerate(zip(want, got, strict=False)) if pair[0] != pair[1]]
            return f"prompt {row}, token {differing[0] if differing else len(got)} is another"
    return ""


def list_prompts(example: Example) -> Iterator[torch.Tensor]:
    """Tokens of each row without padding: genai pads on the right, and takes padding on the left for text."""
    for tokens, mask in zip(example.inputs["input_ids"], example.inputs["attention_mask"], strict=True):
        yield tokens[mask != 0]


def generate_tokens(folder: Path, prompt: torch.Tensor) -> list[int]:
    """New tokens behind a prompt, greedily."""
    import onnxruntime_genai as genai

    model = genai.Model(str(folder))
    parameters = genai.GeneratorParams(model)
    length = len(prompt) + NEW_TOKENS
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=1)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(prompt[None].int().numpy())
    while not generator.is_done():
        generator.generate_next_token()
    tokens: list[int] = generator.get_sequence(0).tolist()
    return tokens[len(prompt) :]
