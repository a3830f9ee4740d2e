"""What `modelexport verify` asks the api for, and what it does with the answer."""

from __future__ import annotations

import csv
import inspect
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import run
from tests.support.verification import numbers, verification, wrong_in

from modelexport.api import verify as api
from modelexport.record.results.verification import Verification

Captured = pytest.CaptureFixture[str]

GOOD = verification(*(numbers(f"m{place}", 120, 119 - place / 100) for place in range(90)))
WRONG = wrong_in("fc", numbers("emb", None, 118), numbers("fc", 118, 21))


class Recorder:
    """Stands in for `modelexport.verify`."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.answer = GOOD

    def __call__(self, file: Path, **options: Any) -> Verification:
        self.asked = {"file": file, **options}
        return self.answer


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(api, "verify", made)
    return made


REAL = api.verify


def test_every_option_is_a_keyword_of_the_api(recorder: Recorder, tmp_path: Path) -> None:
    assert run("verify", tmp_path / "a.onnx", "-m", "my-bert") == 0
    parameters = inspect.signature(REAL).parameters
    assert set(recorder.asked) == set(parameters)
    defaults = {name: found.default for name, found in parameters.items() if found.default is not found.empty}
    assert {name: recorder.asked[name] for name in defaults} == {**defaults, "model": "my-bert"}


def test_what_is_asked_for_when_nothing_is_said(recorder: Recorder, tmp_path: Path) -> None:
    assert run("verify", tmp_path / "a.onnx", "-m", "my-bert") == 0
    asked = recorder.asked
    assert (asked["file"], asked["model"], asked["against"]) == (tmp_path / "a.onnx", "my-bert", None)
    assert (asked["atol"], asked["rtol"], asked["min_sqnr"]) == (None, None, None)
    assert (asked["inputs"], asked["samples"], asked["proof"], asked["as_deployed"]) == (None, 1, True, False)


def test_options_reach_the_api(recorder: Recorder, tmp_path: Path) -> None:
    one, two, other = tmp_path / "1.npz", tmp_path / "2.npz", tmp_path / "b.onnx"
    options = ["--against", other, "--inputs", one, "--inputs", two, "--samples", 3, "--min-sqnr", 30]
    assert (
        run("verify", tmp_path / "a.onnx", *options, "--atol", 0.5, "--rtol", 0.25, "--as-deployed", "--no-proof") == 0
    )
    asked = recorder.asked
    assert (asked["model"], asked["against"], asked["inputs"]) == (None, other, (one, two))
    assert (asked["samples"], asked["min_sqnr"], asked["atol"], asked["rtol"]) == (3, 30.0, 0.5, 0.25)
    assert (asked["as_deployed"], asked["proof"]) == (True, False)


def test_nothing_to_compare_with(recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert run("verify", tmp_path / "a.onnx") == 2
    error = capsys.readouterr().err
    assert "there is nothing to compare" in error
    assert "(-m)" in error
    assert "(--against)" in error
    assert recorder.asked == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--all", "--top", "3"], "--all and --top contradict each other"),
        (["--top", "0"], "'--top'"),
        (["--samples", "0"], "'--samples'"),
        (["--sort", "name"], "'--sort'"),
        (["--atol", "much"], "'--atol'"),
    ],
)
def test_usage_errors(options: list[str], message: str, recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert run("verify", tmp_path / "a.onnx", "-m", "x", *options) == 2
    assert message in capsys.readouterr().err
    assert recorder.asked == {}


def test_exit_codes(recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert run("verify", tmp_path / "a.onnx", "-m", "x") == 0
    assert "everything agrees" in capsys.readouterr().out
    recorder.answer = WRONG
    for form in ("text", "json", "csv"):
        assert run("verify", tmp_path / "a.onnx", "-m", "x", "--format", form) == 1
    assert "first divergence: fc (Linear)" in capsys.readouterr().out


def test_quiet_says_only_what_was_asked_for(recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    recorder.answer = WRONG
    assert run("verify", tmp_path / "a.onnx", "-m", "x", "-q") == 1
    assert capsys.readouterr() == ("", "")
    assert run("verify", tmp_path / "a.onnx", "-m", "x", "-q", "--format", "json") == 1
    assert capsys.readouterr().out
    assert run("verify", tmp_path / "a.onnx", "-m", "x", "-q", "-o", tmp_path / "report") == 1
    assert "first divergence" in (tmp_path / "report").read_text()


@pytest.mark.parametrize(
    ("options", "by_loss"),
    [
        (["-m", "x"], False),
        (["-m", "x", "--sort", "lost"], True),
        (["--against", "b.onnx"], True),
        (["--against", "b.onnx", "-m", "x"], True),
        (["--against", "b.onnx", "--sort", "order"], False),
    ],
)
def test_two_files_are_ranked_by_what_is_lost(
    options: list[str], by_loss: bool, recorder: Recorder, tmp_path: Path, capsys: Captured
) -> None:
    assert run("verify", tmp_path / "a.onnx", *options) == 0
    assert ("lost dB" in capsys.readouterr().out) is by_loss


def modules_shown(*options: object, capsys: Captured, tmp_path: Path) -> list[str]:
    assert run("verify", tmp_path / "a.onnx", "-m", "x", *options) == 0
    return [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("m") and " ok" in line]


def test_how_many_modules_are_shown(recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert len(modules_shown(capsys=capsys, tmp_path=tmp_path)) == 40
    assert len(modules_shown("--all", capsys=capsys, tmp_path=tmp_path)) == 90
    assert modules_shown("--top", 2, capsys=capsys, tmp_path=tmp_path) == ["m88", "m89"]
    assert modules_shown("--top", 2, "--sort", "lost", capsys=capsys, tmp_path=tmp_path) == ["m89", "m88"]


def test_json(recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert run("verify", tmp_path / "a.onnx", "-m", "x", "--format", "json", "--top", 1) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert len(document["calls"]) == 90


def test_csv(recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert run("verify", tmp_path / "a.onnx", "-m", "x", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["path"] for row in rows] == [f"m{place}" for place in range(90)]


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_into_a_file(form: str, recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert run("verify", tmp_path / "a.onnx", "-m", "x", "--format", form, "-o", tmp_path / "report") == 0
    assert capsys.readouterr().out == ""
    assert "m89" in (tmp_path / "report").read_text()


def test_a_report_never_replaces_what_it_is_about(recorder: Recorder, small_path: Path, tmp_path: Path) -> None:
    other, given = tmp_path / "b.onnx", tmp_path / "1.npz"
    arguments = ["verify", small_path, "--against", other, "--inputs", given]
    for taken in (small_path, small_path.with_suffix(".hierarchy.json"), other, given):
        before = taken.read_bytes() if taken.exists() else b""
        assert run(*arguments, "-o", taken) == 2
        assert (taken.read_bytes() if taken.exists() else b"") == before
    assert recorder.asked == {}
