"""An export is made once; a refusal is remembered, and what is half made is not taken for a result."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from measure.anyfile.exports import NotMade, keep_current, load_export
from measure.anyfile.read_exports import ReadResult, read_export
from onnx import helper
from tests.support import building

from measure.anyfile import exports
from modelexport.graph.file.metadata import EmbedOptions, embed
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Attribution, Confidence, NodeEntry, Origin, Provenance

ROW = ("net", "dynamo")


def write_tagged(path: Path) -> None:
    """Two nodes of `first` and `second`, whose names say so as well as the record."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="/first/Relu"),
        helper.make_node("Relu", ["a"], ["y"], name="/second/Relu"),
    ]
    model = building.model(*nodes)
    graph = index_model(model)
    hierarchy = Hierarchy.of([building.module("", "Net"), *(building.module(name, "ReLU") for name in PATHS)])
    entries = {
        node.key: NodeEntry(
            node.key, node.name, "Relu", Attribution((ModuleCall(path),), ModuleCall(path), Confidence.EXACT)
        )
        for node, path in zip(graph.nodes, PATHS, strict=True)
    }
    embed(model, Provenance(hierarchy, entries, {}, Origin("test", "test", graph.fingerprint)), EmbedOptions())
    onnx.save(model, path)


PATHS = ("first", "second")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which rows were exported."""
    rows: list[str] = []

    def export(row: str, exporter: str, target: Path) -> None:
        rows.append(row)
        if exporter == "torchscript":
            target.write_bytes(b"half")
            raise NotMade("torch says no")
        write_tagged(target)

    monkeypatch.setattr(exports, "_export", export)
    return rows


def test_an_export_is_made_once(made: list[str], tmp_path: Path) -> None:
    first, second = (load_export(*ROW, tmp_path / "net") for _ in range(2))
    assert made == ["net"]
    assert first.model == second.model
    assert [entry.attribution.module for entry in second.record.nodes.values()] == ["first", "second"]


def test_a_refusal_is_remembered_and_leaves_nothing_half_made(made: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(NotMade, match="torch says no"):
            load_export("net", "torchscript", tmp_path / "net")
    assert made == ["net"]
    assert [path.name for path in (tmp_path / "net").iterdir()] == ["before.failed"]


def test_a_file_is_read_without_its_record(made: list[str], tmp_path: Path) -> None:
    plain, nameless = (read_export(*ROW, task, tmp_path / "net") for task in ("plain", "parameters"))
    assert (plain.score.nodes, nameless.score.nodes) == (2, 2)
    assert plain.score.class_right == plain.score.class_known == 0
    # With names gone and no parameters, nothing is left that could be read.
    assert (nameless.score.right, nameless.score.fallback) == (0, 2)
    refused = read_export("net", "torchscript", "plain", tmp_path / "other")
    assert refused == ReadResult("net", "torchscript", "plain", refusal="torch says no")


def test_exports_of_other_models_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "exports"
    keep_current(folder)
    (folder / "bert-dynamo").mkdir()
    keep_current(folder)
    assert (folder / "bert-dynamo").exists()
    (folder / "made-of").write_text("another")
    keep_current(folder)
    assert [path.name for path in folder.iterdir()] == ["made-of"]
