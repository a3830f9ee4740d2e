"""Profiles of packages: prefill and decode steps apart, on caches that the files make themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.show.test_package_schemas import conforms
from tests.support.command_line import run
from tests.support.packages import package_path

import modelexport as mx
from modelexport.errors import UserError
from modelexport.show.data.results import to_csv, to_json

__all__ = ["package_path"]

Captured = pytest.CaptureFixture[str]


def test_prefill_and_decode_are_apart(package_path: Path) -> None:
    profile = mx.profile_package(package_path, prompt=6, new_tokens=4, past=(3, 9), runs=2, warmup=0)
    phases = [(phase.phase, phase.component, phase.past, phase.query) for phase in profile.phases]
    assert phases == [
        ("prefill", "encoder", 0, 6),
        ("prefill", "decoder", 0, 6),
        ("decode", "decoder", 8, 1),
        ("decode", "decoder", 3, 1),
        ("decode", "decoder", 9, 1),
    ]
    assert profile.ok
    assert (profile.prefill.tokens, profile.decode.tokens) == (6, 4)
    assert profile.decode.tokens_per_second > 0
    paths = {module.path for module in profile.phases[1].profile.modules}
    assert {"decoder.layers.0", "head"} <= paths


def test_the_result_conforms_to_its_schema(package_path: Path) -> None:
    profile = mx.profile_package(package_path, prompt=4, new_tokens=2, runs=2, warmup=0)
    document = conforms(to_json(profile), "package_profile")
    assert [phase["phase"] for phase in document["phases"]] == ["prefill", "prefill", "decode"]
    assert len(to_csv(profile).splitlines()) == 1 + 3


def test_the_command_line_shows_phases(package_path: Path, capsys: Captured) -> None:
    options = ("--prompt", 4, "--new-tokens", 2, "--past", "3,5", "--runs", 2, "--warmup", 0)
    assert run("profile", package_path, *options) == 0
    text = capsys.readouterr().out
    assert "tokens/s" in text
    assert "decode: decoder, past 5, query 1" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--past", "3,x"), "is no list of lengths"),
        (("--inputs", "a.npz"), "makes its inputs itself"),
        (("--trace", "t.json"), "about one run of a file"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: tuple[str, str], message: str, package_path: Path, capsys: Captured
) -> None:
    assert run("profile", package_path, *options) == 2
    assert message in capsys.readouterr().err


def test_options_of_packages_are_refused_for_files(package_path: Path, capsys: Captured) -> None:
    assert run("profile", package_path / "decoder_model.onnx", "--prompt", 4) == 2
    assert "about packages" in capsys.readouterr().err


def test_numbers_of_tokens_are_at_least_one(package_path: Path) -> None:
    with pytest.raises(UserError, match="prompt is 0"):
        mx.profile_package(package_path, prompt=0)


def test_packages_are_verified_against_each_other_without_torch(package_path: Path) -> None:
    result = mx.verify_package(package_path, against=package_path)
    assert result.ok
    assert [*result.components] == ["encoder", "decoder"]
