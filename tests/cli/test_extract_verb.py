"""What `modelexport extract` says and writes, and how it refuses."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.support.command_line import run
from tests.support.small_file import SmallFile, credited

from modelexport.api import extract as api
from modelexport.record.provenance import Evidence, EvidenceKind
from modelexport.record.results.files import Extraction, ExtractionCheck, Feed, OutputComparison
from modelexport.record.results.verification import Difference
from modelexport.show.text.written_files import extraction_lines

Captured = pytest.CaptureFixture[str]
GOOD = Difference(2e-7, 1e-7, 130.0, 1.0, 0, agrees=True)
WRONG = Difference(0.25, 0.5, 12.0, 0.9, 0, agrees=False)


def test_a_module(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "part.onnx"
    assert run("extract", small_path, "layers.1", "-o", target) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "Block: 2 nodes; 64 B of weights",
        "in  r0  float[2, 4]",
        "out r1  float[2, 4]",
    ]
    assert run("validate", target) == 0
    assert [node.output[0] for node in onnx.load(target).graph.node] == ["h1", "r1"]


def test_nodes_that_are_not_the_modules_alone_are_counted(small_path: Path, tmp_path: Path) -> None:
    extraction = api.extract(small_path, "layers.1", tmp_path / "part.onnx")
    assert (extraction.shared, extraction.along) == (0, 0)
    lines = [*map(str, extraction_lines(replace(extraction, shared=3, along=6)))]
    assert "Block: 2 nodes, 3 shared with modules outside and 6 taken along; 64 B of weights" in lines


@pytest.mark.slow
def test_the_file_runs(small_path: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    assert run("extract", small_path, "layers.0", "layers.1", "-o", tmp_path / "part.onnx", "-q") == 0
    session = runtime.InferenceSession(tmp_path / "part.onnx", providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, {"e": np.ones((2, 4), np.float32)})[0], np.full((2, 4), 16.0))


def test_json_follows_its_schema(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert run("extract", small_path, "op=Relu & module=layers.0", "-o", tmp_path / "p.onnx", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    schema = resources.files("modelexport.record").joinpath("schema/extraction.schema.json").read_text()
    jsonschema.validate(document, json.loads(schema))
    assert (document["class"], document["nodes"], document["check"]) == ("Block", 1, None)


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        (["layrs.0"], "unknown module 'layrs.0'", "Did you mean 'layers.0'?"),
        (["layers.0#4"], "there is no call layers.0#4: 'layers.0' was called 1 times", "Give 'layers.0'."),
        (["emb", "layers.1"], "layers.0 lies between the parts of emb layers.1", "Ask for it as well"),
        (["op=Softmax"], "unknown op 'Softmax'", "Known: "),
        (["op=Relu & module=emb"], "no node matches op=Relu & module=emb", "no node matches all of the query"),
        (["drop"], "'drop' (Dropout) was never called", "Give a module that the model uses"),
        (["layers.0", "--verify"], "--verify needs the model", "-m MODEL"),
    ],
)
def test_what_cannot_be_cut(
    small_path: Path, tmp_path: Path, capsys: Captured, asked: list[str], message: str, hint: str
) -> None:
    assert run("extract", small_path, *asked, "-o", tmp_path / "out" / "part.onnx") == 2
    (tmp_path / "out").mkdir()
    capsys.readouterr()
    assert run("extract", small_path, *asked, "-o", tmp_path / "out" / "part.onnx") == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {message}")
    assert hint in told
    assert not list((tmp_path / "out").iterdir())


def test_a_fused_module(small: SmallFile, tmp_path: Path, capsys: Captured) -> None:
    both = credited("layers.0", "layers.1.fc")
    fused = replace(both, evidence=(Evidence(EvidenceKind.LINEAGE, "some tool", "fused from 2"),))
    path = replace(small, owners={"h1": fused}).write(tmp_path / "whole.onnx")
    assert run("extract", path, "layers.0", "-o", tmp_path / "part.onnx") == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: layers.0 was fused with layers.1.fc: MatMul 'node_h1' does the work of both",
        "The smallest cut that exists is layers.0 layers.1.fc; the smallest module is (model).",
    ]
    assert run("extract", path, "layers.0", "layers.1.fc", "-o", tmp_path / "part.onnx") == 0


def test_the_file_itself_is_never_overwritten(small_path: Path, capsys: Captured) -> None:
    before = small_path.read_bytes()
    assert run("extract", small_path, "layers.0", "-o", small_path) == 2
    assert "would be lost" in capsys.readouterr().err
    assert small_path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x0a\x12"])
def test_what_is_no_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(content)
    assert run("extract", tmp_path / "a.onnx", "layers.0", "-o", tmp_path / "part.onnx") == 2


def test_names_with_control_characters_are_told_harmlessly(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("extract", small_path, "lay\x1b[31m", "-o", tmp_path / "part.onnx") == 2
    assert "\x1b" not in capsys.readouterr().err


class Recorder:
    """Stands in for `modelexport.extract`, with a comparison that came out as told."""

    def __init__(self, difference: Difference) -> None:
        self.asked: dict[str, Any] = {}
        self._compared = (OutputComparison("r0", "returned", difference),)

    def __call__(self, file: Path, modules: tuple[str, ...], output: Path, **options: Any) -> Extraction:
        self.asked = {"file": file, "modules": modules, "output": output, **options}
        found = REAL(file, modules, output)
        return replace(found, check=ExtractionCheck("my-net", 1e-4, {"e": Feed.FILE}, self._compared))


REAL = api.extract


def test_numbers_below_the_tolerance_are_told(
    small_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    for sqnr in (120.0, -3.0):
        monkeypatch.setattr(api, "extract", Recorder(replace(GOOD, sqnr=sqnr)))
        assert run("extract", small_path, "layers.0", "-o", tmp_path / f"{sqnr}.onnx", "--verify", "-m", "my-net") == 0
        assert ("the tolerance tells little" in capsys.readouterr().out) == (sqnr < 0)


@pytest.mark.parametrize(("difference", "code"), [(GOOD, 0), (WRONG, 1)])
def test_what_a_comparison_says(
    small_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    difference: Difference,
    code: int,
) -> None:
    recorder = Recorder(difference)
    monkeypatch.setattr(api, "extract", recorder)
    target = tmp_path / "part.onnx"
    assert run("extract", small_path, "layers.0", "-o", target, "--verify", "-m", "my-net") == code
    text = capsys.readouterr().out
    assert "e was fed a tensor of the whole file's" in text
    assert ("equals the module of my-net" in text) == (code == 0)
    assert ("r0: largest difference 2.5e-01" in text) == (code == 1)
    parameters = inspect.signature(REAL).parameters
    assert set(recorder.asked) == set(parameters)
    defaults = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
    assert {name: recorder.asked[name] for name in defaults} == {**defaults, "model": "my-net"}
