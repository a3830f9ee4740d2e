"""`modelexport select`."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.command_line import run
from tests.support.small_file import SmallFile
from tests.support.spoiled_files import EVIL, refused

import modelexport as mx
from modelexport.cli.transform import select as verb
from modelexport.transform.select.catalogue import DIALECTS

Captured = pytest.CaptureFixture[str]


def test_every_option_is_a_keyword_of_the_api() -> None:
    options = {parameter.name for parameter in verb.params} - {"model", "quiet", "verbose", "debug"}
    assert options == set(inspect.signature(mx.select).parameters) - {"source"}


def test_every_dialect_is_in_the_help(capsys: Captured) -> None:
    assert run("select", "--help") == 0
    text = capsys.readouterr().out
    assert [name for name in DIALECTS if f"  {name} " not in text] == []


def test_to_standard_output(small_path: Path, capsys: Captured) -> None:
    assert run("select", small_path, "op=MatMul", "--for", "ort-exclude") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == ["node_h0", "node_h1"]
    assert captured.err == "2 nodes selected\n"


def test_what_is_inside_of_a_module_that_was_named(small_path: Path, capsys: Captured) -> None:
    assert run("select", small_path, "class=Block | op=Add", "--for", "names") == 0
    captured = capsys.readouterr()
    inside = (
        "2 more nodes are inside of the modules that class=Block | op=Add names: within=Block | op=Add is with these"
    )
    assert inside in captured.err
    assert run("select", small_path, "class=Linear", "--for", "names") == 0
    assert "inside" not in capsys.readouterr().err


def test_to_a_file(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("select", small_path, "op=Relu", "--for", "names", "-o", tmp_path / "names.txt", "-q") == 0
    assert (tmp_path / "names.txt").read_text() == "node_r0\nnode_r1\n"
    assert capsys.readouterr() == ("", "")


def test_a_split_for_each_query(small_path: Path, capsys: Captured) -> None:
    assert run("select", small_path, "tensor=h0 & op=MatMul", "module=layers.1.**", "--for", "olive-split") == 0
    assert json.loads(capsys.readouterr().out) == {"split_assignments": {"node_h0": 0, "node_h1": 1, "node_r1": 1}}


def test_the_session_option_for_an_annotated_file(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    arguments = ["--for", "layer-ann", "-o", tmp_path / "a.onnx", "--device", "npu", "--label", "products"]
    assert run("select", small_path, "op=MatMul", *arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == "npu(=products)\n"
    assert f"wrote {tmp_path / 'a.onnx'}" in captured.err


def test_what_is_refused(small: SmallFile, tmp_path: Path, capsys: Captured) -> None:
    path = replace(small, names={"h0": "", "r0": EVIL}).write(tmp_path / "a.onnx")
    for query, dialect, message in (
        ("op=MatMul & op=Add", "names", "the query selects nothing"),
        ("op=Matmul", "names", "unknown op 'Matmul'"),
        ("op=MatMul", "names", "has no name"),
        ("op=Relu", "names", "control characters"),
        ("op=Relu", "tensorrt", "control characters"),
        ("op=Add", "layer-ann", "-o FILE.onnx"),
        ("op=Add", "torch", "unknown tool 'torch'"),
        ("op=Add &", "names", "op=Add &"),
        ("op=Add", "olive-split", "second split"),
    ):
        text = refused(tmp_path, capsys, "select", path, query, "--for", dialect)
        assert message in text
        assert "\x1b" not in text
    assert (
        "no such file" in refused(tmp_path, capsys, "select", tmp_path / "b.onnx", "op=Add", "--for", "names").lower()
    )
