"""Tiny models that generate, saved as folders, and their packages; each is made once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import modelexport as mx

# The folder of a model and that of its package, by family.
Generating = Callable[[str], tuple[Path, Path]]

TINY_SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FAMILIES: dict[str, dict[str, int]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen3": {"head_dim": 8},
    "rwkv": {"attention_hidden_size": 32, "context_length": 128},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0},
}


@pytest.fixture(scope="session")
def generating(tmp_path_factory: pytest.TempPathFactory) -> Generating:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    @cache
    def make(family: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp(family)
        sizes = {"vocab_size": 99, "pad_token_id": 0, "eos_token_id": 2} if family == "t5" else TINY_SIZES
        config = AutoConfig.for_model(family, **sizes, **_FAMILIES[family])
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        # Of the same sizes as mistral, and not with its weights.
        torch.manual_seed(1 if family == "qwen3" else 0)
        model = kind.from_config(config).eval()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in model.parameters():
                # Else all logits are nearly alike, and a fault changes no token.
                parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
        model.save_pretrained(folder / "model")
        mx.export(folder / "model", f"{folder}/package/")
        return folder / "model", folder / "package"

    return make
