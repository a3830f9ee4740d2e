from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from tests.small_file import SmallFile

from modelexport.api import export as api
from modelexport.api.options import ExportResult
from modelexport.cli import main
from modelexport.errors import ExportFailed
from modelexport.record.check import OutputCheck

REAL_EXPORT = api.export


class Recorder:
    """Stands in for `modelexport.export`: remembers what it was asked for."""

    def __init__(self, check: OutputCheck | None = None) -> None:
        self.check = check
        self.asked: dict[str, Any] = {}

    def __call__(self, model: str, output: Path, **options: Any) -> ExportResult:
        self.asked = {"model": model, "output": output, **options}
        path = SmallFile().write(output)
        notes = ("random weights",)
        return ExportResult(path, (path,), SmallFile().provenance(), self.check, notes, {"load": 0.5})


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["export", *map(str, arguments)])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder(OutputCheck(True, 1e-7, 1e-6))
    monkeypatch.setattr(api, "export", made)
    return made


def test_every_option_is_a_keyword_of_the_api(recorder: Recorder, tmp_path: Path) -> None:
    output = tmp_path / "a.onnx"
    assert run("-m", "my-bert", "-o", output, "--input", "x=1x3", "--input", "y=2", "--no-check", "--keep", "a*") == 0
    assert (recorder.asked["model"], recorder.asked["output"]) == ("my-bert", output)
    assert recorder.asked["input"] == ("x=1x3", "y=2")
    assert recorder.asked["no_check"] is True
    assert recorder.asked["external_data"] is None
    assert recorder.asked["progress"] is None
    parameters = inspect.signature(REAL_EXPORT).parameters
    assert set(recorder.asked) == set(parameters)
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    unasked = set(parameters) - {"model", "output", "input", "no_check", "keep"}
    assert {name: recorder.asked[name] for name in unasked} == {name: defaults[name] for name in unasked}


def test_the_result_is_shown(recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", "x", "-o", tmp_path / "a.onnx", "--verbose") == 0
    text = capsys.readouterr().out
    for part in ("wrote", "6 nodes: exact 6 (100.0 %)", "1.0e-07", "note: random weights", "load 0.5 s"):
        assert part in text


def test_the_result_as_json(recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", "x", "-o", tmp_path / "a.onnx", "--format", "json", "--quiet") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == [str(tmp_path / "a.onnx")]
    assert document["by_confidence"]["exact"] == document["nodes"] == 6
    assert document["check"]["ok"]


def test_quiet(recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", "x", "-o", tmp_path / "a.onnx", "-q") == 0
    assert capsys.readouterr() == ("", "")


def test_wrong_outputs_are_exit_code_1(recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder.check = OutputCheck(False, float("nan"), float("inf"), "logits differ by 0.24")
    assert run("-m", "x", "-o", tmp_path / "a.onnx") == 1
    assert "logits differ by 0.24" in capsys.readouterr().out
    assert run("-m", "x", "-o", tmp_path / "a.onnx", "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["check"]["max_abs_diff"] is None


def test_a_failed_export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ExportFailed("torch cannot export Net", "Try --exporter torchscript.")

    monkeypatch.setattr(api, "export", fail)
    assert run("-m", "x", "-o", tmp_path / "a.onnx") == 2
    assert capsys.readouterr().err == "error: torch cannot export Net\nTry --exporter torchscript.\n"


@pytest.mark.parametrize(
    ("option", "value", "near"),
    [
        ("--strategy", "enhanced-semantic", "enhanced_semantic"),
        ("--exporter", "dynmo", "dynamo"),
    ],
)
def test_unknown_names_propose_the_nearest(
    option: str, value: str, near: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-m", "x", "-o", tmp_path / "a.onnx", option, value) == 2
    assert f"Did you mean '{near}'?" in capsys.readouterr().err
