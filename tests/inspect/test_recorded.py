from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper
from tests.support.small_file import NODES, SmallFile

from modelexport.api.read import analyze, load, validate
from modelexport.errors import FileUnreadable, RecordMismatch, RecordMissing, RecordUnreadable
from modelexport.graph.file.metadata import RECORD_KEY, Level, sidecar_path
from modelexport.record.provenance import Confidence


def test_the_record_in_the_file_is_enough(small: SmallFile, tmp_path: Path) -> None:
    path = replace(small, sidecar=False).write(tmp_path / "a.onnx")
    assert load(path) == load(str(path)) == small.provenance()


def test_the_record_beside_the_file_is_enough(small: SmallFile, tmp_path: Path) -> None:
    path = replace(small, level=Level.NONE).write(tmp_path / "a.onnx")
    assert load(path) == small.provenance()


def test_a_sidecar_can_be_loaded_without_its_file(small_path: Path, small: SmallFile) -> None:
    beside = sidecar_path(small_path)
    small_path.unlink()
    assert load(beside) == small.provenance()


def test_a_file_without_a_record_is_asked_for_its_modules(small: SmallFile, tmp_path: Path) -> None:
    path = replace(small, level=Level.NONE, sidecar=False).write(tmp_path / "a.onnx")
    assert load(path).origin.strategy == "file"
    analysis = analyze(path)
    assert not analysis.file.has_record
    assert "modelexport attach" in analysis.notes[0]
    [finding] = validate(path).findings
    assert (finding.severity, finding.code) == ("warning", "record-missing")


def test_a_file_without_a_record_says_how_to_get_one(small: SmallFile, tmp_path: Path) -> None:
    path = replace(small, level=Level.NONE, sidecar=False).write(tmp_path / "a.onnx")
    with pytest.raises(RecordMissing, match="modelexport attach"):
        validate(path, repair=True)


def test_nodes_have_the_names_of_the_file(small_path: Path) -> None:
    model = onnx.load(small_path)
    model.graph.node[1].name = "renamed"
    onnx.save(model, small_path)
    assert load(small_path).attribution("renamed").module == "layers.0.fc"


def test_a_node_made_after_the_export_has_no_module_and_says_why(small_path: Path) -> None:
    model = onnx.load(small_path)
    model.graph.node.insert(1, helper.make_node("Identity", ["e"], ["e2"], name="late"))
    onnx.save(model, small_path)
    provenance = load(small_path)
    assert len(provenance.nodes) == len(NODES) + 1
    late = provenance.attribution("late")
    assert (late.module, late.confidence) == (None, Confidence.NONE)
    assert "changed after export" in late.reason


def test_a_node_whose_operator_changed_is_known_less_well(small_path: Path) -> None:
    model = onnx.load(small_path)
    model.graph.node[2].op_type = "Sigmoid"
    onnx.save(model, small_path)
    attribution = load(small_path).attribution("r0")
    assert (attribution.module, attribution.confidence) == ("layers.0", Confidence.INFERRED)
    assert "was Relu" in str(attribution.evidence[-1])


def test_a_record_of_another_graph_is_refused(small: SmallFile, tmp_path: Path) -> None:
    path = replace(small, level=Level.NONE).write(tmp_path / "a.onnx")
    model = onnx.load(path)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"other_{name}" if name in {key for key, *_ in NODES} else name for name in names]
    model.graph.output[0].name = "other_y"
    onnx.save(model, path)
    with pytest.raises(RecordMismatch, match="0 of 6 nodes"):
        load(path)
    assert [finding.code for finding in validate(path).findings] == ["record-foreign"]


@pytest.mark.parametrize("text", ["", "[]", "{", "nonsense", '{"schema": 99}', '{"schema": 1}'])
def test_a_damaged_sidecar_is_not_a_record(text: str, small: SmallFile, tmp_path: Path) -> None:
    path = replace(small, level=Level.NONE).write(tmp_path / "a.onnx")
    sidecar_path(path).write_text(text)
    with pytest.raises(RecordUnreadable):
        load(path)


def test_a_damaged_record_in_the_file_is_replaced_by_the_one_beside_it(small_path: Path) -> None:
    model = onnx.load(small_path)
    for entry in model.metadata_props:
        if entry.key == RECORD_KEY:
            entry.value = entry.value[:60]
    onnx.save(model, small_path)
    assert load(small_path).attribution("h0").module == "layers.0.fc"
    assert [finding.code for finding in validate(small_path).findings] == ["record-unreadable"]
    sidecar_path(small_path).unlink()
    with pytest.raises(RecordUnreadable):
        load(small_path)


def test_a_file_that_is_not_onnx(tmp_path: Path, small_path: Path) -> None:
    truncated = tmp_path / "cut.onnx"
    truncated.write_bytes(small_path.read_bytes()[:200])
    (tmp_path / "text.onnx").write_text("hello")
    for path in (truncated, tmp_path / "text.onnx", tmp_path / "missing.onnx", tmp_path):
        with pytest.raises(FileUnreadable):
            load(path)
    with pytest.raises(FileUnreadable, match=r"Give the \.onnx file"):
        analyze(sidecar_path(small_path))


def test_a_sidecar_is_plain_json(small_path: Path) -> None:
    assert json.loads(sidecar_path(small_path).read_text())["schema"] == 1
