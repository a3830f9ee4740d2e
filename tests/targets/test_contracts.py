"""Contracts of consumers: files, configuration, and what they refuse, from facts alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from modelexport.errors import TargetUnsuitable, UnknownName
from modelexport.record.configuration import ModelConfiguration
from modelexport.record.package import Axis, CachePair
from modelexport.targets.catalogue import TARGETS, find_contract
from modelexport.targets.contract import (
    DECODER,
    ENCODER_DECODER,
    FIRST_CALL,
    MULTIMODAL,
    SINGLE,
    ComponentGraph,
    ModelFacts,
    Shape,
    expect_kind,
    find_kind,
    is_side_file,
)
from modelexport.targets.transformersjs import VARIANTS, name_variant

LAYERS = 3
TOKENS: Shape = (Axis.BATCH, Axis.SEQUENCE)


def make_decoder(key: Shape = (Axis.BATCH, 2, Axis.PAST, 8), windows: tuple[int, ...] = ()) -> ComponentGraph:
    """A decoder of three layers; those in `windows` forget."""
    states: dict[str, Shape] = {}
    for layer in range(LAYERS):
        shape = (*key[:2], Axis.WINDOW, *key[3:]) if layer in windows else key
        states |= {f"{layer}.key": shape, f"{layer}.value": shape}
    inputs = {"input_ids": TOKENS, "attention_mask": (Axis.BATCH, Axis.TOTAL), "position_ids": TOKENS}
    pasts = {f"past_key_values.{name}": shape for name, shape in states.items()}
    pairs = tuple(CachePair(f"past_key_values.{name}", f"present.{name}") for name in states)
    outputs: dict[str, Shape] = {"logits": (*TOKENS, 99), **{f"present.{name}": () for name in states}}
    return ComponentGraph("decoder", {**inputs, **pasts}, outputs, pairs)


LLAMA = ModelConfiguration(
    {"model_type": "llama"},
    {
        "model_type": "llama",
        "max_position_embeddings": 128,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "sliding_window": 8,
        "pad_token_id": 0,
    },
    {"bos_token_id": 1, "eos_token_id": [2, 3], "do_sample": True, "top_k": 7, "temperature": None},
)
FACTS = ModelFacts(LLAMA, DECODER, (make_decoder(),))


def renamed(model_type: str) -> ModelConfiguration:
    return ModelConfiguration({"model_type": model_type}, {**LLAMA.decoder, "model_type": model_type}, LLAMA.generation)


def test_genai_configuration_is_read_from_the_configuration_and_the_graph() -> None:
    files = find_contract("genai").write_configuration(FACTS)
    content = json.loads(files["genai_config.json"])
    model, decoder = content["model"], content["model"]["decoder"]
    assert (model["type"], model["vocab_size"], model["context_length"]) == ("llama", 99, 128)
    assert (model["bos_token_id"], model["eos_token_id"], model["pad_token_id"]) == (1, [2, 3], 0)
    assert (decoder["filename"], decoder["num_hidden_layers"]) == ("model.onnx", LAYERS)
    assert (decoder["head_size"], decoder["num_key_value_heads"], decoder["num_attention_heads"]) == (8, 2, 4)
    assert set(decoder["inputs"]) >= {"input_ids", "attention_mask", "position_ids", "past_key_names"}
    assert "sliding_window" not in decoder
    assert content["search"] == {"do_sample": True, "top_k": 7, "max_length": 128, "past_present_share_buffer": False}
    assert json.loads(files["config.json"]) == {"model_type": "llama"}


def test_genai_is_not_told_of_inputs_that_the_graph_does_not_have() -> None:
    decoder = make_decoder()
    without = {name: shape for name, shape in decoder.inputs.items() if name != "position_ids"}
    facts = replace(FACTS, components=(replace(decoder, inputs=without),))
    content = json.loads(find_contract("genai").write_configuration(facts)["genai_config.json"])
    assert "position_ids" not in content["model"]["decoder"]["inputs"]


def test_genai_describes_the_length_of_caches_that_forget() -> None:
    """The layers keep 7 of a window of 8: the token itself is not in the past."""
    facts = replace(FACTS, components=(make_decoder(windows=(0, 2)),))
    content = json.loads(find_contract("genai").write_configuration(facts)["genai_config.json"])
    window = content["model"]["decoder"]["sliding_window"]
    assert (window["window_size"] + window["cache_slack"], window["layers"]) == (7, [0, 2])


def test_genai_has_one_type_for_decoders_that_it_does_not_know() -> None:
    facts = replace(FACTS, configuration=renamed("opt"))
    content = json.loads(find_contract("genai").write_configuration(facts)["genai_config.json"])
    assert content["model"]["type"] == "decoder"


def test_padding_is_the_end_of_text_where_there_is_no_other() -> None:
    configuration = replace(LLAMA, decoder={**LLAMA.decoder, "pad_token_id": None})
    files = find_contract("genai").write_configuration(replace(FACTS, configuration=configuration))
    assert json.loads(files["genai_config.json"])["model"]["pad_token_id"] == 2


STATE = CachePair("past_key_values.0.conv_states", "present.0.conv_states")
DECODERS = {
    "conv_states": replace(make_decoder(), cache=(STATE,), inputs={"input_ids": TOKENS, STATE.past: ("batch", 4)}),
    "token_type_ids": replace(make_decoder(), inputs={**make_decoder().inputs, "token_type_ids": TOKENS}),
    "[batch, 1]": replace(make_decoder(), inputs={**make_decoder().inputs, "input_ids": ("batch", 1)}),
    "[3, batch, sequence]": replace(make_decoder(), inputs={**make_decoder().inputs, "position_ids": (3, *TOKENS)}),
    "same shape": replace(
        make_decoder(), inputs={**make_decoder().inputs, "past_key_values.1.value": (Axis.BATCH, 2, Axis.PAST, 4)}
    ),
    "no cache": replace(make_decoder(), cache=(), inputs={"input_ids": TOKENS}),
}


@pytest.mark.parametrize("words", DECODERS)
def test_genai_refuses_what_it_cannot_feed_and_says_what(words: str) -> None:
    with pytest.raises(TargetUnsuitable) as error:
        find_contract("genai").refuse(replace(FACTS, components=(DECODERS[words],)))
    assert words in error.value.message
    assert error.value.exit_code == 2


def test_a_window_of_unknown_size_is_refused() -> None:
    unknown = replace(LLAMA, decoder={**LLAMA.decoder, "sliding_window": None})
    with pytest.raises(TargetUnsuitable, match="unknown"):
        find_contract("genai").refuse(replace(FACTS, configuration=unknown, components=(make_decoder(windows=(1,)),)))


@pytest.mark.parametrize("kind", [FIRST_CALL, SINGLE])
def test_a_kind_that_the_consumer_does_not_run_is_refused_by_the_configuration_alone(kind: str) -> None:
    with pytest.raises(TargetUnsuitable, match=r"it runs decoders .*, not "):
        find_contract("genai").refuse(ModelFacts(renamed("t5"), kind))


def test_encoder_decoders_that_genai_has_no_code_for_are_refused_by_the_configuration_alone() -> None:
    with pytest.raises(TargetUnsuitable, match="of encoder-decoders it runs whisper"):
        find_contract("genai").refuse(ModelFacts(renamed("t5"), ENCODER_DECODER))


@pytest.mark.parametrize(
    ("model_type", "key"),
    [
        ("llama", (Axis.BATCH, 2, Axis.PAST, 8)),
        ("gpt2", (Axis.BATCH, 4, Axis.PAST, 8)),
        ("gemma", (Axis.BATCH, 2, Axis.PAST, 16)),
        ("falcon", (Axis.BATCH, 1, Axis.PAST, 8)),
    ],
)
def test_optimum_runs_caches_that_it_would_make_itself(model_type: str, key: Shape) -> None:
    configuration = renamed(model_type)
    configuration = replace(configuration, decoder={**configuration.decoder, "num_key_value_heads": 2, "head_dim": 16})
    facts = ModelFacts(configuration, DECODER, (make_decoder(key),))
    find_contract("optimum").refuse(facts)
    if model_type != "falcon":
        with pytest.raises(TargetUnsuitable, match="empty cache"):
            find_contract("optimum").refuse(replace(facts, components=(make_decoder((*key[:1], 3, *key[2:])),)))


def test_optimum_refuses_states_that_are_no_keys_and_values() -> None:
    with pytest.raises(TargetUnsuitable, match="conv_states"):
        find_contract("optimum").refuse(replace(FACTS, components=(DECODERS["conv_states"],)))


def test_transformersjs_refuses_architectures_that_it_has_no_class_for() -> None:
    contract = find_contract("transformersjs")
    contract.refuse(ModelFacts(LLAMA, DECODER))
    with pytest.raises(TargetUnsuitable, match="no class for 'mamba'"):
        contract.refuse(ModelFacts(renamed("mamba"), DECODER))


def test_transformersjs_refuses_caches_that_forget() -> None:
    with pytest.raises(TargetUnsuitable, match=r"past_key_values\.0\.key"):
        find_contract("transformersjs").refuse(replace(FACTS, components=(make_decoder(windows=(0,)),)))


def test_transformersjs_is_told_which_files_have_their_weights_elsewhere() -> None:
    contract = find_contract("transformersjs")
    file = contract.file_of(DECODER, "decoder")
    files = contract.write_configuration(replace(FACTS, external=frozenset({file})))
    written = json.loads(files["config.json"])["transformers.js_config"]
    assert written == {"use_external_data_format": {"model.onnx": 1}}
    assert contract.data_file(file) == "onnx/model.onnx_data"
    assert "transformers.js_config" not in json.loads(contract.write_configuration(FACTS)["config.json"])


def test_settings_of_transformersjs_that_are_none_are_replaced() -> None:
    list_external = find_contract("transformersjs").list_external
    assert list_external({"transformers.js_config": 3, "a": 1}, frozenset()) == {"a": 1}
    kept = list_external({"transformers.js_config": {"dtype": "q4"}}, frozenset({"onnx/model.onnx"}))
    assert kept["transformers.js_config"] == {"dtype": "q4", "use_external_data_format": {"model.onnx": 1}}


def test_transformersjs_names_states_and_variants() -> None:
    rename = find_contract("transformersjs").rename
    assert rename("past_key_values.1.conv_states") == "past_conv.1"
    assert rename("present.12.recurrent_states") == "present_recurrent.12"
    assert rename("past_key_values.1.key") == "past_key_values.1.key"
    assert name_variant("onnx/model.onnx", "int4") == "onnx/model_q4.onnx"
    assert len({name_variant("onnx/model.onnx", number_type) for number_type in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize(
    ("components", "kind"),
    [
        (["decoder"], DECODER),
        (["encoder", "decoder", "decoder_with_past"], ENCODER_DECODER),
        (["encoder", "decoder_merged"], ENCODER_DECODER),
        (["vision_encoder", "embed_tokens", "decoder"], MULTIMODAL),
        (["vision_encoder", "embed_tokens", "decoder", "decoder_with_past"], FIRST_CALL),
        (["model"], SINGLE),
    ],
)
def test_kinds_and_files(components: list[str], kind: str) -> None:
    assert find_kind(components) == kind
    for target in ("", *TARGETS):
        contract = find_contract(target)
        if kind in contract.files:
            assert len({contract.file_of(kind, name) for name in contract.files[kind]}) == len(contract.files[kind])


def test_the_kind_is_expected_from_the_configuration() -> None:
    assert expect_kind(LLAMA) == DECODER
    assert expect_kind(ModelConfiguration({"is_encoder_decoder": True})) == ENCODER_DECODER
    assert expect_kind(ModelConfiguration({"vision_config": {"model_type": "clip"}})) == MULTIMODAL
    assert expect_kind(ModelConfiguration({"quantization_config": {"bits": 4}})) == DECODER


def test_a_component_without_name_of_its_own_is_called_after_itself() -> None:
    assert find_contract("").file_of(SINGLE, "unet") == "unet.onnx"


def test_files_beside_the_model() -> None:
    assert all(map(is_side_file, ["tokenizer.json", "vocab.txt", "merges.txt", "spiece.model", "chat_template.jinja"]))
    assert not any(map(is_side_file, ["model.safetensors", "pytorch_model.bin", "README.md", "config.json"]))


def test_an_unknown_target_is_told_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="genai"):
        find_contract("gen-ai")
