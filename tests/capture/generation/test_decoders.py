"""Entry points of decoders: one function gives what `generate` computed, in every step, for every kind of cache."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.generating_modules import FIRST, Forgetter, Rememberer, RowMixer, Scanner
from tests.support.tiny_decoders import WINDOW, build_decoder, padded_prompt
from torch import nn

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.decoder_step import MASK
from modelexport.capture.generation.decoders import find_decoder, find_two_decoders
from modelexport.capture.generation.entry_points import find_entry_points
from modelexport.capture.generation.replay import call_entry, find_window, layouts_of, read_step
from modelexport.capture.generation.steps import record_steps
from modelexport.errors import ExportFailed
from modelexport.graph.sample import sample

# One for each kind of cache: growing keys and values, a window, both, a state, a state in modules,
# keys and values of other sizes.
FAMILIES = ("llama", "mistral", "gemma2", "mamba", "recurrent_gemma", "deepseek_v3")
STEPS = 6


@cache
def decoder_of(family: str) -> EntryPoint:
    (entry,) = find_entry_points(build_decoder(family), padded_prompt())
    return entry


@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_of_generate_is_a_call_of_the_entry_point(family: str) -> None:
    entry = decoder_of(family)
    run = record_steps(build_decoder(family), padded_prompt(3, 9), STEPS)
    for number in range(STEPS - 1):
        for call in read_step(run, number, entry):
            outputs = call_entry(entry, call.inputs)
        torch.testing.assert_close(outputs["logits"][:, -1], run.calls[number].outputs["logits"][:, -1])
        for layout in layouts_of(entry):
            for name, tensor in layout.read(run.calls[number + 1].arguments[layout.argument]).items():
                torch.testing.assert_close(outputs[name], tensor)


@pytest.mark.parametrize("family", ["gpt2", "opt", "bloom"])
def test_a_model_that_computes_positions_from_the_mask_takes_the_mask(family: str) -> None:
    entry = decoder_of(family)
    assert entry.axes[MASK] == {0: "batch", 1: "total_sequence"}


def test_names_come_from_the_path_in_the_cache() -> None:
    entry = decoder_of("llama")
    assert [(pair.past, pair.present) for pair in entry.cache] == [
        (f"past_key_values.{layer}.{what}", f"present.{layer}.{what}") for layer in (0, 1) for what in ("key", "value")
    ]
    assert entry.axes["past_key_values.1.value"] == {0: "batch", 2: "past_sequence"}
    assert entry.axes["input_ids"] == {0: "batch", 1: "sequence"}


def test_a_layer_with_a_window_has_an_axis_of_its_own() -> None:
    entry = decoder_of("gemma2")
    labels = {name: named[2] for name, named in entry.axes.items() if name.startswith("past_key_values")}
    assert set(labels.values()) == {"past_window", "past_sequence"}
    assert find_window(entry) == WINDOW


def test_a_model_with_another_computation_for_several_tokens_takes_one() -> None:
    entry = decoder_of("mamba")
    assert entry.inputs["input_ids"].shape[1] == 1
    assert "sequence" not in entry.axes["input_ids"].values()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_of_a_coarse_type_is_no_other_computation(dtype: torch.dtype) -> None:
    model = copy.deepcopy(build_decoder("llama"))
    (entry,) = find_entry_points(model.to(dtype), padded_prompt())
    assert entry.axes["input_ids"] == {0: "batch", 1: "sequence"}


def test_a_masked_token_leaves_the_state_alone() -> None:
    entry = decoder_of("mamba")
    inputs = dict(entry.inputs)
    inputs[MASK] = inputs[MASK].clone()
    inputs[MASK][0, -1] = 0
    outputs = call_entry(entry, inputs)
    for pair in entry.cache:
        assert torch.equal(outputs[pair.present][0], inputs[pair.past][0])
        assert not torch.equal(outputs[pair.present][1], inputs[pair.past][1])


def test_positions_of_the_sample_are_distinctive() -> None:
    """`verify` proves what is computed from positions, such as rotary embeddings, by values of this sample."""
    positions = decoder_of("gpt_neox").inputs["position_ids"]
    assert sample(positions.numpy()).distinctive


def test_a_first_state_that_is_not_zeros_is_seen() -> None:
    (entry,) = find_decoder(Scanner().eval(), padded_prompt())
    assert [(pair.past, pair.first) for pair in entry.cache] == [("past_state.0", FIRST)]
    assert any(f"filled with {FIRST:g}" in note for note in entry.notes)


def test_a_loop_over_tokens_takes_one_token_and_says_so() -> None:
    (entry,) = find_decoder(Scanner().eval(), padded_prompt())
    assert entry.inputs["input_ids"].shape[1] == 1
    assert any("a loop in Python" in note for note in entry.notes)


def test_a_mask_that_the_model_does_not_read_is_no_input() -> None:
    (entry,) = find_decoder(Scanner().eval(), padded_prompt())
    assert MASK not in entry.inputs


def test_states_in_modules_are_inputs_and_outputs() -> None:
    model = Rememberer().eval()
    (entry,) = find_decoder(model, padded_prompt())
    # The constant beside it is none.
    assert [(pair.past, pair.present) for pair in entry.cache] == [
        ("past_module_states.cell.total", "present_module_states.cell.total")
    ]
    run = record_steps(model, padded_prompt(3, 9), STEPS)
    for number in range(STEPS - 1):
        (call,) = read_step(run, number, entry)
        outputs = call_entry(entry, call.inputs)
        torch.testing.assert_close(outputs["logits"][:, -1], run.calls[number].outputs["logits"][:, -1])
        after = run.calls[number + 1].arguments["module_states"]["cell.total"]
        torch.testing.assert_close(outputs["present_module_states.cell.total"], after)
    assert model.cell.total is None  # it was left as it was


def test_a_model_that_mixes_rows_is_exported_for_one() -> None:
    (entry,) = find_decoder(RowMixer().eval(), padded_prompt())
    assert entry.inputs["input_ids"].shape == (1, 1)
    assert "batch" not in {label for named in entry.axes.values() for label in named.values()}
    assert any("takes one row" in note for note in entry.notes)
    assert entry.prompt["input_ids"].shape[0] == 1
    assert bool(entry.prompt[MASK].all())


def test_the_reason_is_told_where_there_is_no_decoder() -> None:
    with pytest.raises(ExportFailed, match=r"Several tokens in one call: for .* tokens at once") as raised:
        find_decoder(Forgetter().eval(), padded_prompt())
    assert "padding is like any token: after 6 tokens present_state.0 differs by" in str(raised.value)


def test_the_reason_is_told_where_there_are_no_two_decoders() -> None:
    model = build_decoder("llama")

    def refuse(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        if kwargs["past_key_values"].get_seq_length() and kwargs["input_ids"].shape[1] > 1:
            raise ValueError("one token, please")

    hook = model.get_submodule("model").register_forward_pre_hook(refuse, with_kwargs=True)
    with hook, pytest.raises(ExportFailed, match="in later calls it raises ValueError: one token, please"):
        find_two_decoders(model, padded_prompt(), record_steps, record_steps)


def test_first_call_and_later_ones_of_any_decoder() -> None:
    model = build_decoder("llama")
    first, later = find_two_decoders(model, padded_prompt(), record_steps, record_steps)
    assert not [name for name in first.inputs if name.startswith("past_")]
    assert first.axes["input_ids"] == later.axes["input_ids"] == {0: "batch", 1: "sequence"}
    assert later.axes["past_key_values.0.key"] == {0: "batch", 2: "past_sequence"}
    assert first.cache == later.cache
