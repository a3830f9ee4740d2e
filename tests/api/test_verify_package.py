"""Packages against their models: files alone, the chain of files, other sizes, tokens; and what bad input is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.show.test_package_schemas import conforms
from tests.support.command_line import run
from tests.support.generating import Generating, generating

import modelexport as mx
from modelexport.errors import InputError, ModelMismatch, UserError
from modelexport.show.data.results import to_csv, to_json

__all__ = ["generating"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def verified(generating: Generating) -> mx.PackageVerification:
    """Of a decoder whose window of 8 tokens is exceeded by the chain, and by half in the grid."""
    model, package = generating("mistral")
    return mx.verify_package(package, model, new_tokens=5)


def test_a_package_computes_what_its_model_does(verified: mx.PackageVerification) -> None:
    assert verified.ok
    decoder = verified.components["decoder"]
    assert decoder.proof is not None
    assert not decoder.proof.contradicted
    assert decoder.parameters is not None
    assert decoder.parameters.compared


def test_every_step_compares_logits_the_cache_and_modules(verified: mx.PackageVerification) -> None:
    assert [check.step for check in verified.steps] == [0, 1, 2, 3, 4]
    assert [check.query for check in verified.steps] == [10, 1, 1, 1, 1]
    assert [check.past for check in verified.steps] == [0, 10, 11, 12, 13]
    for check in verified.steps:
        assert {"logits", "present.0.key", "present.1.value"} <= check.outputs.keys()
        assert check.calls > 20
    assert not verified.steps[0].given
    assert "past_key_values.0.key" in verified.steps[1].given


def test_the_grid_has_twelve_sizes_and_exceeds_the_window(verified: mx.PackageVerification) -> None:
    sizes = [(check.batch, check.past, check.query) for check in verified.grid]
    assert len(set(sizes)) == 12
    assert {past for _, past, _ in sizes} == {0, 1, 5, 12}
    assert {query for _, _, query in sizes} == {1, 2, 7}
    assert {check.padding for check in verified.grid} == {"", "left", "right"}


def test_tokens_are_those_of_generate(verified: mx.PackageVerification) -> None:
    tokens = verified.tokens
    assert tokens is not None
    assert tokens.ok
    assert [len(row) for row in tokens.chosen] == [5, 5]


def test_the_result_conforms_to_its_schema(verified: mx.PackageVerification) -> None:
    document = conforms(to_json(verified), "package_verification")
    assert document["ok"]
    assert len(to_csv(verified).splitlines()) == 1 + 5 + 12


def test_an_encoder_decoder_is_a_chain_of_three_files(generating: Generating) -> None:
    model, package = generating("t5")
    result = mx.verify_package(package, model, new_tokens=3, grid=False, proof=False)
    assert result.ok
    ran = [(check.step, check.component) for check in result.steps]
    assert ran == [(0, "encoder"), (0, "decoder"), (1, "decoder_with_past"), (2, "decoder_with_past")]
    assert "encoder_hidden_states" in result.steps[1].given
    assert {"past_key_values.0.decoder.key", "past_key_values.0.encoder.key"} <= result.steps[2].given.keys()


def test_another_package_is_compared_file_by_file(generating: Generating) -> None:
    _, package = generating("mistral")
    result = mx.verify_package(package, against=package)
    assert result.ok
    assert not result.steps
    assert result.components["decoder"].outputs.keys() >= {"logits", "present.0.key"}


def test_a_package_of_another_model_is_a_mismatch(generating: Generating) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=99, bos_token_id=1, eos_token_id=2, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    other = GPT2LMHeadModel(config).eval()  # type: ignore[no-untyped-call]
    with pytest.raises(ModelMismatch, match="was not made from"):
        mx.verify_package(generating("mistral")[1], other, new_tokens=2)


def test_a_model_that_does_not_generate_is_a_mismatch(generating: Generating) -> None:
    import torch

    with pytest.raises(ModelMismatch, match="does not generate"):
        mx.verify_package(generating("mistral")[1], torch.nn.Linear(4, 4))


def test_a_prompt_longer_than_the_context_is_an_input_error(generating: Generating) -> None:
    model, package = generating("mistral")
    with pytest.raises(InputError, match="context of 128"):
        mx.verify_package(package, model, new_tokens=125)


def test_there_must_be_one_thing_to_verify_against(generating: Generating) -> None:
    with pytest.raises(UserError, match="its model, or another package"):
        mx.verify_package(generating("mistral")[1])


def test_options_of_packages_are_refused_for_files(generating: Generating, capsys: pytest.CaptureFixture[str]) -> None:
    model, package = generating("mistral")
    assert run("verify", package / "model.onnx", "-m", model, "--new-tokens", 3) == 2
    assert "about packages" in capsys.readouterr().err


def test_the_command_line_names_what_diverges(
    generating: Generating, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from measure.generation.faults import WINDOW_FAULTS, plant

    model, package = generating("mistral")
    spoiled = plant(WINDOW_FAULTS[3], package, tmp_path / "spoiled")
    assert run("verify", spoiled, "-m", model, "--new-tokens", 3, "--no-grid", "--no-proof") == 1
    text = capsys.readouterr().out
    assert "first divergence: step 1 (batch 2, past 10, query 1), decoder, model.layers.0.self_attn" in text
    assert "past_key_values.0.value: handed on from present.1.value" in text
    assert run("verify", spoiled, "-m", model, "--new-tokens", 3, "--no-grid", "--no-proof", "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["divergence"]["step"] == 1
