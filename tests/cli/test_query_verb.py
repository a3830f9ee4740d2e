from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.command_line import run
from tests.support.small_file import SmallFile, credited

from modelexport.record.provenance import unattributed

Captured = pytest.CaptureFixture[str]


def test_table(small_path: Path, capsys: Captured) -> None:
    assert run("query", small_path, "module=layers.*.** & op=MatMul") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "node     operator  module       tag           confidence",
        "node_h0  MatMul    layers.0.fc  /Net/Block.0  exact",
        "node_h1  MatMul    layers.1.fc  /Net/Block.1  exact",
        "",
        "2 of 6 nodes",
    ]
    assert captured.err == ""


def test_names(small_path: Path, capsys: Captured) -> None:
    assert run("query", small_path, "op=Relu | op=Add", "--format", "names") == 0
    assert capsys.readouterr().out == "node_r0\nnode_r1\nnode_y\n"


def test_a_name_that_does_not_say_which_node_is_its_key(small: SmallFile, tmp_path: Path, capsys: Captured) -> None:
    names = {"e": "", "h0": "twice", "h1": "twice", "r0": "r1", "r1": "r1_", "y": "y"}
    path = replace(small, names=names).write(tmp_path / "a.onnx")
    assert run("query", path, "module=**", "--format", "names") == 0
    assert capsys.readouterr().out.split() == ["e", "h0", "r0", "h1", "r1_", "y"]


def test_json(small: SmallFile, tmp_path: Path, capsys: Captured) -> None:
    owners = credited("layers.0.fc", "layers.1.fc")
    path = small.but(h0=owners, r0=unattributed("nobody knows")).write(tmp_path / "a.onnx")
    assert run("query", path, "tensor=h0", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "schema": 1,
        "query": "tensor=h0",
        "total": 6,
        "count": 2,
        "nodes": [
            {
                "name": "node_h0",
                "key": "h0",
                "op_type": "MatMul",
                "module": "",
                "modules": ["layers.0.fc", "layers.1.fc"],
                "tag": "/Net",
                "role": None,
                "layer": None,
                "relation": "kept",
                "sources": 1,
                "confidence": "exact",
                "evidence": ["scope:hand"],
            },
            {
                "name": "node_r0",
                "key": "r0",
                "op_type": "Relu",
                "module": None,
                "modules": [],
                "tag": "",
                "role": None,
                "layer": None,
                "relation": None,
                "sources": None,
                "confidence": "none",
                "evidence": [],
                "reason": "nobody knows",
            },
        ],
        "notes": [],
    }


@pytest.mark.parametrize(("form", "expected"), [("table", "0 of 6 nodes\n"), ("names", ""), ("json", None)])
def test_nothing_found_is_no_error(form: str, expected: str | None, small_path: Path, capsys: Captured) -> None:
    assert run("query", small_path, "op=Add & module=emb", "--format", form) == 0
    captured = capsys.readouterr()
    assert captured.err == "no node matches all of the query\n"
    if expected is None:
        assert json.loads(captured.out)["nodes"] == []
    else:
        assert captured.out == expected
    assert run("query", small_path, "op=Add & module=emb", "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("module=layer.0", "error: unknown module 'layer.0'\nDid you mean 'layers.0'?\n"),
        ("op=matmul", "error: unknown op 'matmul'\nDid you mean 'MatMul'?\n"),
        ("op=Add & (op=Relu", "error: this parenthesis is never closed\n  op=Add & (op=Relu\n           ^\n"),
        ("op=\x1b[31m", "error: unknown op '\\x1b[31m'\nKnown: Gather, MatMul, Relu, Add.\n"),
        ("op=Add \x1b=", "error: expected & or | here\n  op=Add \\x1b=\n         ^\n"),
    ],
)
def test_errors(query: str, error: str, small_path: Path, capsys: Captured) -> None:
    assert run("query", small_path, query) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == error


def test_a_record_alone(small_path: Path, capsys: Captured) -> None:
    record = small_path.with_suffix(".hierarchy.json")
    assert run("query", record, "module=emb", "--format", "names") == 0
    assert capsys.readouterr().out == "node_e\n"
    assert run("query", record, "param=emb.weight") == 2
    assert "Load the .onnx file" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["table", "names", "json"])
def test_names_from_the_file_stay_on_their_line(form: str, small: SmallFile, tmp_path: Path, capsys: Captured) -> None:
    names = {"h0": "a\nnode_fake\x1b[31m\u202e[bold]", "y": "[red]plain"}
    path = replace(small, names=names).write(tmp_path / "a.onnx")
    assert run("query", path, "op=MatMul | op=Add", "--format", form) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\nnode_fake" not in text
    assert "[red]plain" in text
    assert r"a\nnode_fake" in text


@pytest.mark.parametrize("form", ["table", "names", "json"])
def test_into_a_file(form: str, small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "found.txt"
    assert run("query", small_path, "op=Add", "--format", form, "-o", target) == 0
    assert "node_y" in target.read_text()
    assert capsys.readouterr().out == ""
    assert run("query", small_path, "op=Add", "-o", small_path) == 2
