"""Export of packages: decoders with their cache, encoder-decoders, folders for consumers, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers as typed_transformers
from tests.support.packages import ENCODER

import modelexport as mx
from modelexport.api.export_package import find_absent
from modelexport.capture.generation.steps import record_steps
from modelexport.errors import FileUnwritable, UserError
from modelexport.record.hierarchy import TensorInfo
from modelexport.record.provenance import Confidence

pytestmark = pytest.mark.slow
transformers: Any = typed_transformers  # its models have no types
WINDOW = 6
SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def tokens() -> dict[str, torch.Tensor]:
    """A batch of two prompts, one of them padded on the left."""
    ids = torch.randint(3, 99, (2, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    ids[0, :2], mask[0, :2] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def build_mistral() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.MistralConfig(**SIZES, sliding_window=WINDOW)
    model: torch.nn.Module = transformers.MistralForCausalLM(config).eval()
    return model


@pytest.fixture(scope="module")
def mistral() -> torch.nn.Module:
    return build_mistral()


@pytest.fixture(scope="module")
def decoder(mistral: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> mx.ExportResult:
    path = tmp_path_factory.mktemp("decoder") / "mistral.onnx"
    return mx.export(mistral, path, task="text-generation-with-past")


def test_a_decoder_is_exported_with_its_cache_under_the_names_that_consumers_know(decoder: mx.ExportResult) -> None:
    session = onnxruntime.InferenceSession(decoder.path)
    inputs = {value.name: value.shape for value in session.get_inputs()}
    assert inputs["input_ids"] == ["batch", "sequence"]
    assert inputs["attention_mask"] == ["batch", "total_sequence"]
    assert inputs["past_key_values.0.key"] == ["batch", 1, "past_window", 16]
    assert {value.name for value in session.get_outputs()} == {
        "logits",
        *(f"present.{layer}.{part}" for layer in range(2) for part in ("key", "value")),
    }
    assert decoder.check is not None
    assert decoder.check.ok
    levels = {entry.attribution.confidence for entry in decoder.provenance.nodes.values()}
    assert not levels & {Confidence.NONE, Confidence.FALLBACK}


def test_one_file_gives_the_tokens_and_the_cache_of_generate_beyond_the_window(
    mistral: torch.nn.Module, decoder: mx.ExportResult
) -> None:
    session = onnxruntime.InferenceSession(decoder.path)
    outputs = [value.name for value in session.get_outputs()]
    run = record_steps(mistral, tokens(), 12)
    past = {
        value.name: np.zeros((2, 1, 0, 16), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values.")
    }
    chosen = []
    for number, call in enumerate(run.calls):
        feed = {name: call.arguments[name].numpy() for name in ("input_ids", "attention_mask", "position_ids")}
        results = dict(zip(outputs, session.run(None, feed | past), strict=True))
        chosen.append(results["logits"][:, -1].argmax(-1))
        past = {name: results[name.replace("past_key_values", "present")] for name in past}
        if number + 1 < len(run.calls):
            layers = run.calls[number + 1].arguments["past_key_values"].layers
            for index, layer in enumerate(layers):
                np.testing.assert_allclose(past[f"past_key_values.{index}.key"], layer.keys.numpy(), atol=1e-5)
    assert np.array_equal(np.stack(chosen, axis=1), run.tokens[:, 6:].numpy())
    # The window slides: the cache has forgotten what is out of it.
    assert past["past_key_values.0.key"].shape[2] == WINDOW - 1


def test_a_folder_for_genai_gives_the_tokens_of_generate(mistral: torch.nn.Module, tmp_path: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai")
    package = mx.export(mistral, tmp_path / "genai", target="genai")
    assert package.info.target == "genai"
    config = json.loads((package.folder / "genai_config.json").read_text())
    assert config["model"]["decoder"]["num_key_value_heads"] == 1
    model = genai.Model(str(package.folder))
    prompt = tokens()["input_ids"][1:]
    options = genai.GeneratorParams(model)
    options.set_search_options(max_length=18, min_length=18, do_sample=False)
    generator = genai.Generator(model, options)
    generator.append_tokens(prompt.numpy().astype(np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    expected = record_steps(mistral, {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}, 12).tokens[0]
    assert list(generator.get_sequence(0)) == expected.tolist()
    # Its windows stay as they were for everybody else.
    layer = transformers.cache_utils.DynamicSlidingWindowLayer
    assert layer.update.__module__ == layer.__module__


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> mx.Package:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    return mx.export(model, tmp_path_factory.mktemp("packages") / "t5", target="optimum")


def test_an_encoder_decoder_is_three_files_with_one_tree_of_modules(t5: mx.Package) -> None:
    files = {component.name: component.file for component in t5.info.components}
    assert files == {
        "encoder": "encoder_model.onnx",
        "decoder": "decoder_model.onnx",
        "decoder_with_past": "decoder_with_past_model.onnx",
    }
    assert all(result.check is not None and result.check.ok for result in t5.exported.values())
    assert t5.info.absent == ()
    # `shared` is the embedding of both halves.
    assert t5.provenance.components_of("shared") == ("encoder", "decoder", "decoder_with_past")
    assert t5.provenance.components_of("encoder.block.0") == ("encoder",)
    assert t5.provenance.components_of("decoder.block.0") == ("decoder", "decoder_with_past")


def test_links_lead_from_file_to_file(t5: mx.Package) -> None:
    links = {(link.source, link.output, link.target, link.input) for link in t5.info.links}
    assert ("encoder", "last_hidden_state", "decoder", "encoder_hidden_states") in links
    assert ("decoder", "present.0.encoder.key", "decoder_with_past", "past_key_values.0.encoder.key") in links
    cache = next(component.cache for component in t5.info.components if component.name == "decoder_with_past")
    assert {(pair.past, pair.present) for pair in cache} == {
        (f"past_key_values.0.decoder.{part}", f"present.0.decoder.{part}") for part in ("key", "value")
    }


def test_a_package_can_be_opened_again(t5: mx.Package) -> None:
    again = mx.open_package(t5.folder)
    assert again.info == t5.info
    assert mx.validate(again).ok


def test_several_files_do_not_fit_into_one(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(UserError, match="takes 3 files") as caught:
        mx.export(model, tmp_path / "t5.onnx", task="text2text-generation-with-past")
    assert "folder" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_empty_is_not_touched(mistral: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileUnwritable, match="not empty"):
        mx.export(mistral, tmp_path, target="optimum")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_target_is_a_folder(mistral: torch.nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one file"):
        mx.export(mistral, tmp_path / "mistral.onnx", target="genai")


@pytest.mark.parametrize(("target", "words"), [("gnai", "genai"), ("genai", "onnxruntime-genai")])
def test_a_consumer_that_does_not_run_the_model_is_reported_before_anything_is_exported(
    tmp_path: Path, target: str, words: str
) -> None:
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    with pytest.raises(UserError) as caught:
        mx.export(transformers.BertModel(config).eval(), tmp_path / "bert", target=target)
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert not list(tmp_path.iterdir())


def test_a_model_that_does_not_generate_has_no_cache(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    for output in ("bert.onnx", "bert"):
        with pytest.raises(UserError, match="does not generate"):
            mx.export(transformers.BertModel(config).eval(), tmp_path / output, task="feature-extraction-with-past")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"), [({"static": True}, "cache grows"), ({"jit_graph": "jit.txt"}, "several graphs")]
)
def test_options_that_do_not_fit_a_package_are_refused_before_anything_is_exported(
    mistral: torch.nn.Module, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        mx.export(mistral, tmp_path / "mistral", target="genai", **options)
    assert not list(tmp_path.iterdir())


def test_modules_that_generate_never_calls_are_listed(tmp_path: Path) -> None:
    model = build_mistral()
    model.add_module("lost_tower", torch.nn.Linear(4, 5))
    package = mx.export(model, tmp_path / "out", target="optimum")
    assert [(absent.path, absent.parameters) for absent in package.info.absent] == [("lost_tower", 25)]
    assert all(absent.reason for absent in package.info.absent)
    assert mx.open_package(tmp_path / "out").info.absent == package.info.absent


@pytest.mark.parametrize(("tied", "held", "listed"), [((), (), [3]), (("head.scale",), (), []), ((), ("scale",), [])])
def test_parameters_of_the_root_that_no_file_reads_are_listed(
    tied: tuple[str, ...], held: tuple[str, ...], listed: list[int]
) -> None:
    """The root owns nodes of nearly every file, which says nothing about its parameters."""
    record = replace(ENCODER, owners={"e1": ""}).provenance()
    scale = TensorInfo("scale", (3,), "float32", 12, tied)
    modules = {**record.hierarchy.modules, "": replace(record.hierarchy.modules[""], parameters=(scale,))}
    weights = {**record.initializers, **dict.fromkeys(held, record.nodes["e1"].attribution)}
    record = replace(record, hierarchy=replace(record.hierarchy, modules=modules), initializers=weights)
    absent = {each.path: each for each in find_absent([record])}
    assert [each.parameters for path, each in absent.items() if not path] == listed
    assert "vision" in absent
    assert all(each.reason for each in absent.values())
