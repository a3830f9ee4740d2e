"""Packages against their models: files alone, the chain of files, other sizes, tokens; and what bad input is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    assert [check.query for check in verified.steps] == [11, 1, 1, 1, 1]
    assert [check.past for check in verified.steps] == [0, 11, 12, 13, 14]
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


def test_steps_in_float16_are_compared_as_float16(generating: Generating, tmp_path: Path) -> None:
    model, _ = generating("llama")
    mx.export(model, tmp_path / "package", target="genai", dtype="float16")
    assert mx.verify_package(tmp_path / "package", model, new_tokens=3, proof=False).ok


def test_an_encoder_decoder_is_a_chain_of_three_files(generating: Generating) -> None:
    model, package = generating("t5")
    result = mx.verify_package(package, model, new_tokens=3, grid=False, proof=False)
    assert result.ok
    ran = [(check.step, check.component) for check in result.steps]
    assert ran == [(0, "encoder"), (0, "decoder"), (1, "decoder_with_past"), (2, "decoder_with_past")]
    assert "encoder_hidden_states" in result.steps[1].given
    assert {"past_key_values.0.decoder.key", "past_key_values.0.encoder.key"} <= result.steps[2].given.keys()


def test_a_merged_decoder_begins_with_no_keys_of_the_encoder(generating: Generating, tmp_path: Path) -> None:
    model, _ = generating("t5")
    mx.export(model, tmp_path / "package", target="transformersjs", no_check=True)
    result = mx.verify_package(tmp_path / "package", model, new_tokens=3, grid=False, proof=False)
    assert result.ok
    ran = [(check.step, check.component) for check in result.steps]
    assert ran == [(0, "encoder"), (0, "decoder_merged"), (1, "decoder_merged"), (2, "decoder_merged")]
    assert "past_key_values.0.encoder.key" in result.steps[2].given


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A language model that reads images, and its package."""
    import torch
    from tests.capture.generation.test_multimodal import build_llava

    folder = tmp_path_factory.mktemp("llava")
    torch.manual_seed(0)
    build_llava().eval().save_pretrained(folder / "model")  # type: ignore[operator]
    mx.export(folder / "model", f"{folder}/package/")
    return folder / "model", folder / "package"


def test_a_model_that_mixes_rows_is_verified_with_one(generating: Generating) -> None:
    model, package = generating("rwkv")
    verified = mx.verify_package(package, model, new_tokens=3, proof=False)
    assert verified.ok
    assert {check.batch for check in (*verified.steps, *verified.grid)} == {1}
    assert {check.padding for check in verified.grid} == {""}


def test_images_go_through_the_chain_to_the_decoder(seeing: tuple[Path, Path]) -> None:
    """Two files make the embeddings: one puts features among them, the other is enough for later tokens."""
    result = mx.verify_package(seeing[1], seeing[0], new_tokens=3, proof=False)
    assert result.ok
    assert result.tokens is not None
    first, later = ["vision_encoder", "embedding", "decoder"], ["embed_tokens", "decoder"]
    assert [check.component for check in result.steps] == [*first, *later, *later]
    assert [check.step for check in result.steps] == [0, 0, 0, 1, 1, 2, 2]
    assert list(result.steps[1].given) == ["image_features"]
    assert list(result.steps[2].given) == ["inputs_embeds"]
    assert {"inputs_embeds", "past_key_values.0.key"} <= result.steps[4].given.keys()
    assert len({(check.batch, check.past, check.query) for check in result.grid}) == 12


@pytest.mark.parametrize(("left", "later"), [("embedding", "embed_tokens"), ("embed_tokens", "embedding")])
def test_consumers_do_without_one_of_two_embeddings(
    seeing: tuple[Path, Path], tmp_path: Path, left: str, later: str
) -> None:
    """Without `embedding` a consumer puts features among tokens; without `embed_tokens`, it goes on with no image."""
    package = _edit_package(seeing[1], tmp_path / "package", lambda document: _leave_out(document, left))
    options = {"new_tokens": 2, "grid": False, "proof": False}
    result = mx.verify_package(package, seeing[0], **options)  # type: ignore[arg-type]
    assert result.ok
    assert [check.component for check in result.steps] == ["vision_encoder", later, "decoder", later, "decoder"]
    assert not result.steps[3].given


