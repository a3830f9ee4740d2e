"""onnxruntime-genai loads what its contract lays out, and generates the tokens of `generate`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from measure.generation.families import Family, find_family
from measure.generation.folders import save_folder
from measure.generation.genai_tokens import compare_tokens, generate_tokens
from measure.generation.models import IMAGE, IMAGE_END, IMAGE_START, Example, make_example
from measure.generation.models import NEW_TOKENS as STEPS
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
from modelexport.targets.genai_sections import FRAMES

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


def export_for_genai(family: Family, folder: Path) -> Path:
    save_folder(family, folder / "model")
    mx.export(folder / "model", folder / "package", target="genai")
    return folder / "package"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llava", "whisper"])
def test_tokens_behind_images_and_sound_are_those_of_generate(name: str, tmp_path: Path) -> None:
    family = find_family(name)
    if name == "whisper":  # genai makes spectrograms of this length
        longer = {**family.config, "max_source_positions": FRAMES // 2}
        family = replace(family, config=longer, floats={"input_features": (2, 10, FRAMES)})
    folder = export_for_genai(family, tmp_path)
    assert compare_tokens(folder, make_example(family)) == ""


def make_prompt(grids: list[list[int]]) -> dict[str, torch.Tensor]:
    """Images of these sizes in patches, four of which become one token, each with words behind it."""
    generator = torch.Generator().manual_seed(5)
    ids = [9, 10]
    for time, height, width in grids:
        images = [IMAGE] * (time * height * width // 4)
        ids += [IMAGE_START, *images, IMAGE_END, *torch.randint(8, 128, (3,), generator=generator).tolist()]
    sizes, tokens = torch.tensor(grids), torch.tensor([ids])
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "mm_token_type_ids": (tokens == IMAGE).long(),
        "pixel_values": torch.randn(int(sizes.prod(-1).sum()), 384, generator=generator),
        "image_grid_thw": sizes,
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_images_may_be_of_another_number_and_of_other_sizes_than_those_of_the_export(tmp_path: Path) -> None:
    family = find_family("qwen2_vl")
    folder, model = export_for_genai(family, tmp_path), make_example(family).model
    for grids in ([[1, 8, 8]], [[1, 4, 8], [1, 6, 2]], [[1, 4, 4], [1, 4, 4], [1, 2, 6]]):
        prompt = make_prompt(grids)
        tokens = Example(model, prompt).generate()[0, -STEPS:].tolist()
        assert generate_tokens(folder, prompt) == tokens, grids


@pytest.mark.parametrize(("family", "words"), [("mamba", "[batch, 1]"), ("deepseek_v3", "same shape")])
def test_models_with_another_cache_are_refused_before_anything_is_exported(
    family: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(TargetUnsuitable, match=re.escape(words)):
        mx.export(build_decoder(family), tmp_path / "package", inputs=padded_prompt(), target="genai")
    assert not any(tmp_path.iterdir())
