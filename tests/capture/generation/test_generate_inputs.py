"""Inputs of `generate`: padding on the left, two rows, nothing that `generate` makes by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from modelexport.capture.generation.generate_inputs import make_generate_inputs

MODELS: Any = transformers
TOKENS = torch.arange(5, 21).reshape(2, 8)


def language_model(**settings: Any) -> nn.Module:
    sizes: dict[str, Any] = {"vocab_size": 99, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return MODELS.LlamaForCausalLM(MODELS.LlamaConfig(**sizes, num_attention_heads=2, **settings))


def test_first_row_is_padded_on_the_left() -> None:
    sample = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    inputs = make_generate_inputs(language_model(pad_token_id=3), sample)
    assert inputs["input_ids"][0].tolist() == [3, 3, 3, *TOKENS[0].tolist()]
    assert inputs["input_ids"][1, 3:].tolist() == TOKENS[1].tolist()
    assert inputs["attention_mask"].tolist() == [[0, 0, 0, *[1] * 8], [1] * 11]


@pytest.mark.parametrize(("tokens", "length"), [(2, 5), (5, 7), (6, 11), (8, 11), (12, 17)])
def test_no_block_is_full_at_a_prime_length(tokens: int, length: int) -> None:
    inputs = make_generate_inputs(language_model(), {"input_ids": torch.ones(2, tokens, dtype=torch.int64)})
    assert inputs["input_ids"].shape == inputs["attention_mask"].shape == (2, length)


def test_padding_without_a_token_for_it() -> None:
    inputs = make_generate_inputs(language_model(pad_token_id=None, eos_token_id=[7, 8]), {"input_ids": TOKENS})
    assert inputs["input_ids"][0, :2].tolist() == [7, 7]
    assert inputs["attention_mask"][0, :2].tolist() == [0, 0]


def test_what_generate_makes_is_left_out_unless_it_is_given() -> None:
    sample = {"input_ids": TOKENS, "labels": TOKENS, "decoder_input_ids": TOKENS, "token_type_ids": TOKENS * 0}
    inputs = make_generate_inputs(language_model(), sample)
    assert set(inputs) == {"input_ids", "attention_mask", "token_type_ids"}
    assert inputs["token_type_ids"].shape == inputs["input_ids"].shape
    assert "decoder_input_ids" in make_generate_inputs(language_model(), sample, given=True)


def test_given_tokens_stay_as_they_are() -> None:
    inputs = make_generate_inputs(language_model(), {"input_ids": TOKENS}, given=True)
    assert inputs["input_ids"] is TOKENS
    assert inputs["attention_mask"].tolist() == [[0, 0, *[1] * 6], [1] * 8]
    mask = torch.ones_like(TOKENS)
    assert make_generate_inputs(language_model(), {"input_ids": TOKENS, "attention_mask": mask}, given=True) == {
        "input_ids": TOKENS,
        "attention_mask": mask,
    }


def test_one_row_becomes_two() -> None:
    inputs = make_generate_inputs(language_model(), {"input_ids": TOKENS[:1]}, given=True)
    assert inputs["input_ids"].tolist() == [TOKENS[0].tolist()] * 2


def test_sounds_get_a_mask_where_the_encoder_uses_one() -> None:
    sizes: dict[str, Any] = {"vocab_size": 99, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    heads: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "pad_token_id": 0}
    config = MODELS.Speech2TextConfig(**sizes, **heads, input_feat_per_channel=8, conv_channels=16)
    model: nn.Module = MODELS.Speech2TextForConditionalGeneration(config)
    model.eval()
    inputs = make_generate_inputs(model, {"input_features": torch.randn(2, 24, 8)})
    assert inputs["attention_mask"].sum(-1).tolist() == [16, 24]
    listening = MODELS.WhisperConfig(**sizes, **heads, num_mel_bins=8, max_source_positions=12)
    other: nn.Module = MODELS.WhisperForConditionalGeneration(listening)
    other.eval()
    assert set(make_generate_inputs(other, {"input_features": torch.randn(2, 8, 24)})) == {"input_features"}
