from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from tests.support.command_line import run
from tests.support.small_file import NODES, SmallFile, credited

from modelexport.graph.file.metadata import TAG_KEY, Level


def test_analyze_shows_modules_and_tiered_coverage(small_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", small_path) == 0
    text = capsys.readouterr().out
    for word in ("layers", "Block", "Relu", "exact", "inferred", "fallback", "none", "scope", "drop", "not called"):
        assert word in text
    assert "node_h0" not in text


def test_analyze_detailed_lists_nodes(small_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", small_path, "--format", "detailed") == 0
    text = capsys.readouterr().out
    assert all(f"node_{key}" in text for key, *_ in NODES)


def test_analyze_json(small_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", small_path, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"][1] == {
        "name": "node_h0",
        "key": "h0",
        "op_type": "MatMul",
        "module": "layers.0.fc",
        "modules": ["layers.0.fc"],
        "tag": "/Net/Block.0",
        "role": None,
        "layer": None,
        "confidence": "exact",
        "evidence": ["scope:hand"],
    }
    assert document["roles"] == []


def test_analyze_csv(small_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", small_path, "--format", "csv", "--filter-tag", "Block.1") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["key"] for row in rows] == ["h1", "r1"]
    assert rows[0]["module"] == "layers.1.fc"


@pytest.fixture
def with_roles(small: SmallFile, tmp_path: Path) -> Path:
    """Two blocks with roles; the rest has none."""
    owners = {
        key: replace(credited(f"layers.{layer}{inside}"), role=role, layer_id=layer)
        for layer in (0, 1)
        for key, inside, role in ((f"h{layer}", ".fc", "mlp.up"), (f"r{layer}", "", "mlp.activation"))
    }
    return small.but(**owners).write(tmp_path / "roles.onnx")


def test_analyze_shows_roles(with_roles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", with_roles) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Roles")
    assert [line.split() for line in lines[start + 1 : start + 5]] == [
        ["role", "nodes", "layers"],
        ["mlp.up", "2", "33.3", "%", "0-1"],
        ["mlp.activation", "2", "33.3", "%", "0-1"],
        ["(none)", "2", "33.3", "%"],
    ]
    assert run("analyze", with_roles, "--format", "detailed") == 0
    detailed = capsys.readouterr().out.splitlines()
    assert ["node", "operator", "module", "role", "layer", "tag", "confidence", "evidence"] in map(str.split, detailed)
    row = next(line for line in detailed if line.startswith("node_h1"))
    assert row.split()[:5] == ["node_h1", "MatMul", "layers.1.fc", "mlp.up", "1"]


def test_analyze_without_roles_says_nothing_of_them(small_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", small_path, "--format", "detailed") == 0
    text = capsys.readouterr().out
    assert "Roles" not in text
    assert " role " not in text
    assert " layer " not in text


def test_analyze_writes_roles_for_programs(with_roles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", with_roles, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["roles"] == [
        {"role": "mlp.up", "nodes": 2, "layers": [0, 1]},
        {"role": "mlp.activation", "nodes": 2, "layers": [0, 1]},
    ]
    assert [(node["role"], node["layer"]) for node in document["nodes"]][2:4] == [("mlp.activation", 0), ("mlp.up", 1)]
    assert run("analyze", with_roles, "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["role"], row["layer"]) for row in rows[:2]] == [("", ""), ("mlp.up", "0")]


@pytest.mark.parametrize("form", ["summary", "detailed", "json", "csv"])
def test_analyze_into_a_file(form: str, small_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.txt"
    assert run("analyze", small_path, "--format", form, "-o", output) == 0
    assert capsys.readouterr().out == ""
    assert "Net" in output.read_text()
    assert "\x1b" not in output.read_text()


def test_analyze_into_a_place_that_cannot_be_written(
    small_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("analyze", small_path, "-o", tmp_path / "nowhere" / "out.txt") == 2
    assert "error: cannot write" in capsys.readouterr().err


def test_validate_exit_codes(small_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", small_path, "--check-consistency") == 0
    assert "nothing wrong" in capsys.readouterr().out
    model = onnx.load(small_path)
    next(entry for entry in model.graph.node[1].metadata_props if entry.key == TAG_KEY).value = "/Net/Nothing"
    onnx.save(model, small_path)
    assert run("validate", small_path) == 1
    assert "tag-unresolved" in capsys.readouterr().out
    assert run("validate", small_path, "--quiet") == 1
    assert capsys.readouterr().out == ""
    assert run("validate", small_path, "--repair", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["repaired"] == 1
    assert run("validate", small_path) == 0


def test_validate_output_without_repair(small_path: Path, tmp_path: Path) -> None:
    assert run("validate", small_path, "-o", tmp_path / "b.onnx") == 2
    assert not (tmp_path / "b.onnx").exists()


def test_validate_sums_up_many_findings(small: SmallFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small.but(h0=credited("layers.1.fc")).write(tmp_path / "a.onnx")
    assert run("validate", path, "--check-consistency", "-v") == 1
    text = capsys.readouterr().out
    assert "error dataflow" in text
    assert "1 error, 0 warnings" in text
    assert "onnx checker" in text


def test_compare(small: SmallFile, small_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", small_path, small_path) == 0
    assert "No differences." in capsys.readouterr().out
    other = small.but(r0=credited("")).write(tmp_path / "b.onnx")
    assert run("compare", small_path, other) == 1
    assert "2 modules differ: 1 node removed, 1 added, 0 changed" in capsys.readouterr().out
    assert run("compare", small_path, other, "--format", "json") == 1
    document = json.loads(capsys.readouterr().out)
    assert [found["operators"] for found in document["differences"]] == [{"Relu": [0, 1]}, {"Relu": [1, 0]}]


def test_a_file_without_a_record(small: SmallFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = replace(small, level=Level.NONE, sidecar=False).write(tmp_path / "a.onnx")
    for verb in (["analyze", path], ["compare", path, path], ["query", path, "op=*"], ["cost", path]):
        assert run(*verb) == 0
        note = capsys.readouterr().err
        assert note.startswith(f"note: no record in {path}: ")
        assert "modelexport attach" in note
        assert run(*verb, "--quiet") == 0
        output = capsys.readouterr()
        assert not output.err
        assert "note:" not in output.out


def test_validating_a_file_without_a_record(
    small: SmallFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file itself is checked; that there is no record is an error only for who requires one."""
    path = replace(small, level=Level.NONE, sidecar=False).write(tmp_path / "a.onnx")
    assert run("validate", path) == 0
    assert "warning record-missing" in capsys.readouterr().out
    assert run("validate", path, "--require-record") == 1
    assert "error record-missing" in capsys.readouterr().out
    assert run("validate", path, "--repair") == 2
    assert "no hierarchy record" in capsys.readouterr().err


def test_the_name_of_a_report_is_told(small_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.txt"
    for form in ("summary", "json", "csv"):
        assert run("analyze", small_path, "--format", form, "-o", target) == 0
        assert capsys.readouterr() == ("", f"wrote {target}\n")
    assert run("analyze", small_path, "-o", target, "-q") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("verb", ["analyze", "validate"])
def test_what_is_not_onnx(verb: str, small_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_path.write_bytes(small_path.read_bytes()[:300])
    assert run(verb, small_path) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "Traceback" not in error


@pytest.mark.parametrize("name", ["small.onnx", "small.hierarchy.json"])
def test_a_report_never_replaces_what_it_is_about(small_path: Path, name: str) -> None:
    target = small_path.with_name(name)
    before = small_path.read_bytes()
    assert run("analyze", small_path, "-o", target) == 2
    assert run("compare", small_path, small_path, "-o", target) == 2
    assert small_path.read_bytes() == before
