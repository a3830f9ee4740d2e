"""Attach and verify on files with a cache, under names of any tool; folders of files become packages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.support.generating import Generating, generating
from tests.support.nets import perturbed

import modelexport as mx
from modelexport.api.attach_package import name_components
from modelexport.api.package import Package
from modelexport.errors import FileUnreadable, FileUnwritable, InputError
from modelexport.record.provenance import Confidence

__all__ = ["generating"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# All keys come before all values, and the names of transformers' own exporter do not say which is which.
STRANGE = {
    **{f"past_key_values.{layer}.key": f"k{layer}" for layer in range(2)},
    **{f"past_key_values.{layer}.value": f"v{layer}" for layer in range(2)},
    **{f"present.{layer}.key": f"input.past_key_values.layers.{layer}.keys_out" for layer in range(2)},
    "input_ids": "tokens",
}


def build(window: int | None = None, layers: int = 2) -> torch.nn.Module:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SIZES, "num_hidden_layers": layers}
    build_model: Any = MistralForCausalLM  # without types
    return perturbed(build_model(MistralConfig(**sizes, sliding_window=window))).eval()


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return build()


@pytest.fixture(scope="module")
def exported(model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> mx.ExportResult:
    path = tmp_path_factory.mktemp("exported") / "decoder.onnx"
    return mx.export(model, path, task="text-generation-with-past")


def make_foreign(path: Path, target: Path, names: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> Path:
    """The graph without record, metadata and names of nodes; some values have other names, and some axes are fixed."""
    proto = onnx.load(path)
    del proto.metadata_props[:]
    for node in proto.graph.node:
        node.name = ""
        del node.metadata_props[:]
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = names.get(value.name, value.name)
    del proto.graph.value_info[:]
    inputs = sorted(proto.graph.input, key=lambda value: value.name.startswith("v"))
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in (sizes or {}):
                dim.dim_value = (sizes or {})[dim.dim_param]
    onnx.save(proto, target)
    return target


def count_agreeing(answers: mx.Provenance, truths: mx.Provenance) -> tuple[int, int, int]:
    """Nodes of both records, those with the same module, and those surely credited to another one."""
    renamed = {STRANGE.get(key, key): entry for key, entry in truths.nodes.items()}
    same = wrong = 0
    for key, entry in answers.nodes.items():
        answer, truth = entry.attribution, {owner.path for owner in renamed[key].attribution.owners}
        agrees = bool(truth & {owner.path for owner in answer.owners})
        same += agrees
        wrong += not agrees and answer.confidence >= Confidence.STRONG
    return len(renamed), same, wrong


@pytest.mark.parametrize("sizes", [{}, {"batch": 1, "sequence": 1}], ids=["open", "one-token"])
def test_a_cache_of_any_name_is_filled_by_running_the_model(
    model: torch.nn.Module, exported: mx.ExportResult, tmp_path: Path, sizes: Mapping[str, int]
) -> None:
    foreign = make_foreign(exported.path, tmp_path / "foreign.onnx", STRANGE, sizes)
    result = mx.attach(foreign, model, tmp_path / "tagged.onnx")
    assert not [note for note in result.notes if "other values" in note]
    nodes, same, wrong = count_agreeing(result.provenance, exported.provenance)
    assert same >= 0.97 * nodes
    assert wrong == 0
    verification = mx.verify(tmp_path / "tagged.onnx", model)
    assert verification.divergence is None
    assert {*STRANGE.values()} & {*verification.outputs}


def test_a_file_of_another_model_is_refused(exported: mx.ExportResult, tmp_path: Path) -> None:
    foreign = make_foreign(exported.path, tmp_path / "foreign.onnx", {})
    with pytest.raises(InputError, match="takes other inputs than any call"):
        mx.attach(foreign, build(layers=3), tmp_path / "tagged.onnx")
    assert not (tmp_path / "tagged.onnx").exists()


def make_folder(exported: mx.ExportResult, folder: Path) -> Path:
    folder.mkdir()
    make_foreign(exported.path, folder / "model.onnx", {})
    configuration = {"model": {"decoder": {"filename": "model.onnx"}}}
    (folder / "genai_config.json").write_text(json.dumps(configuration))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("inputs", "component"), [(["input_ids"], "embed_tokens"), (["input_ids", "image_features"], "embedding")]
)
def test_a_file_that_embeds_is_named_by_what_it_takes(inputs: list[str], component: str, tmp_path: Path) -> None:
    """onnxruntime-genai calls both of them `embedding`."""
    taken = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in inputs]
    returned = onnx.helper.make_tensor_value_info("inputs_embeds", onnx.TensorProto.FLOAT, ["n"])
    joined = onnx.helper.make_node("Sum", inputs, ["inputs_embeds"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([joined], "", taken, [returned])), tmp_path / "text.onnx")
    configuration = {"model": {"embedding": {"filename": "text.onnx"}, "vision": {"filename": "absent.onnx"}}}
    (tmp_path / "genai_config.json").write_text(json.dumps(configuration))
    named = name_components(tmp_path)
    assert (named["text.onnx"], named["absent.onnx"]) == (component, "vision_encoder")


def test_a_folder_becomes_a_package(model: torch.nn.Module, exported: mx.ExportResult, tmp_path: Path) -> None:
    folder = make_folder(exported, tmp_path / "built")
    package: Any = mx.attach(folder, model, tmp_path / "tagged")
    assert isinstance(package, Package)
    opened = mx.open_package(tmp_path / "tagged")
    assert opened.info.target == "genai"
    assert [*opened.components] == ["decoder"]
    decoder = opened["decoder"].info
    assert {(pair.past, pair.present) for pair in decoder.cache} == {
        (f"past_key_values.{layer}.{part}", f"present.{layer}.{part}")
        for layer in range(2)
        for part in ("key", "value")
    }
    assert {"genai_config.json", "tokenizer.json"} <= {*opened.info.files}
    assert opened.info.absent == ()


@pytest.mark.parametrize("target", ["optimum", "transformersjs"])
def test_an_encoder_decoder_in_files_of_others_becomes_a_package(
    generating: Generating, tmp_path: Path, target: str
) -> None:
    model, package = generating("t5")
    if target != "optimum":
        package = mx.export(model, tmp_path / "package", target=target, no_check=True).folder
    known = mx.open_package(package)
    for component in known.components.values():
        path = tmp_path / "foreign" / component.path.relative_to(package)
        path.parent.mkdir(parents=True, exist_ok=True)
        make_foreign(component.path, path, {})
    attached = mx.attach(tmp_path / "foreign", model, tmp_path / "tagged")
    assert isinstance(attached, Package)
    assert attached.components.keys() == known.components.keys()
    for name, component in known.components.items():
        assert attached[name].info.cache == component.info.cache
        nodes, _, wrong = count_agreeing(attached[name].provenance, component.provenance)
        assert nodes > 50
        assert wrong == 0
    assert {*attached.info.links} >= {*known.info.links}


def test_nothing_is_written_of_a_folder_that_cannot_be_attached(exported: mx.ExportResult, tmp_path: Path) -> None:
    folder = make_folder(exported, tmp_path / "built")
    with pytest.raises(InputError):
        mx.attach(folder, build(layers=3), tmp_path / "tagged", force=False)
    with pytest.raises(FileUnwritable, match="is read here"):
        mx.attach(folder, build(), folder / "tagged", force=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileUnreadable, match=r"no \.onnx file"):
        mx.attach(tmp_path / "empty", build(), tmp_path / "tagged", force=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["built", "empty"]
