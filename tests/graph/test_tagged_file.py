"""A tagged file: its parts are made once, and its record is fitted to the nodes that the file has."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.small_file import SmallFile

from modelexport.errors import FileUnreadable, RecordMissing
from modelexport.graph.file.metadata import MODULE_KEY, EmbedOptions, Level, embed, sidecar_path
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.record import json_reading
from modelexport.record.hierarchy import Hierarchy, Module
from modelexport.record.provenance import NodeEntry, Origin, Provenance, unattributed


def relu_model() -> onnx.ModelProto:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def record_for(fingerprint: str, op_type: str = "Relu") -> Provenance:
    nodes = {"y": NodeEntry("y", "relu", op_type, unattributed("a test"))}
    return Provenance(Hierarchy.of([Module("", "Net", "")]), nodes, {}, Origin("htp", "dynamo", fingerprint))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "model.onnx"
    onnx.save(relu_model(), target)
    return target


def test_parts_are_made_once(path: Path) -> None:
    file = open_tagged(path)
    assert file.path == path
    assert file.graph is file.graph
    assert file.protos["y"].op_type == "Relu"


def test_a_missing_record_is_an_error_when_it_is_asked_for(path: Path) -> None:
    file = open_tagged(path)
    assert file.related_record is None
    with pytest.raises(RecordMissing, match=r"model\.onnx"):
        _ = file.record


def test_keys_that_are_not_those_of_the_record_are_counted(tmp_path: Path) -> None:
    path = SmallFile().write(tmp_path / "small.onnx")
    assert open_tagged(path).key_notes == ()
    model = onnx.load(path)
    for node, said in zip(model.graph.node[:2], ("1 node differ", "2 nodes differ"), strict=True):
        next(item for item in node.metadata_props if item.key == MODULE_KEY).value = "drop"
        onnx.save(model, path)
        (note,) = open_tagged(path).key_notes
        assert note == f"keys on {said} from the record: modelexport validate --repair {path}"
    lean = SmallFile(level=Level.NONE).write(tmp_path / "none.onnx")
    assert open_tagged(lean).key_notes == ()


def test_a_sidecar_is_no_model(path: Path) -> None:
    with pytest.raises(FileUnreadable, match="hierarchy record"):
        open_tagged(path.with_suffix(".hierarchy.json"))


def test_the_record_in_the_file_is_fitted_to_its_nodes(path: Path) -> None:
    model = relu_model()
    embed(model, record_for("another graph", op_type="LeakyRelu"), EmbedOptions())
    onnx.save(model, path)
    file = open_tagged(path)
    assert not file.is_up_to_date
    assert not file.is_record_beside
    assert file.record.nodes["y"].op_type == "LeakyRelu"
    assert file.provenance.nodes["y"].op_type == "Relu"
    assert file.provenance.edges is None
    assert file.provenance_with_edges.known_edges().producers["y"] == ("y",)


def test_a_sidecar_that_cannot_be_read_is_no_related_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever only wants to know whether there is one is not stopped; whoever needs the record is told why."""
    sidecar_path(path).write_text("{}", encoding="utf-8")

    def refuse(_: Path) -> BinaryIO:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(json_reading, "open_regular", refuse)
    file = open_tagged(path)
    assert file.related_record is None
    assert file.sidecar.problem is not None
    with pytest.raises(FileUnreadable, match="permission denied"):
        _ = file.record
