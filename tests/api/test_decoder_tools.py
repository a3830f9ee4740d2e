"""Tools on an exported decoder: what they make runs in onnxruntime-genai, and its nodes answer for their modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import modelexport as mx
from modelexport.api.quantize import quantize
from modelexport.api.run_tool import run_tool

pytestmark = pytest.mark.slow

PROMPT, LENGTH = (5, 9, 33, 7), 12


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> mx.Package:
    """A package for onnxruntime-genai. Weights are large enough for tokens to differ."""
    folder = tmp_path_factory.mktemp("decoder")
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "vocab_size": 99,
        "max_position_embeddings": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder / "model")  # type: ignore[no-untyped-call]
    mx.export(str(folder / "model"), folder / "package", target="genai")
    return mx.open_package(folder / "package")


def generate(folder: Path) -> list[int]:
    """Tokens that onnxruntime-genai generates, the prompt included."""
    genai = pytest.importorskip("onnxruntime_genai")
    model = genai.Model(str(folder))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=LENGTH, do_sample=False)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(np.array([PROMPT], dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


def test_a_quantized_package_generates(decoder: mx.Package, tmp_path: Path) -> None:
    target = mx.PackageTarget(tmp_path / "int4", number_type="int4")
    change = mx.change_package(decoder, target, lambda file, path: quantize(file, path, weight_type="int4"))
    made = mx.open_package(tmp_path / "int4")
    assert change.ok
    assert len(generate(made.folder)) == LENGTH
    assert (made.info.components[0].cache, made.info.links) == (decoder.info.components[0].cache, ())
    record = made["decoder"].provenance
    products = {str(entry.attribution.module) for entry in record.nodes.values() if entry.op_type == "MatMulNBits"}
    layer = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    assert products == {f"model.layers.{number}.{path}" for number in range(2) for path in layer} | {"lm_head"}
    assert all(entry.attribution.owners for entry in record.nodes.values())
    assert mx.validate(made).ok


@pytest.mark.parametrize("tool", ["ort_fusions", "transformers", "ort:extended"])
def test_a_fused_package_generates_the_same(decoder: mx.Package, tmp_path: Path, tool: str) -> None:
    change = mx.change_package(
        decoder, mx.PackageTarget(tmp_path / "fused"), lambda file, path: run_tool(file, tool, path)
    )
    assert change.ok
    assert generate(tmp_path / "fused") == generate(decoder.folder)
    record = mx.open_package(tmp_path / "fused")["decoder"].provenance
    assert all(entry.attribution.owners for entry in record.nodes.values())


def test_fused_nodes_belong_to_all_modules_whose_work_they_do(decoder: mx.Package, tmp_path: Path) -> None:
    change = mx.change_package(
        decoder, mx.PackageTarget(tmp_path / "fused"), lambda file, path: run_tool(file, "ort_fusions", path)
    )
    entries = change.components["decoder"].provenance.nodes.values()
    owners = {
        name: [{call.path for call in entry.attribution.owners} for entry in entries if entry.op_type == name]
        for name in ("SkipSimplifiedLayerNormalization", "MultiHeadAttention")
    }
    # The addition before a norm is the layer's.
    assert {"model.layers.0", "model.layers.0.post_attention_layernorm"} in owners["SkipSimplifiedLayerNormalization"]
    assert {"model.layers.1", "model.norm"} in owners["SkipSimplifiedLayerNormalization"]
    assert len(owners["SkipSimplifiedLayerNormalization"]) == 4
    assert owners["MultiHeadAttention"] == [{f"model.layers.{number}.self_attn"} for number in range(2)]


def test_a_layer_is_extracted_with_its_cache(decoder: mx.Package, tmp_path: Path) -> None:
    target = tmp_path / "layer.onnx"
    extraction = mx.extract(decoder["decoder"].path, "model.layers.1", target, model=decoder.folder.parent / "model")
    states = {f"past_key_values.1.{part}" for part in ("key", "value")}
    assert states <= {end.name for end in extraction.inputs}
    assert {name.replace("past_key_values", "present") for name in states} <= {end.name for end in extraction.outputs}
    assert not [end.name for end in extraction.inputs if end.name.startswith("past_key_values.0")]
    assert extraction.ok
    assert mx.profile(target, runs=1, warmup=0).check.holds
    assert mx.verify(target, against=target).numbers_agree
