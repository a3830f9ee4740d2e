from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from measure.bench.odd_model import odd_model
from tests.support.command_line import run

Captured = pytest.CaptureFixture[str]


def test_to_a_file(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "s.json"
    assert run("convert", small_path, "--to", "model-explorer", "-o", target) == 0
    assert [graph["id"] for graph in json.loads(target.read_text())["graphs"]] == ["small"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"wrote {target}\n"


def test_to_standard_output(small_path: Path, capsys: Captured) -> None:
    assert run("convert", small_path, "--to", "mermaid", "--depth", "1", "-q") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith('flowchart TB\nn0(["ids"])\n')
    assert captured.err == ""


def test_two_models_side_by_side(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(small_path.read_bytes())
    target = tmp_path / "s.json"
    assert run("convert", small_path, "--to", "model-explorer", "-o", target, "--against", other) == 0
    entries = json.loads((tmp_path / "s.other.sync.json").read_text())["mappingEntries"]
    assert {"leftNodeIds": ["h0"], "rightNodeIds": ["h0"]} in entries
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_file_without_a_record_is_converted_with_a_word_about_it(tmp_path: Path, capsys: Captured) -> None:
    onnx.save(odd_model(), tmp_path / "odd.onnx")
    assert run("convert", tmp_path / "odd.onnx", "--to", "graphml", "-o", tmp_path / "a.graphml") == 0
    assert "modelexport attach" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "graphlm", "-o", "a"], "Did you mean 'graphml'?"),
        (["--to", "netron"], "-o FILE.onnx"),
        (["--to", "model-explorer", "--against", "b.onnx"], "-o"),
        (["--to", "csv", "--depth", "2"], "--depth"),
        (["--to", "csv", "-o", "no/such/folder/a.csv"], "does not exist"),
        ([], "--to"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], said: str, small_path: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert run("convert", small_path, *arguments) == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
