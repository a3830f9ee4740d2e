from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from tests.support.command_line import run
from tests.support.cost_files import file_of, header, value
from tests.support.small_file import SmallFile

import modelexport as mx

jsonschema = pytest.importorskip("jsonschema")

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A file with open axes, and an operator that nobody knows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Riddle", ["m"], ["y"], name="puzzle", domain="org.nowhere"),
    ]
    model = file_of(nodes, [value("x", ("batch", "sequence", 64), TensorProto.FLOAT)], [header("w", (64, 32))])
    path = tmp_path / "open.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_table(small_path: Path, capsys: Captured) -> None:
    assert run("cost", small_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "128 FLOPs, and 24 other operations"
    assert lines[2] == "72 parameters, 288 B of weights, 192 B of activations"
    rows = {line.split()[0]: line.split()[1:] for line in lines[4:]}
    assert rows["module"] == ["FLOPs", "share", "other", "parameters", "weights", "activations", "calls", "nodes"]
    assert rows["fc"][:3] == ["64", "50.0", "%"]


def test_levels(small_path: Path, capsys: Captured) -> None:
    assert run("cost", small_path, "--depth", 0) == 0
    shown = capsys.readouterr().out
    assert "Net" in shown
    assert "emb" not in shown
    assert "not shown: 7 modules; --all shows those with less than 0.5% of the total; a larger --depth" in shown
    assert run("cost", small_path, "--all") == 0
    shown = capsys.readouterr().out
    assert "drop" in shown
    assert "not shown" not in shown


def test_open_axes_are_shown_and_can_be_given(open_path: Path, capsys: Captured) -> None:
    assert run("cost", open_path) == 0
    shown = capsys.readouterr().out
    assert "4.1 K·batch·sequence FLOPs + what 1 node takes of which it is not known" in shown
    assert "--at batch=…,sequence=…" in shown
    assert "not known of 1 node: there is no rule for org.nowhere::Riddle" in shown
    assert run("cost", open_path, "--at", "batch=8,sequence=128") == 0
    assert "4.2 M FLOPs" in capsys.readouterr().out


def test_json_keeps_to_its_schema(open_path: Path, capsys: Captured) -> None:
    schema = json.loads((Path(mx.__file__).parent / "record" / "schema" / "cost.schema.json").read_text())
    assert run("cost", open_path, "--at", "batch=8", "--format", "json") == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    jsonschema.validate(document, schema)
    assert text.isascii()
    assert document["at"] == {"batch": 8}
    assert document["total"]["flops"] == "32768*sequence"
    assert document["total"]["unknown"] == {"flops": 1, "other": 1, "activation_bytes": 1}
    assert document["nodes"][1]["flops"] is None
    assert document["axes"][1] == {"name": "sequence", "source": "axis 1 of the input x", "input": True}


def test_json_of_a_tagged_file_keeps_to_its_schema(small_path: Path, capsys: Captured) -> None:
    schema = json.loads((Path(mx.__file__).parent / "record" / "schema" / "cost.schema.json").read_text())
    assert run("cost", small_path, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema)
    module = next(one for one in document["modules"] if one["path"] == "layers.0.fc")
    assert module["own"]["flops"] == 64
    assert module["total"]["parameters"] == 16


def test_csv(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("cost", small_path, "--format", "csv") == 0
    rows = {row["module"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows["layers.0.fc"]["flops"] == "64"
    assert rows["layers.0"]["own_flops"] == "0"
    target = tmp_path / "nodes.csv"
    assert run("cost", small_path, "--by", "node", "--format", "csv", "-o", target) == 0
    nodes = {row["key"]: row for row in csv.DictReader(io.StringIO(target.read_text()))}
    assert nodes["h0"]["kind"] == "matmul"
    assert nodes["h0"]["module"] == "layers.0.fc"


def test_nodes(open_path: Path, capsys: Captured) -> None:
    assert run("cost", open_path, "--by", "node") == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("product")).split()[:3] == ["product", "MatMul", "(model)"]
    assert "?" in next(line for line in lines if line.startswith("puzzle"))


@pytest.mark.parametrize(
    "text",
    [
        "batch",
        "batch=",
        "=8",
        "batch=x",
        "batch=-1",
        "batch=1.5",
        "batch=8,",
        "",
        "batch=²",
        pytest.param(f"batch={'9' * 5000}", id="long"),
    ],
)
def test_malformed_sizes(text: str, open_path: Path, capsys: Captured) -> None:
    assert run("cost", open_path, "--at", text) == 2
    said = capsys.readouterr().err
    assert "is no size of an axis" in said
    assert "--at batch=8,sequence=128" in said


def test_two_sizes_for_one_axis(open_path: Path, capsys: Captured) -> None:
    assert run("cost", open_path, "--at", "batch=8", "--at", "batch=9") == 2
    assert "two sizes" in capsys.readouterr().err


def test_an_axis_that_is_not_there(open_path: Path, capsys: Captured) -> None:
    assert run("cost", open_path, "--at", "bach=8") == 2
    said = capsys.readouterr().err
    assert "has no axis 'bach'" in said
    assert "Did you mean 'batch'? It has batch, sequence." in said


def test_a_report_never_goes_over_the_model(open_path: Path, capsys: Captured) -> None:
    before = open_path.read_bytes()
    assert run("cost", open_path, "-o", open_path) == 2
    assert open_path.read_bytes() == before
    capsys.readouterr()


def test_names_from_a_file_are_made_harmless(small: SmallFile, tmp_path: Path, capsys: Captured) -> None:
    path = replace(small, names={"h0": "\x1b[31mred", "h1": "=1+1"}).write(tmp_path / "a.onnx")
    assert run("cost", path, "--by", "node") == 0
    assert "\x1b" not in capsys.readouterr().out
    assert run("cost", path, "--by", "node", "--format", "csv") == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "'=1+1" in shown


def test_a_file_that_is_none(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model")
    assert run("cost", tmp_path / "a.onnx") == 2
    assert run("cost", tmp_path / "b.onnx") == 2
    assert "Traceback" not in capsys.readouterr().err
