from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.support.any_files import plain
from tests.support.small_file import SmallFile, credited

from modelexport.api.attach import attach
from modelexport.api.read import load, validate
from modelexport.errors import RecordMismatch
from modelexport.graph.file.metadata import MODULE_KEY, PREFIX, TAG_KEY, Level, read_node_keys, sidecar_path
from modelexport.inspect.validate import Severity
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Attribution, Confidence, unattributed


def codes(path: Path, *, check_consistency: bool = False) -> list[str]:
    return [finding.code for finding in validate(path, check_consistency).findings]


def edit(path: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


def set_key(node: onnx.NodeProto, key: str, value: str) -> None:
    for entry in node.metadata_props:
        if entry.key == key:
            entry.value = value


@pytest.mark.parametrize("level", list(Level))
def test_a_sound_file_has_no_findings(level: Level, small: SmallFile, tmp_path: Path) -> None:
    found = validate(replace(small, level=level).write(tmp_path / "a.onnx"), check_consistency=True)
    assert found.findings == ()
    assert found.ok
    assert "dataflow" in found.checks


def test_a_tag_that_names_nothing(small_path: Path) -> None:
    edit(small_path, lambda model: set_key(model.graph.node[1], TAG_KEY, "/Net/Nothing"))
    assert codes(small_path) == ["tag-unresolved", "node-keys-differ"]


def test_a_node_that_says_something_else_than_the_record(small_path: Path) -> None:
    edit(small_path, lambda model: set_key(model.graph.node[1], MODULE_KEY, "layers.1.fc"))
    finding = validate(small_path).findings[0]
    assert (finding.code, finding.subject) == ("node-keys-differ", "h0")
    assert "'layers.1.fc' on the node and 'layers.0.fc' in the record" in finding.message


def test_a_node_that_lost_its_keys(small_path: Path) -> None:
    def forget(model: onnx.ModelProto) -> None:
        del model.graph.node[1].metadata_props[:]

    assert codes(edit(small_path, forget)) == ["node-keys-missing"]


def test_a_changed_graph(small_path: Path) -> None:
    def drop_residual(model: onnx.ModelProto) -> None:
        model.graph.node[5].input[1] = "r1"

    assert codes(edit(small_path, drop_residual)) == ["graph-changed"]


def test_an_invalid_model(small_path: Path) -> None:
    def misspell(model: onnx.ModelProto) -> None:
        model.graph.node[2].op_type = "Rleu"

    assert codes(edit(small_path, misspell))[:2] == ["invalid-model", "graph-changed"]


def test_a_sidecar_of_another_file(small_path: Path, small: SmallFile) -> None:
    text = sidecar_path(small_path).read_text()
    fingerprint = small.provenance().origin.graph
    sidecar_path(small_path).write_text(text.replace(fingerprint, "0" * 64))
    assert codes(small_path) == ["sidecar-foreign"]
    sidecar_path(small_path).write_text(text.replace('"exact"', '"strong"', 1))
    assert codes(small_path) == ["sidecar-differs"]


def test_nodes_without_a_module_and_with_a_default_only(small: SmallFile, tmp_path: Path) -> None:
    recipe = small.but(h0=unattributed("no scope"), r0=credited("", confidence=Confidence.FALLBACK))
    found = validate(recipe.write(tmp_path / "a.onnx"))
    assert [(finding.code, finding.severity) for finding in found.findings] == [
        ("node-unattributed", Severity.ERROR),
        ("node-fallback", Severity.WARNING),
    ]
    assert "no scope" in found.findings[0].message


@pytest.mark.parametrize(("call", "code"), [("layers.7", "module-unknown"), ("layers.0#3", "call-unknown")])
def test_modules_and_calls_that_do_not_exist(call: str, code: str, small: SmallFile, tmp_path: Path) -> None:
    owner = ModuleCall.parse(call)
    recipe = small.but(r0=Attribution((owner,), owner, Confidence.EXACT))
    assert code in codes(recipe.write(tmp_path / "a.onnx"))


@pytest.mark.parametrize(
    ("node", "owner"),
    [
        ("h0", "layers.1.fc"),  # layer 0 alone uses it
        ("e", "layers.1"),  # layer 0 uses it as well
        ("h1", "emb"),  # it reads what layer 0 made
    ],
)
def test_what_dataflow_rules_out(node: str, owner: str, small: SmallFile, tmp_path: Path) -> None:
    wrong = credited(owner, confidence=Confidence.INFERRED)
    path = small.but(**{node: wrong}).write(tmp_path / "a.onnx")
    findings = validate(path, check_consistency=True).findings
    assert [(finding.code, finding.subject) for finding in findings] == [("dataflow", node)]
    assert "had ended before" in findings[0].message
    assert codes(path) == []


@pytest.mark.parametrize(
    ("node", "owners"), [("h0", ("layers.0.fc", "layers.1.fc")), ("h0", ("layers.0",)), ("h0", ("",))]
)
def test_what_dataflow_allows(node: str, owners: tuple[str, ...], small: SmallFile, tmp_path: Path) -> None:
    path = small.but(**{node: credited(*owners)}).write(tmp_path / "a.onnx")
    assert codes(path, check_consistency=True) == []


def test_dataflow_is_asked_about_what_nodes_say(small_path: Path) -> None:
    edit(small_path, lambda model: set_key(model.graph.node[1], MODULE_KEY, "layers.1.fc"))
    assert codes(small_path, check_consistency=True) == ["node-keys-differ", "dataflow"]


def test_calls_that_are_not_known_rule_nothing_out(tmp_path: Path) -> None:
    """A module that runs twice, in a file that says so by nothing but names: `act` reads what was made after it."""
    model = plain()
    for number, name in ((2, "/act/Relu"), (5, "/act_1/Relu")):
        model.graph.node[number].name = name
    onnx.save(model, tmp_path / "given.onnx")
    attach(tmp_path / "given.onnx", None, tmp_path / "tagged.onnx")
    owners = {entry.attribution.module for entry in load(tmp_path / "tagged.onnx").nodes.values()}
    assert owners == {"layers.0.fc", "layers.1.fc", "act"}
    result = validate(tmp_path / "tagged.onnx", check_consistency=True)
    assert (result.findings, "dataflow" in result.checks) == ((), False)


def test_repair_rewrites_the_keys_from_the_record(small_path: Path) -> None:
    original = small_path.read_bytes()
    edit(small_path, lambda model: set_key(model.graph.node[1], TAG_KEY, "/Net/Nothing"))
    found = validate(small_path, repair=True)
    assert (found.ok, found.repaired, found.written) == (True, 1, str(small_path))
    assert validate(small_path).ok
    assert onnx.load(small_path) == onnx.load_from_string(original)


def test_repair_leaves_a_sound_file_alone(small_path: Path) -> None:
    before = small_path.stat().st_mtime_ns
    assert validate(small_path, repair=True).written == ""
    assert small_path.stat().st_mtime_ns == before


def test_repair_into_another_file(small_path: Path, tmp_path: Path) -> None:
    def forget(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            del node.metadata_props[:]

    edit(small_path, forget)
    before = small_path.read_bytes()
    output = tmp_path / "repaired.onnx"
    assert validate(small_path, repair=True, output=output).repaired == 6
    assert small_path.read_bytes() == before
    assert validate(output).ok
    assert load(output) == load(small_path)


def test_repair_keeps_what_others_wrote(small_path: Path) -> None:
    def annotate(model: onnx.ModelProto) -> None:
        node = model.graph.node[1]
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value="%mm")
        set_key(node, TAG_KEY, "wrong")

    validate(edit(small_path, annotate), repair=True)
    node = onnx.load(small_path).graph.node[1]
    assert {entry.key: entry.value for entry in node.metadata_props}["pkg.torch.onnx.fx_node"] == "%mm"
    assert all(key.startswith(PREFIX) for key in read_node_keys(node))


def test_a_foreign_record_repairs_nothing(small: SmallFile, tmp_path: Path) -> None:
    path = small.write(tmp_path / "a.onnx")

    def replace_graph(model: onnx.ModelProto) -> None:
        del model.graph.node[:]
        model.graph.node.append(onnx.helper.make_node("Identity", ["ids"], ["z"]))
        model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.INT64, [2]))

    edit(path, replace_graph)
    with pytest.raises(RecordMismatch):
        validate(path, repair=True)


def test_data_of_another_version_of_the_model(tmp_path: Path) -> None:
    """As a run leaves it that is killed when the data is in its place and the model is not."""
    for name, scale in (("a", 1), ("b", 2)):
        folder = tmp_path / name
        folder.mkdir()
        model = plain()
        for tensor in model.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(scale), tensor.name))
        onnx.save(model, folder / "in.onnx", save_as_external_data=True, location="in.onnx.data", size_threshold=64)
        attach(folder / "in.onnx", None, folder / "out.onnx")
    assert codes(tmp_path / "a" / "out.onnx") == []
    (tmp_path / "b" / "out.onnx.data").replace(tmp_path / "a" / "out.onnx.data")
    found = validate(tmp_path / "a" / "out.onnx").errors
    assert [finding.code for finding in found] == ["data-foreign"]
    assert "4 of 4 weights in data files are not those" in found[0].message
