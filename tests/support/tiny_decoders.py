"""Tiny decoders of several families with random weights, and their ONNX files with cache, without attribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.support.generating import TINY_SIZES
from transformers import AutoConfig, AutoModelForCausalLM

from modelexport.capture.arguments import CallArguments, ExportRequest
from modelexport.capture.entry_point import EntryPoint, entered
from modelexport.capture.export import export_traced, trace_model
from modelexport.capture.generation.entry_points import find_entry_points
from modelexport.capture.generation.prepare import read_configuration
from modelexport.capture.generation.windows import exportable_windows
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.file.writing import save_model
from modelexport.targets.contract import Contract, ModelFacts, describe_graph, find_kind

PAD, WINDOW = TINY_SIZES["pad_token_id"], 8
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "phi3": {},
    "olmo2": {},
    "gemma2": {"head_dim": 8, "sliding_window": WINDOW},
    "mistral": {"sliding_window": WINDOW},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"n_layer": 2, "n_head": 4},
    "gpt_neox": {},
    "phi": {},
    "granite": {},
    "smollm3": {},
    "nemotron": {},
    "gemma3_text": {"head_dim": 8, "sliding_window": WINDOW, "num_hidden_layers": 7},
    "mixtral": {"num_local_experts": 4},
    "ernie4_5": {"head_dim": 8},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "sliding_window": WINDOW},
    "mamba": {"state_size": 4},
    "recurrent_gemma": {
        "head_dim": 8,
        "lru_width": 32,
        "attention_window_size": WINDOW,
        # Attention first: transformers takes the length of the past from the first layer of the cache.
        "block_types": ["attention", "recurrent"],
    },
    "deepseek_v3": {
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "q_lora_rank": 8,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
    },
}


@cache
def build_decoder(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**TINY_SIZES, **_FAMILIES[family]})
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        # Twice the usual spread: tokens that are told apart by more than rounding.
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def padded_prompt(batch: int = 2, length: int = 6, padding: int = 2) -> dict[str, torch.Tensor]:
    """Random tokens, of which the first row is padded on the left."""
    ids = torch.randint(3, 99, (batch, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    ids[0, :padding], mask[0, :padding] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(model: Any, prompt: dict[str, torch.Tensor], new_tokens: int) -> list[list[int]]:
    """New tokens of each row, the most likely ones."""
    options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}
    tokens: torch.Tensor = model.generate(**prompt, **options)[:, prompt["input_ids"].shape[1] :]
    rows: list[list[int]] = tokens.tolist()
    return rows


@dataclass(frozen=True)
class ExportedDecoder:
    model: torch.nn.Module
    entry: EntryPoint
    file: ModelFile


@cache
def export_decoder(family: str) -> ExportedDecoder:
    model = build_decoder(family)
    (entry,) = find_entry_points(model, padded_prompt())
    with exportable_windows(), entered(model, entry):
        run = trace_model(model, CallArguments(dict(entry.inputs)).kwargs)
        file = export_traced(run, "transformers", ExportRequest(entry.axes)).model
    return ExportedDecoder(model, entry, file)


def find_facts(decoder: ExportedDecoder) -> ModelFacts:
    graph = describe_graph(decoder.entry.name, decoder.file.proto.graph, decoder.entry.cache)
    return ModelFacts(read_configuration(decoder.model), find_kind([graph.name]), (graph,))


def write_decoder(decoder: ExportedDecoder, contract: Contract, folder: Path) -> Path:
    """The decoder and its configuration as the consumer loads them, without tokenizer."""
    facts = find_facts(decoder)
    path = folder / contract.file_of(facts.kind, decoder.entry.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(decoder.file, path)
    for name, text in contract.write_configuration(facts).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
