"""Tiny models generate what can be compared: 32 tokens, the same each time, no token for ever, caches as stated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from measure.generation.families import find_family
from measure.generation.folders import make_tokenizer, save_folder
from measure.generation.models import EOS, PAD, PROMPTS, Example, make_example, make_generate_inputs
from measure.generation.trials import Trial, try_generation


@pytest.mark.parametrize("name", ["gemma2", "t5"])
def test_generation_is_as_stated(name: str) -> None:
    assert try_generation(find_family(name)).list_faults() == []


def test_decoders_are_padded_on_the_left_and_encoders_on_the_right() -> None:
    padding = PROMPTS[0] - PROMPTS[1]
    left = make_generate_inputs(find_family("llama"))
    assert left["attention_mask"].sum(1).tolist() == list(PROMPTS)
    assert left["input_ids"][1, :padding].eq(PAD).all()
    right = make_generate_inputs(find_family("t5"))
    assert right["input_ids"][1, -padding:].eq(PAD).all()


def test_a_trial_says_what_is_wrong() -> None:
    family = find_family("llama")
    tokens = (tuple(range(8, 40)),) * 2
    good = Trial(family, tokens, ("full",), is_repeatable=True, pads=True)
    assert good.list_faults() == []
    assert replace(good, cache=("sliding",)).list_faults() == ["the cache holds sliding"]
    assert replace(good, pads=False).list_faults() == ["padding matters"]
    assert replace(good, is_repeatable=False).list_faults() == ["another run gives other tokens"]
    assert replace(good, tokens=((9,) * 32,) * 2).list_faults() == ["1 different tokens"]
    ended = (*range(8, 39), EOS)
    assert replace(good, tokens=(ended, ended)).list_faults() == ["the end of text was generated"]


def test_what_a_model_raises_is_the_result() -> None:
    family = replace(find_family("llama"), config={"hidden_size": 33, "num_attention_heads": 0})
    assert try_generation(family).list_faults() == [try_generation(family).failure] != [""]


def test_a_saved_folder_generates_the_same(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, MarianMTModel

    family = find_family("marian")
    save_folder(family, tmp_path)
    example = make_example(family)
    loaded = Example(MarianMTModel.from_pretrained(tmp_path), example.inputs)
    assert torch.equal(loaded.generate(), example.generate())
    assert AutoTokenizer.from_pretrained(tmp_path).padding_side == "right"


def test_the_tokenizer_has_the_ids_of_the_models() -> None:
    tokenizer = make_tokenizer()
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.convert_tokens_to_ids("<image>") == 4
    assert len(tokenizer) == 128
    assert tokenizer.decode(tokenizer("the hand of it").input_ids) == "the hand of it"
