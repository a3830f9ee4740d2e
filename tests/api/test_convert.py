"""Converting a file: overlays, two models side by side, copies for Netron, and what cannot be converted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.exports import Exports
from tests.support.small_file import SmallFile

import modelexport as mx
from modelexport.errors import (
    FileUnreadable,
    FileUnwritable,
    RecordMismatch,
    RecordMissing,
    RecordUnreadable,
    UnknownName,
    UserError,
)
from modelexport.graph.file.metadata import RECORD_KEY
from modelexport.record.provenance import unattributed
from modelexport.show.data.results import to_json


@pytest.fixture
def small_path(tmp_path: Path) -> Path:
    return SmallFile().write(tmp_path / "small.onnx")


def explored(path: Path, output: Path, **options: Any) -> mx.Converted:
    return mx.convert(path, output, "model-explorer", **options)


def test_a_layer_has_the_time_that_the_profile_says_of_its_module(bert: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "profile.json"
    found = mx.profile(bert, runs=2, warmup=0)
    overlay.write_text(to_json(found))
    written = explored(bert, tmp_path / "b.json", overlays=[overlay])
    assert [path.name for path in written.files] == ["b.json", "b.profile.node-data.json"]
    (data,) = json.loads(written.files[1].read_text()).values()
    (graph,) = json.loads(written.path.read_text())["graphs"]
    modules = {node["id"]: _attributes(node).get("module") for node in graph["nodes"]}
    assert set(data["results"]) <= set(modules)
    for module in found.modules:
        assert module.path is not None
        inside = [
            result["value"]
            for key, result in data["results"].items()
            if not module.path or f"{modules[key]}.".startswith(f"{module.path}.")
        ]
        # What several modules inside of it have in common may be among their nodes.
        assert sum(inside) >= module.time - 0.1
    assert sum(result["value"] for result in data["results"].values()) == pytest.approx(found.time, abs=0.1)


def test_errors_colour_the_nodes_of_a_module(small_path: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "verify.json"
    overlay.write_text(json.dumps(_verification()))
    written = explored(small_path, tmp_path / "s.json", overlays=[overlay])
    errors, verdicts = (next(iter(json.loads(path.read_text()).values())) for path in written.files[1:])
    values = {key: result["value"] for key, result in errors["results"].items()}
    # What has no number of its own has that of the module around it.
    assert values == {"e": 0.5, "h0": 0.001, "r0": 0.001, "h1": "not finite", "r1": 0.5, "y": 0.5}
    assert errors["results"]["h1"]["bgColor"] != errors["results"]["h0"]["bgColor"]
    assert {key: result["value"] for key, result in verdicts["results"].items()} == {"h0": "proved"}


def _verification() -> dict[str, Any]:
    def call(path: str, class_name: str, error: float | None, *, agrees: bool) -> dict[str, Any]:
        outputs = {"max_abs": error, "sqnr": 20.0, "equal": False, "agrees": agrees}
        return {"path": path, "call": 0, "class": class_name, "status": "ok", "reason": "", "outputs": outputs}

    calls = [
        call("", "Net", 0.5, agrees=False),
        call("layers.0", "Block", 0.001, agrees=True),
        call("layers.1.fc", "Linear", None, agrees=False),
        _not_compared("emb", "Embedding"),
    ]
    proof = {"nodes": [{"key": "h0", "verdict": "proved"}, {"key": "gone", "verdict": "proved"}]}
    told = {"schema": 1, "file": "small.onnx", "reference": "net", "numbers_agree": False, "notes": []}
    return told | {"calls": calls, "proof": proof, "as_deployed": False}


def _not_compared(path: str, class_name: str) -> dict[str, Any]:
    call = {"path": path, "call": 0, "class": class_name, "status": "not compared"}
    return call | {"reason": "", "outputs": None}


def _profile(path: str | None, class_name: str, **node: Any) -> dict[str, Any]:
    told = {"key": "h0", "charged_to": path, "modules": [], "others": [], "time_us": 1.0} | node
    modules = [{"path": path, "class": class_name, "self_us": 1.0}]
    document = {"schema": 1, "file": "small.onnx", "runs": 1, "optimization": "all", "sum_check": {}, "notes": []}
    return document | {"modules": modules, "nodes": [told]}


def test_verdicts_about_what_onnx_runtime_made_are_not_those_of_the_file(small_path: Path, tmp_path: Path) -> None:
    """A node of the optimized graph may have the key of another one that it took the place of."""
    overlay = tmp_path / "verify.json"
    overlay.write_text(json.dumps(_verification() | {"as_deployed": True}))
    written = explored(small_path, tmp_path / "s.json", overlays=[overlay])
    assert [path.name for path in written.files] == ["s.json", "s.verify.node-data.json"]


def test_a_node_that_nothing_is_known_of_has_its_time(tmp_path: Path) -> None:
    path = SmallFile().but(h0=unattributed("nothing said so")).write(tmp_path / "small.onnx")
    document = _profile(None, "", time_us=3.0)
    document["modules"].append({"path": "", "class": "Net", "self_us": 0.0})
    overlay = tmp_path / "profile.json"
    overlay.write_text(json.dumps(document))
    written = explored(path, tmp_path / "s.json", overlays=[overlay])
    assert written.notes == ()
    assert json.loads(written.files[1].read_text())["small"]["results"]["h0"] == {"value": 3.0}


@pytest.mark.parametrize(
    "document",
    [
        _verification() | {"calls": [_not_compared("", "Other")]},
        _verification() | {"calls": []},
        _profile("layers.7", "Block"),
        _profile("", "Other"),
    ],
)
def test_an_overlay_of_another_model_is_refused(document: dict[str, Any], small_path: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.json"
    overlay.write_text(json.dumps(document))
    with pytest.raises(RecordMismatch, match=r"overlay\.json"):
        explored(small_path, tmp_path / "s.json", overlays=[overlay])
    assert not (tmp_path / "s.json").exists()


def test_an_overlay_needs_the_modules_of_the_file(small_path: Path, tmp_path: Path) -> None:
    mx.strip(small_path, tmp_path / "bare.onnx")
    overlay = tmp_path / "verify.json"
    overlay.write_text(json.dumps(_verification()))
    with pytest.raises(RecordMismatch):
        explored(tmp_path / "bare.onnx", tmp_path / "s.json", overlays=[overlay])


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "[" * 100_000),
        json.dumps(_verification() | {"schema": 2}),
        json.dumps(_verification() | {"calls": 3}),
        json.dumps(_profile("", "Net", time_us=math.nan)),
    ],
)
def test_what_is_no_overlay_is_refused(text: str, small_path: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.json"
    overlay.write_text(text)
    with pytest.raises(FileUnreadable, match=r"overlay\.json"):
        explored(small_path, tmp_path / "s.json", overlays=[overlay])
    assert not (tmp_path / "s.json").exists()


def test_two_models_are_followed_by_lineage(exports: Exports, tmp_path: Path) -> None:
    """A fused node is found from each of those that it was made from."""
    before = exports("bert", "dynamo").path
    after = tmp_path / "optimized.onnx"
    mx.run_tool(before, "ort:extended", after)
    written = explored(before, tmp_path / "b.json", against=after)
    assert written.files[1].name == "b.optimized.sync.json"
    document = json.loads(written.files[1].read_text())
    assert (document["type"], document["disableMappingFallback"]) == ("sync_navigation", True)
    left, right = _ids(written.path), _ids(explored(after, tmp_path / "a.json").path)
    seen: tuple[list[str], list[str]] = [], []
    for entry in document["mappingEntries"]:
        seen[0].extend(entry["leftNodeIds"])
        seen[1].extend(entry["rightNodeIds"])
    assert len(seen[0]) == len(set(seen[0]))
    assert len(seen[1]) == len(set(seen[1]))
    for ids, found in zip((left, right), seen, strict=True):
        assert {one for one in found if not one.endswith("___group___")} <= ids
    operators = {node.output[0] for node in onnx.load(after, load_external_data=False).graph.node}
    assert len(operators & set(seen[1])) >= 0.9 * len(operators)
    assert any(
        len(entry["leftNodeIds"]) > 1 and len(entry["rightNodeIds"]) == 1 for entry in document["mappingEntries"]
    )


def test_two_exports_are_followed_by_module(exports: Exports, tmp_path: Path) -> None:
    one, other = exports("bert", "dynamo").path, tmp_path / "other.onnx"
    torchscript = exports("bert", "torchscript").path
    other.write_bytes(torchscript.read_bytes())
    written = explored(one, tmp_path / "b.json", against=other)
    entries = json.loads(written.files[1].read_text())["mappingEntries"]
    layer = "encoder (BertEncoder)/layer.0 (BertLayer)/attention (BertAttention)___group___"
    assert {"leftNodeIds": [layer], "rightNodeIds": [layer]} in entries


def test_whatever_two_files_both_have_is_followed(small_path: Path, tmp_path: Path) -> None:
    """Model Explorer shows as a difference what is in no entry: weights, inputs, outputs and their layers as well."""
    other = tmp_path / "other.onnx"
    other.write_bytes(small_path.read_bytes())
    written = explored(small_path, tmp_path / "s.json", against=other)
    (graph,) = json.loads(written.path.read_text())["graphs"]
    spaces = [node["namespace"].split("/") for node in graph["nodes"] if node["namespace"]]
    layers = {f"{'/'.join(names[: depth + 1])}___group___" for names in spaces for depth in range(len(names))}
    entries = json.loads(written.files[1].read_text())["mappingEntries"]
    assert all(entry["leftNodeIds"] == entry["rightNodeIds"] for entry in entries)
    assert sorted(one for entry in entries for one in entry["leftNodeIds"]) == sorted(_ids(written.path) | layers)


def test_a_quantized_weight_is_found_from_the_one_before(exports: Exports, tmp_path: Path) -> None:
    before, after = exports("bert", "dynamo").path, tmp_path / "int8.onnx"
    mx.run_tool(before, "int8", after)
    written = explored(before, tmp_path / "b.json", against=after)
    entries = json.loads(written.files[1].read_text())["mappingEntries"]
    (entry,) = (one for one in entries if "embeddings.word_embeddings.weight" in one["leftNodeIds"])
    assert "embeddings.word_embeddings.weight_quantized" in entry["rightNodeIds"]


def test_two_models_that_have_nothing_in_common_are_refused(small_path: Path, tmp_path: Path) -> None:
    onnx.save(_chain(3), tmp_path / "chain.onnx")
    with pytest.raises(RecordMismatch, match="in common"):
        explored(small_path, tmp_path / "s.json", against=tmp_path / "chain.onnx")
    assert not (tmp_path / "s.json").exists()


def _attributes(node: dict[str, Any]) -> dict[str, str]:
    return {one["key"]: one["value"] for one in node["attrs"]}


def _ids(path: Path) -> set[str]:
    return {node["id"] for graph in json.loads(path.read_text())["graphs"] for node in graph["nodes"]}


def test_netron_gets_names_and_metadata(bert: Path, tmp_path: Path) -> None:
    written = mx.convert(bert, tmp_path / "named.onnx", "netron")
    nodes = onnx.load(written.path).graph.node
    names = [node.name for node in nodes]
    assert len(set(names)) == len(names)
    assert "/encoder/layer.0/attention/self/query/MatMul" in names
    named = {node.name: {prop.key: prop.value for prop in node.metadata_props} for node in nodes}
    query = named["/encoder/layer.0/attention/self/query/MatMul"]
    assert query["pkg.modelexport.module"] == "encoder.layer.0.attention.self.query"
    assert query["pkg.modelexport.confidence"] == "exact"
    assert all("pkg.modelexport.confidence" in props for props in named.values())
    before = onnx.load(bert)
    assert [node.output for node in nodes] == [node.output for node in before.graph.node]
    assert onnx.load(written.path).graph.initializer == before.graph.initializer
    assert mx.load(written.path).entry("/encoder/layer.0/attention/self/query/MatMul").key


def test_weights_are_not_read(tmp_path: Path) -> None:
    """The file that they are in is not even there."""
    model = SmallFile().proto()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone.bin")
    onnx.save(model, tmp_path / "a.onnx")
    for to in ("model-explorer", "graphml", "dot", "mermaid", "csv"):
        assert mx.convert(tmp_path / "a.onnx", tmp_path / f"a.{to}", to).path.stat().st_size


def test_without_modules_nothing_is_grouped_and_a_note_says_so(tmp_path: Path) -> None:
    onnx.save(_chain(3), tmp_path / "chain.onnx")
    written = explored(tmp_path / "chain.onnx", tmp_path / "o.json")
    assert "nothing is grouped" in written.notes[0]
    assert "attach" in written.notes[1]
    spaces = {node["namespace"] for node in json.loads(written.path.read_text())["graphs"][0]["nodes"]}
    assert spaces == {"", "GraphInputs", "GraphOutputs"}


def test_a_damaged_record_is_an_error(small_path: Path, tmp_path: Path) -> None:
    model = onnx.load(small_path)
    next(one for one in model.metadata_props if one.key == RECORD_KEY).value = "modelexport-record-1:x"
    onnx.save(model, tmp_path / "damaged.onnx")
    with pytest.raises(RecordUnreadable):
        explored(tmp_path / "damaged.onnx", tmp_path / "o.json")


def _chain(count: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", [f"v{place}"], [f"v{place + 1}"]) for place in range(count)]
    first, last = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])] for name in ("v0", f"v{count}"))
    return helper.make_model(helper.make_graph(nodes, "chain", first, last))


def test_mermaid_cannot_draw_a_large_graph_without_modules(tmp_path: Path) -> None:
    onnx.save(_chain(600), tmp_path / "a.onnx")
    with pytest.raises(RecordMissing, match="500 edges") as caught:
        mx.convert(tmp_path / "a.onnx", tmp_path / "a.mmd", "mermaid")
    assert "attach" in caught.value.hint
    assert not (tmp_path / "a.mmd").exists()


def test_mermaid_draws_more_modules_rather_than_a_single_box(
    small_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelexport.show.formats.catalogue._MOST_MERMAID_MODULES", 2)
    written = mx.convert(small_path, tmp_path / "a.mmd", "mermaid")
    assert written.notes == ("modules are drawn, 1 level deep",)
    assert "layers.1 (Block)" in written.path.read_text()
    monkeypatch.setattr("modelexport.show.formats.dot_mermaid_graphml_csv.MOST_EDGES", 3)
    written = mx.convert(small_path, tmp_path / "a.mmd", "mermaid")
    assert written.notes == ("modules are drawn, as one box",)


def test_dot_draws_modules_if_there_are_too_many_nodes(
    exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelexport.show.formats.catalogue._MOST_DOT_NODES", 50)
    written = mx.convert(exports("bert", "dynamo").path, tmp_path / "a.dot", "dot")
    assert "modules are drawn instead" in written.notes[0]
    text = written.path.read_text()
    assert "query (Linear)" in text
    assert "Softmax" not in text


def test_a_large_graph_takes_seconds(tmp_path: Path) -> None:
    """Linear: twenty thousand nodes with something quadratic in them would take minutes."""
    onnx.save(_chain(20_000), tmp_path / "a.onnx")
    written = mx.convert(tmp_path / "a.onnx", tmp_path / "a.graphml", "graphml")
    assert written.path.read_text().count("<edge ") == 20_001


@pytest.mark.parametrize(("to", "near"), [("graph-ml", "graphml"), ("modelexplorer", "model-explorer"), ("DOT", "dot")])
def test_an_unknown_format_is_answered_with_the_nearest(to: str, near: str, small_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=f"unknown format '{to}'") as caught:
        mx.convert(small_path, tmp_path / "a", to)
    assert repr(near) in caught.value.hint


@pytest.mark.parametrize("to", ["model-explorer", "graphml", "csv", "netron"])
def test_a_depth_is_for_pictures_of_modules(to: str, small_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="depth"):
        mx.convert(small_path, tmp_path / "a.onnx", to, depth=1)


def test_overlays_are_for_model_explorer(small_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="overlays"):
        mx.convert(small_path, tmp_path / "a.dot", "dot", overlays=[tmp_path / "x.json"])


def test_what_is_read_is_never_written_over(small_path: Path, tmp_path: Path) -> None:
    content = small_path.read_bytes()
    overlay = tmp_path / "verify.json"
    overlay.write_text(json.dumps(_verification()))
    for target, to in ((small_path, "netron"), (small_path, "csv"), (small_path.with_suffix(".hierarchy.json"), "csv")):
        with pytest.raises(FileUnwritable, match="would be lost"):
            mx.convert(small_path, target, to)
    with pytest.raises(FileUnwritable, match="would be lost"):
        explored(small_path, overlay, overlays=[overlay])
    assert small_path.read_bytes() == content
    assert json.loads(overlay.read_text()) == _verification()


def test_the_record_of_what_is_read_is_not_written_over_by_that_of_a_copy(small_path: Path) -> None:
    record = small_path.with_suffix(".hierarchy.json")
    content = record.read_text()
    with pytest.raises(FileUnwritable, match="would be lost"):
        mx.convert(small_path, small_path.with_suffix(".netron"), "netron")
    assert record.read_text() == content


@pytest.mark.parametrize("to", ["csv", "model-explorer"])
def test_weights_are_never_written_over(to: str, small_path: Path, tmp_path: Path) -> None:
    onnx.save(onnx.load(small_path), small_path, save_as_external_data=True, location="w.data", size_threshold=1)
    content = (tmp_path / "w.data").read_bytes()
    with pytest.raises(FileUnwritable, match="would be lost"):
        mx.convert(small_path, tmp_path / "w.data", to)
    assert (tmp_path / "w.data").read_bytes() == content


def test_a_record_is_no_model(small_path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="not a model"):
        mx.convert(small_path.with_suffix(".hierarchy.json"), tmp_path / "a.csv", "csv")
