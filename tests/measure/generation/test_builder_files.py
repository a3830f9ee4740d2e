"""Files of the builder without names: what a name means, and that nodes are credited to the modules that it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from measure.generation.builder_files import build_file, measure_file, name_modules, save_model

pytest.importorskip("onnxruntime_genai")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/model/layers.0/attn/o_proj/MatMul_Q4", "model.layers.0.self_attn.o_proj"),
        ("/model/layers.1/attn/GroupQueryAttention", "model.layers.1.self_attn"),
        ("/model/layers.2/final_norm_layernorm/SkipLayerNorm", "model.norm"),
        ("/model/attn_mask_reformat/attn_mask_subgraph/Sub/Cast", "model"),
        ("/model/embed_tokens/Gather", "model.embed_tokens"),
        ("/lm_head/MatMul", "lm_head"),
    ],
)
def test_names_of_the_builder_are_modules(name: str, module: str) -> None:
    assert module in name_modules(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["qwen2", "phi3", "gemma"])
def test_nodes_are_credited_without_names(family: str, tmp_path: Path) -> None:
    """Packed weights with biases, a packed weight that the file cuts, an embedding that the head shares."""
    save_model(family, tmp_path / family)
    for precision in ("fp32", "int4"):
        built = build_file(tmp_path / family, tmp_path / precision, precision)
        row = measure_file(family, precision, tmp_path / family, built)
        assert row.share >= 0.97, row
        assert row.sure == 0, row
