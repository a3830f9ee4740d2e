"""Entry points of encoder-decoders: a chain of them computes what the model computes in `generate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.entry_points import find_entry_points
from modelexport.capture.generation.steps import RecordedCall, enlarge_inputs, merge_calls, record_steps
from modelexport.errors import ExportFailed

Built = tuple[nn.Module, dict[str, Tensor]]
SPECIAL: dict[str, Any] = {
    "vocab_size": 99,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
SIZES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


def _text() -> dict[str, Tensor]:
    ids = torch.randint(3, 99, (2, 6))
    mask = torch.ones_like(ids)
    ids[0, :2], mask[0, :2] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def build_t5() -> Built:
    config = transformers.T5Config(**SPECIAL, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4)
    return transformers.T5ForConditionalGeneration(config), _text()


def build_bart() -> Built:
    config = transformers.BartConfig(**SPECIAL, **SIZES, max_position_embeddings=64, forced_eos_token_id=None)
    return transformers.BartForConditionalGeneration(config), _text()


def build_whisper() -> Built:
    config = transformers.WhisperConfig(
        **SPECIAL, **SIZES, num_mel_bins=16, max_source_positions=12, suppress_tokens=None, begin_suppress_tokens=None
    )
    return transformers.WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 16, 24)}


def build_speech() -> Built:
    config = transformers.Speech2TextConfig(
        **SPECIAL,
        **SIZES,
        input_feat_per_channel=16,
        conv_channels=32,
        max_source_positions=64,
        max_target_positions=64,
    )
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[0, 16:] = 0
    features = {"input_features": torch.randn(2, 24, 16), "attention_mask": mask}
    return transformers.Speech2TextForConditionalGeneration(config), features


def build_waveform() -> Built:
    """Its encoder makes a mask of frames out of that of samples, and the decoder reads the former alone."""
    config = transformers.MoonshineConfig(
        **SPECIAL,
        hidden_size=32,
        intermediate_size=48,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
    )
    mask = torch.ones(2, 3000, dtype=torch.int64)
    mask[0, 2000:] = 0
    return transformers.MoonshineForConditionalGeneration(config), {
        "input_values": torch.randn(2, 3000),
        "attention_mask": mask,
    }


BUILDERS = (build_t5, build_bart, build_whisper, build_speech, build_waveform)


def prepare(build: Callable[[], Built]) -> Built:
    torch.manual_seed(0)
    model, inputs = build()
    return model.eval(), inputs


@cache
def prepared_entries(build: Callable[[], Built], merged: bool) -> tuple[Built, Sequence[EntryPoint]]:
    """For tests that change nothing about them: to find them takes seconds."""
    model, inputs = prepare(build)
    return (model, inputs), tuple(find_entry_points(model, inputs, merged))


def call(entry: EntryPoint, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    with torch.no_grad():
        return entry.forward(**{name: tensors[name] for name in entry.inputs})


def chain(entries: Mapping[str, EntryPoint], inputs: Mapping[str, Tensor], tokens: Sequence[Tensor]) -> list[Tensor]:
    """Logits of each step, the cache handed on by its pairs: the way of a runtime."""
    encoded = call(entries["encoder"], inputs)
    mask = {"encoder_attention_mask": inputs["attention_mask"]} if "attention_mask" in inputs else {}
    fed = {**encoded, "encoder_hidden_states": encoded["last_hidden_state"], **mask}
    merged = entries.get("decoder_merged")
    if merged is not None:
        fed |= {pair.past: merged.inputs[pair.past][:, :, :0] for pair in merged.cache}
    logits = []
    for step, ids in enumerate(tokens):
        entry = merged or entries["decoder" if step == 0 else "decoder_with_past"]
        results = call(entry, {**fed, "input_ids": ids})
        logits.append(results["logits"][:, -1])
        fed |= {pair.past: results[pair.present] for pair in entry.cache if pair.present in results}
    return logits


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("build", BUILDERS)
def test_chain_equals_generate(build: Callable[[], Built], merged: bool) -> None:
    (model, inputs), found = prepared_entries(build, merged)
    entries = {entry.name: entry for entry in found}
    assert list(entries) == (["encoder", "decoder_merged"] if merged else ["encoder", "decoder", "decoder_with_past"])
    expected = record_steps(model, inputs, 6)
    logits = chain(entries, inputs, [recorded.arguments["decoder_input_ids"] for recorded in expected.calls])
    for step, recorded in zip(logits, expected.calls, strict=True):
        torch.testing.assert_close(step, recorded.outputs["logits"][:, -1], atol=1e-4, rtol=1e-3)


def test_masks_are_those_that_a_decoder_reads() -> None:
    encoder, decoder, later = prepared_entries(build_waveform, False)[1]
    assert list(call(encoder, encoder.inputs)) == ["last_hidden_state", "encoder_outputs.attention_mask"]
    assert list(decoder.inputs) == ["input_ids", "encoder_hidden_states", "encoder_outputs.attention_mask"]
    assert set(later.inputs) - {pair.past for pair in later.cache} == {"input_ids", "encoder_outputs.attention_mask"}


def test_names_and_axes() -> None:
    encoder, decoder, later = prepared_entries(build_t5, False)[1]
    text = {0: "batch", 1: "encoder_sequence"}
    assert encoder.axes == {"input_ids": text, "attention_mask": text}
    assert list(decoder.inputs) == ["input_ids", "encoder_attention_mask", "encoder_hidden_states"]
    assert decoder.axes["input_ids"] == later.axes["input_ids"] == {0: "batch", 1: "sequence"}
    assert decoder.axes["encoder_hidden_states"] == text
    assert "present.1.encoder.value" in call(decoder, decoder.inputs)
    assert later.axes["past_key_values.0.decoder.key"] == {0: "batch", 2: "past_sequence"}
    assert later.axes["past_key_values.1.encoder.value"] == {0: "batch", 2: "encoder_sequence"}


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("build", BUILDERS)
def test_samples_of_other_sizes_differ_along_open_axes_alone(build: Callable[[], Built], merged: bool) -> None:
    for entry in prepared_entries(build, merged)[1]:
        opened = {(name, axis) for name, axes in entry.axes.items() for axis in axes}
        varied = set[tuple[str, int]]()
        for other in entry.others:
            assert other.keys() == entry.inputs.keys()
            call(entry, other)
            sizes = {(name, axis): size for name, tensor in other.items() for axis, size in enumerate(tensor.shape)}
            differing = {key for key, size in sizes.items() if size != entry.inputs[key[0]].shape[key[1]]}
            assert differing <= opened
            varied |= differing
        assert varied == opened


def test_later_calls_are_sampled_with_one_token_as_well() -> None:
    _, decoder, later = prepared_entries(build_t5, False)[1]
    for entry in (decoder, later):
        assert 1 in {other["input_ids"].shape[1] for other in entry.others}


def test_a_merged_decoder_is_sampled_with_an_empty_cache() -> None:
    _, entry = prepared_entries(build_bart, True)[1]
    assert 0 in {other["past_key_values.0.encoder.key"].shape[2] for other in entry.others}


def test_later_calls_leave_out_what_they_do_not_read() -> None:
    _, _, later = prepared_entries(build_bart, False)[1]
    results = call(later, later.inputs)
    assert "encoder_hidden_states" not in later.inputs
    assert {name for name in results if not name.startswith("present.")} == {"logits"}
    assert not [name for name in results if ".encoder." in name]


def test_merged_decoder_takes_any_part_of_the_cache() -> None:
    _, entry = prepared_entries(build_bart, True)[1]
    kept = [name for name in entry.inputs if ".encoder." in name]
    assert entry.axes[kept[0]] == {0: "batch", 2: "past_encoder_sequence"}
    expected = call(entry, entry.inputs)
    for length in (0, 1, entry.inputs[kept[0]].shape[2]):
        shorter = {name: entry.inputs[name][:, :, :length] for name in kept}
        for name, tensor in call(entry, {**entry.inputs, **shorter}).items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-4)


def test_merged_decoder_that_differs_is_refused() -> None:
    model, inputs = prepare(build_bart)
    layer: Any = model.get_submodule("model.decoder.layers.0.encoder_attn.k_proj")
    # Keys that depend on how many rows are computed at once cannot be computed in parts.
    layer.register_forward_hook(lambda _module, _inputs, output: output * output.shape[1])
    with pytest.raises(ExportFailed, match=r"does not compute what the model does: \S+ (is|differs by)"):
        find_entry_points(model, inputs, merged=True)


def _refuse_several(model: nn.Module, error: Exception) -> None:
    def refuse(_: nn.Module, _args: object, kwargs: Mapping[str, Any]) -> None:
        if kwargs["decoder_input_ids"].shape[1] > 1:
            raise error

    model.get_submodule("model").register_forward_pre_hook(refuse, with_kwargs=True)


def test_the_reason_is_told_why_a_decoder_takes_one_token() -> None:
    model, inputs = prepare(build_bart)
    _refuse_several(model, ValueError("one token, please"))
    _, decoder, later = find_entry_points(model, inputs)
    assert {entry.inputs["input_ids"].shape[1] for entry in (decoder, later)} == {1}
    assert "for 3 tokens at once it raises ValueError: one token, please" in decoder.notes[0]
    assert later.notes[0].startswith("decoder_with_past takes one token per call")


def test_what_is_no_refusal_of_a_model_is_not_swallowed() -> None:
    class Odd(Exception):  # of no kind that code raises about sizes
        pass

    model, inputs = prepare(build_bart)
    _refuse_several(model, Odd())
    with pytest.raises(Odd):
        find_entry_points(model, inputs)


def test_model_is_left_as_it_was() -> None:
    model, inputs = prepare(build_t5)
    find_entry_points(model, inputs, merged=True)
    assert "forward" not in vars(model)
    assert not [each for each in model.modules() if each._forward_pre_hooks or each._forward_hooks]


def test_sounds_are_enlarged_along_the_axis_that_the_model_can_enlarge() -> None:
    inputs = {"input_features": torch.zeros(2, 8, 16), "attention_mask": torch.ones(2, 8)}

    def run(tensors: Mapping[str, Tensor]) -> None:
        assert tensors["input_features"].shape[2] == 16

    shapes = {name: tuple(tensor.shape) for name, tensor in enlarge_inputs(inputs, run).items()}
    assert shapes == {"input_features": (4, 16, 16), "attention_mask": (4, 16)}
    pictures = enlarge_inputs({"pixel_values": torch.zeros(2, 3, 8, 8)}, run)
    assert pictures["pixel_values"].shape == (4, 3, 8, 8)


def test_prompts_are_joined_with_the_steps_after_them() -> None:
    calls = [RecordedCall({"ids": torch.ones(2, 3), "mask": torch.ones(2, 3)}, {})]
    calls += [RecordedCall({"ids": torch.zeros(2, 1), "mask": torch.ones(2, 3 + step)}, {}) for step in (1, 2)]
    merged = merge_calls(calls, frozenset())
    assert merged["ids"].tolist() == [[1, 1, 1, 0, 0]] * 2
    assert merged["mask"].shape == (2, 5)
