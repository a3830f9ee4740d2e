"""Export without weights, and `fill`: together they give what a full export gives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.nets import perturbed

import modelexport as mx
from modelexport.errors import FileMalformed, FileUnreadable, ModelMismatch, ModelUnloadable, UserError
from modelexport.graph.file.declared import WEIGHT_KEY, missing_weights
from modelexport.graph.file.tagged_file import open_tagged

SIZE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def save_llama(folder: Path, seed: int = 0, **options: Any) -> Path:
    import transformers

    builder: Any = transformers.LlamaForCausalLM
    config = transformers.LlamaConfig(**SIZE | {"num_key_value_heads": 2, "vocab_size": 400} | options)
    torch.manual_seed(seed)
    model: Any = perturbed(builder(config)).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="60KB")
    return folder


@dataclass(frozen=True)
class Exported:
    """The same checkpoint in all three ways."""

    checkpoint: Path
    full: Path
    structure: Path
    filled: Path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """In bfloat16, in several shards: weights are cast to float32, and those of linear layers transposed."""
    home = tmp_path_factory.mktemp("fill")
    made = Exported(save_llama(home / "llama"), home / "full.onnx", home / "structure.onnx", home / "filled.onnx")
    mx.export(str(made.checkpoint), made.full)
    mx.export(str(made.checkpoint), made.structure, no_weights=True)
    mx.fill(made.structure, made.filled, model=made.checkpoint)
    return made


def test_a_filled_file_is_that_of_a_full_export_byte_for_byte(llama: Exported) -> None:
    assert len(list(llama.checkpoint.glob("*.safetensors"))) > 1
    assert llama.filled.read_bytes() == llama.full.read_bytes()
    records = [path.with_suffix(".hierarchy.json").read_bytes() for path in (llama.filled, llama.full)]
    assert records[0] == records[1]


def test_no_weight_is_in_the_structure_and_every_node_is_tagged(llama: Exported) -> None:
    structure, full = open_tagged(llama.structure), open_tagged(llama.full)
    assert structure.graph.fingerprint == full.graph.fingerprint
    large = [tensor for tensor in onnx.load(llama.structure).graph.initializer if np.prod(tensor.dims) > 256]
    assert {tensor.name for tensor in large} == set(missing_weights(structure))
    assert not any(tensor.raw_data for tensor in large)
    assert all(entry.attribution.owners for entry in structure.provenance.nodes.values())


def test_a_declared_weight_says_what_it_is_made_of(llama: Exported) -> None:
    tensors = {tensor.name: tensor for tensor in onnx.load(llama.structure).graph.initializer}
    name = "model.layers.0.self_attn.q_proj.weight"
    recipes = [
        json.loads(entry.value)
        for tensor in tensors.values()
        for entry in tensor.metadata_props
        if entry.key == WEIGHT_KEY and name in entry.value
    ]
    assert [recipe["op"] for recipe in recipes] == ["transpose"]
    (cast,) = recipes[0]["of"]
    (stored,) = cast["of"]
    assert (cast["op"], cast["dtype"], stored["dtype"], stored["shape"]) == ("cast", "F32", "BF16", [32, 32])
    shard = llama.checkpoint / stored["file"]
    content = load_file(shard)[name].view(torch.uint8).numpy().tobytes()
    assert shard.read_bytes()[stored["offset"] :][: len(content)] == content


def test_reading_verbs_take_a_structure(llama: Exported) -> None:
    assert not mx.compare(llama.structure, llama.full).differences
    assert mx.diff(llama.structure, llama.full).identical
    assert mx.cost(llama.structure).total == mx.cost(llama.full).total
    assert len(mx.query(llama.structure, "role=attention.query")) == SIZE["num_hidden_layers"]
    assert not [finding for finding in mx.validate(llama.structure).findings if finding.severity == "error"]


def test_verbs_that_run_a_file_say_what_is_missing(llama: Exported, tmp_path: Path) -> None:
    def refused(run: Any) -> None:
        with pytest.raises(UserError, match="has no numbers for") as caught:
            run()
        assert f"modelexport fill {llama.structure}" in caught.value.hint

    refused(lambda: mx.verify(llama.structure, str(llama.checkpoint)))
    refused(lambda: mx.profile(llama.structure))
    refused(lambda: mx.run_tool(llama.structure, "ort:all", tmp_path / "tool.onnx"))
    refused(lambda: mx.quantize(llama.structure, tmp_path / "int8.onnx"))
    refused(lambda: mx.attach(llama.structure, str(llama.checkpoint), tmp_path / "attached.onnx"))


def test_another_checkpoint_is_refused(llama: Exported, tmp_path: Path) -> None:
    other = save_llama(tmp_path / "other", seed=1)
    with pytest.raises(ModelMismatch, match="has other numbers"):
        mx.fill(llama.structure, tmp_path / "filled.onnx", model=other)
    assert not (tmp_path / "filled.onnx").exists()


def test_a_shard_that_is_missing_is_named(llama: Exported, tmp_path: Path) -> None:
    other = save_llama(tmp_path / "other")
    gone = sorted(other.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(FileUnreadable, match=gone.name):
        mx.fill(llama.structure, tmp_path / "filled.onnx", model=other)


def test_a_shape_that_is_another_is_told(llama: Exported, tmp_path: Path) -> None:
    with pytest.raises(ModelMismatch, match=r"is BF16 \[32, 48\]|is BF16 \[48, 32\]"):
        mx.fill(llama.structure, tmp_path / "filled.onnx", model=save_llama(tmp_path / "wide", intermediate_size=48))


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/model.safetensors", "model.bin"])
def test_an_index_names_no_file_outside_of_its_folder(llama: Exported, tmp_path: Path, name: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(FileMalformed, match="outside of its folder"):
        mx.fill(llama.structure, tmp_path / "filled.onnx", model=tmp_path)


@pytest.mark.parametrize("offsets", [[0, 1 << 40], [8, 4], [-4, 0], [0, 3]])
def test_a_tensor_lies_inside_of_its_file(llama: Exported, tmp_path: Path, offsets: list[int]) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(FileMalformed, match="does not fit it"):
        mx.fill(llama.structure, tmp_path / "filled.onnx", model=tmp_path)


def test_weights_of_a_configuration_come_from_any_checkpoint_of_it(llama: Exported, tmp_path: Path) -> None:
    """The names are those that a checkpoint has; a checkpoint in another type is cast."""
    structure = mx.export(str(llama.checkpoint / "config.json"), tmp_path / "structure.onnx", no_weights=True).path
    filled = mx.fill(structure, tmp_path / "filled.onnx", model=llama.checkpoint).path
    assert open_tagged(filled).graph.fingerprint == open_tagged(llama.full).graph.fingerprint
    assert mx.verify(filled, str(llama.checkpoint)).ok


def test_a_graph_that_is_not_optimized_refers_to_the_checkpoint_itself(llama: Exported, tmp_path: Path) -> None:
    """Nothing is transposed then: weights in their own type are external data, and the file runs as it is."""
    checkpoint = save_llama(tmp_path / "llama", dtype="float32")
    weights = {
        name: tensor.float() for path in checkpoint.glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    for path in checkpoint.glob("*.safetensors*"):
        path.unlink()
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    options: Any = {"no_optimize": True}
    full = mx.export(str(checkpoint), tmp_path / "full.onnx", **options).path
    structure = mx.export(str(checkpoint), tmp_path / "structure.onnx", no_weights=True, **options).path
    assert not missing_weights(open_tagged(structure))
    assert structure.stat().st_size < full.stat().st_size - 50_000
    assert mx.verify(structure, str(checkpoint)).ok
    assert mx.fill(structure, tmp_path / "filled.onnx", model=checkpoint).path.read_bytes() == full.read_bytes()


def test_weights_that_are_tied_stay_one(tmp_path: Path) -> None:
    checkpoint = save_llama(tmp_path / "tied", tie_word_embeddings=True)
    full = mx.export(str(checkpoint), tmp_path / "full.onnx", dtype="float16").path
    structure = mx.export(str(checkpoint), tmp_path / "structure.onnx", no_weights=True, dtype="float16").path
    assert mx.fill(structure, tmp_path / "filled.onnx", model=checkpoint).path.read_bytes() == full.read_bytes()


def test_what_needs_numbers_is_refused_without_weights(llama: Exported, tmp_path: Path) -> None:
    target, model = tmp_path / "out.onnx", str(llama.checkpoint)
    for options in ({"exporter": "torchscript"}, {"strategy": "htp"}, {"external_data": True}, {"fx_graph": "both"}):
        with pytest.raises(UserError):
            mx.export(model, target, no_weights=True, **options)
    with pytest.raises(UserError, match="one file of one forward pass"):
        mx.export(model, tmp_path / "folder", no_weights=True)
    with pytest.raises(ModelUnloadable, match="takes a folder or a configuration"):
        mx.export("somewhere.py:build", target, no_weights=True)


def test_a_file_with_its_weights_has_nothing_to_fill(llama: Exported, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to fill"):
        mx.fill(llama.full, tmp_path / "filled.onnx", model=llama.checkpoint)