def _edit_package(package: Path, copy: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(package, copy)
    document = json.loads((copy / "modelexport.json").read_text())
    edit(document)
    (copy / "modelexport.json").write_text(json.dumps(document))
    return copy


def _leave_out(document: dict[str, Any], component: str) -> None:
    document["components"] = [each for each in document["components"] if each["name"] != component]
    document["links"] = [each for each in document["links"] if component not in (each["source"], each["target"])]


def test_components_of_other_names_are_paired_by_what_they_take(generating: Generating, tmp_path: Path) -> None:
    model, package = generating("mistral")
    renamed = _edit_package(
        package, tmp_path / "package", lambda document: document["components"][0].update(name="decode")
    )
    result = mx.verify_package(renamed, model, new_tokens=2, grid=False, proof=False)
    assert result.ok
    assert {check.component for check in result.steps} == {"decode"}


def test_a_component_that_the_model_has_no_part_for_is_named(generating: Generating, tmp_path: Path) -> None:
    def rename(document: dict[str, Any]) -> None:
        component = document["components"][0]
        component["name"], component["inputs"] = (
            "prefill",
            [name for name in component["inputs"] if name != "input_ids"],
        )

    package = _edit_package(generating("mistral")[1], tmp_path / "package", rename)
    with pytest.raises(ModelMismatch, match=r"has prefill, which takes .* with these inputs \(decoder: input_ids"):
        mx.verify_package(package, generating("mistral")[0], new_tokens=2)


def test_sizes_that_the_context_does_not_hold_are_told() -> None:
    from modelexport.api.verify_chain import _grid_sizes, _tell_left_out

    fitting, left_out = _grid_sizes(0, 12)
    assert len(fitting) + len(left_out) == 12
    assert max(size.past + size.query for size in fitting) < 12
    (note,) = _tell_left_out(left_out, 12)
    assert (
        note
        == "4 sizes of the grid (past + query: 5 + 7, 16 + 1, 16 + 2, 16 + 7) are more than the model's context of 12"
    )
    assert not list(_tell_left_out([], 12))


def test_another_package_is_compared_file_by_file(generating: Generating) -> None:
    _, package = generating("mistral")
    result = mx.verify_package(package, against=package)
    assert result.ok
    assert not result.steps
    assert result.components["decoder"].outputs.keys() >= {"logits", "present.0.key"}


def test_other_cache_pairs_are_a_difference(generating: Generating, tmp_path: Path) -> None:
    """The same files, put together in another way, generate something else."""
    from measure.generation.faults import WINDOW_FAULTS, plant

    _, package = generating("mistral")
    spoiled = plant(WINDOW_FAULTS[3], package, tmp_path / "spoiled")
    result = mx.verify_package(spoiled, against=package)
    assert result.components["decoder"].ok
    assert not result.ok
    assert any(text.startswith("cache of decoder, added: present.1.value → past") for text in result.connections)
    assert run("verify", spoiled, "--against", package) == 1


def test_a_package_of_another_model_is_a_mismatch(generating: Generating) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=99, bos_token_id=1, eos_token_id=2, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    other = GPT2LMHeadModel(config).eval()  # type: ignore[no-untyped-call]
    with pytest.raises(ModelMismatch, match="was not made from"):
        mx.verify_package(generating("mistral")[1], other, new_tokens=2)


def test_a_model_of_the_same_sizes_and_another_class_is_a_mismatch(generating: Generating) -> None:
    """All projections have the same paths and shapes; other weights and other norms tell."""
    with pytest.raises(
        ModelMismatch, match=r"was not made from .*parameters differ, and modules that are not the same"
    ):
        mx.verify_package(generating("mistral")[1], generating("qwen3")[0], new_tokens=2)


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
    assert "first divergence: step 1 (batch 2, past 11, query 1), decoder, model.layers.0.self_attn" in text
    assert "past_key_values.0.value: handed on from present.1.value" in text
    assert run("verify", spoiled, "-m", model, "--new-tokens", 3, "--no-grid", "--no-proof", "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["divergence"]["step"] == 1
