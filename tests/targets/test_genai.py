"""onnxruntime-genai loads what its contract lays out, and generates the tokens of `generate`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.tiny_decoders import (
    PAD,
    build_decoder,
    export_decoder,
    generate,
    padded_prompt,
    write_decoder,
)

import modelexport as mx
from modelexport.errors import TargetUnsuitable
from modelexport.targets import genai
from modelexport.targets.genai import GENAI

onnxruntime_genai = pytest.importorskip("onnxruntime_genai")

NEW_TOKENS = 16
QUICK = ("llama", "opt")
FAMILIES = ("gpt2", "gpt_neox", "bloom", "qwen2", "qwen3", "phi3", "olmo2", "smollm3", "mixtral")
FORGETFUL = ("mistral", "gemma2")


def generate_with_genai(folder: Path, ids: torch.Tensor, new_tokens: int = NEW_TOKENS) -> list[list[int]]:
    model = onnxruntime_genai.Model(str(folder))
    parameters = onnxruntime_genai.GeneratorParams(model)
    length = ids.shape[1] + new_tokens
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=len(ids))
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(ids.numpy().astype(np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [generator.get_sequence(row)[ids.shape[1] :].tolist() for row in range(len(ids))]


def pad_right(prompt: dict[str, torch.Tensor]) -> torch.Tensor:
    """The same rows with their padding at the end, where genai looks for it."""
    rows = []
    for ids, mask in zip(prompt["input_ids"], prompt["attention_mask"], strict=True):
        text = ids[mask.bool()]
        rows.append(torch.nn.functional.pad(text, (0, len(ids) - len(text)), value=PAD))
    return torch.stack(rows)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_decoder(export_decoder("llama"), GENAI, tmp_path)


@pytest.mark.parametrize("family", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES)])
def test_tokens_are_those_of_generate_with_and_without_padding(family: str, tmp_path: Path) -> None:
    decoder = export_decoder(family)
    folder = write_decoder(decoder, GENAI, tmp_path)
    single, padded = padded_prompt(batch=1, length=5, padding=0), padded_prompt()
    assert generate_with_genai(folder, single["input_ids"]) == generate(decoder.model, single, NEW_TOKENS)
    assert generate_with_genai(folder, pad_right(padded)) == generate(decoder.model, padded, NEW_TOKENS)


@pytest.mark.parametrize(
    "family", [FORGETFUL[1], *(pytest.param(name, marks=pytest.mark.slow) for name in FORGETFUL[:1])]
)
def test_sliding_windows_are_exceeded_by_prompts_and_by_steps(family: str, tmp_path: Path) -> None:
    decoder = export_decoder(family)
    folder = write_decoder(decoder, GENAI, tmp_path)
    for length in (3, 12):
        prompt = padded_prompt(batch=2, length=length, padding=0)
        assert generate_with_genai(folder, prompt["input_ids"]) == generate(decoder.model, prompt, NEW_TOKENS)


def test_all_types_of_decoders_run_the_same_code(llama: Path) -> None:
    """What allows a model that genai has no name for to be called `decoder`."""
    prompt = padded_prompt()
    configuration = json.loads((llama / genai.FILE).read_text())
    tokens = generate(build_decoder("llama"), prompt, NEW_TOKENS)
    for model_type in genai.TYPES.split():
        configuration["model"]["type"] = model_type
        (llama / genai.FILE).write_text(json.dumps(configuration))
        assert generate_with_genai(llama, pad_right(prompt)) == tokens, model_type


def test_padding_on_the_left_is_taken_for_text(llama: Path) -> None:
    """What the documentation says of genai; if it changes, so does the documentation."""
    prompt = padded_prompt()
    tokens = generate(build_decoder("llama"), prompt, NEW_TOKENS)
    assert generate_with_genai(llama, prompt["input_ids"])[0] != tokens[0]


@pytest.mark.parametrize(("family", "words"), [("mamba", "[batch, 1]"), ("deepseek_v3", "same shape")])
def test_models_with_another_cache_are_refused_before_anything_is_exported(
    family: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(TargetUnsuitable, match=re.escape(words)):
        mx.export(build_decoder(family), tmp_path / "package", inputs=padded_prompt(), target="genai")
    assert not any(tmp_path.iterdir())
