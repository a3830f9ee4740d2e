from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.support.command_line import run
from tests.support.small_file import SmallFile

jsonschema = pytest.importorskip("jsonschema")
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def changed(small: SmallFile, tmp_path: Path) -> Path:
    """The small file with another operator in one block and another weight in both."""
    path = small.write(tmp_path / "changed.onnx")
    model = onnx.load(path)
    for node in model.graph.node:
        node.op_type = "Tanh" if node.output[0] == "r1" else node.op_type
    for tensor in model.graph.initializer:
        if tensor.name.startswith("layers"):
            tensor.CopyFrom(numpy_helper.from_array(np.full((4, 4), 1.5, np.float32), tensor.name))
    onnx.save(model, path)
    return path


def test_nothing_differs(small_path: Path, capsys: Captured) -> None:
    assert run("diff", small_path, small_path) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["No differences."]


def test_summary(small_path: Path, changed: Path, capsys: Captured) -> None:
    assert run("diff", small_path, changed, "--no-cost") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "- layers.1 Block" in lines
    assert "    - replaced Relu → Tanh `node_r1`" in lines
    # The same in both blocks is told once.
    assert "- layers.{0,1}.fc Linear (2 modules)" in lines
    told = "    - weight float[4, 4]: largest difference up to 0.5, relative up to 50 % (2 weights)"
    assert told in lines


def test_json_keeps_to_its_schema(small_path: Path, changed: Path, capsys: Captured) -> None:
    text = (resources.files("modelexport.record") / "schema" / "diff.schema.json").read_text(encoding="utf-8")
    for right, code in ((small_path, 0), (changed, 1)):
        assert run("diff", small_path, right, "--format", "json") == code
        document = json.loads(capsys.readouterr().out)
        jsonschema.validate(document, json.loads(text))
        assert document["identical"] == (code == 0)
    assert {module["left"] for module in document["modules"]} == {"layers.1", "layers.0.fc", "layers.1.fc"}


def test_page_escapes_names(small_path: Path, changed: Path, tmp_path: Path) -> None:
    model = onnx.load(changed)
    next(node for node in model.graph.node if node.output[0] == "r1").name = "<script>alert(1)</script>"
    onnx.save(model, changed)
    page = tmp_path / "diff.html"
    assert run("diff", changed, small_path, "--format", "html", "-o", page) == 1
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "http://" not in text.replace("http-equiv", "")


def test_control_characters_do_not_reach_the_terminal(small_path: Path, changed: Path, capsys: Captured) -> None:
    model = onnx.load(changed)
    next(node for node in model.graph.node if node.output[0] == "r1").name = "\x1b[31mred"
    onnx.save(model, changed)
    run("diff", changed, small_path)
    assert "\x1b" not in capsys.readouterr().out


def test_quiet_says_nothing(small_path: Path, changed: Path, capsys: Captured) -> None:
    assert run("diff", small_path, changed, "-q") == 1
    assert capsys.readouterr().out == ""


def test_weights_need_not_be_read(small_path: Path, small: SmallFile, tmp_path: Path) -> None:
    assert run("diff", small_path, small.write(tmp_path / "b.onnx"), "--no-weights") == 0


def test_one_module_against_another(small_path: Path, capsys: Captured) -> None:
    arguments = ("--left-module", "layers.0", "--right-module", "layers.1")
    assert run("diff", small_path, small_path, *arguments) == 0
    assert "layers.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--left-module", "layers.7"], "unknown module 'layers.7'"),
        (["-o", "small.onnx"], "what the report is about"),
    ],
)
def test_mistakes(
    small_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(small_path.parent)
    before = small_path.read_bytes()
    assert run("diff", "small.onnx", "small.onnx", *arguments) == 2
    assert message in capsys.readouterr().err
    assert small_path.read_bytes() == before


def test_what_is_no_model(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    assert run("diff", small_path, tmp_path / "text.onnx") == 2
    assert "text.onnx is not an ONNX model" in capsys.readouterr().err
    assert run("diff", small_path, small_path.with_suffix(".hierarchy.json")) == 2
    assert "is a hierarchy record, not a model" in capsys.readouterr().err
