from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.support.building import attribution, body, model, module, node, provenance, run, set_metadata, weight

from modelexport.graph.file.metadata import (
    CONFIDENCE_KEY,
    EVIDENCE_KEY,
    LAYER_KEY,
    MODULE_KEY,
    MODULES_KEY,
    RECORD_KEY,
    ROLE_KEY,
    TAG_KEY,
    EmbedOptions,
    Level,
    embed,
    read_node_keys,
    read_record,
    rename_nodes,
    sidecar_path,
    strip_metadata,
)
from modelexport.graph.index import index_model, walk_nodes
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.packed import unpack
from modelexport.record.provenance import Attribution, Provenance

LAYERS = Hierarchy.of(
    [
        module("", "Net"),
        module("enc", "Encoder"),
        module("enc.layer", "ModuleList"),
        module("enc.layer.0", "Layer"),
        module("enc.layer.0.fc", "Linear"),
        module("head", "Head"),
    ],
    run("", "enc", "enc.layer.0", "enc.layer.0.fc", "enc.layer.0", "enc.layer.0.fc", "head"),
)
FOUND = {
    "h": ["enc.layer.0.fc"],
    "k": ["enc.layer.0", "head"],
    "y": ["head"],
    "y|then_branch|t": ["enc.layer.0#1"],
    "local::Twice|b": ["head"],
}


def everything(ir_version: int = 10) -> onnx.ModelProto:
    """A model with exporter metadata wherever metadata can be, and metadata of others beside it."""
    branch = body(node("Constant", "", "t", value=weight("", 1)), outputs="t", weights=[weight("v", 1)])
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 20)]
    )
    function.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None))
    proto = model(
        node("MatMul", "x w", "h", "mm"),
        node("Twice", "h", "k", "twice", domain="local"),
        node("If", "c", "y", then_branch=branch),
        inputs="x c",
        weights=[weight("w", 1, 2)],
        functions=[function],
        ir_version=ir_version,
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, None))
    for holder in holders(proto):
        set_metadata(holder, {"pkg.torch.onnx.name": "a", "namespace": "b", "pkg.onnxscript.x": "c", "mine": "kept"})
    return proto


def holders(message: object) -> Iterable[onnx.NodeProto]:
    """Whatever in a proto can carry metadata, found by reflection."""
    found = []
    descriptor = message.DESCRIPTOR  # type: ignore[attr-defined]
    if "metadata_props" in descriptor.fields_by_name:
        found.append(message)
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.message_type is not None and field.name != "metadata_props":
            for item in [value] if hasattr(value, "ListFields") else value:
                found += holders(item)
    return found  # type: ignore[return-value]


def metadata_keys(proto: onnx.ModelProto) -> list[list[str]]:
    return [[entry.key for entry in holder.metadata_props] for holder in holders(proto)]


def bare(proto: onnx.ModelProto, *, names: bool = True) -> bytes:
    """A model without any metadata (and without node names where asked)."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.ClearField("ir_version")
    for holder in holders(copy):
        holder.ClearField("metadata_props")
    if not names:
        for _, item in walk_nodes(copy):
            item.ClearField("name")
    return copy.SerializeToString(deterministic=True)


def record() -> Provenance:
    return provenance(everything(), LAYERS, FOUND)


ALL_OPTIONS = [EmbedOptions(level, strip_exporter_metadata=strip) for level in Level for strip in (True, False)]


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_nothing_but_metadata_changes(options: EmbedOptions) -> None:
    proto = everything()
    embed(proto, record(), options)
    assert bare(proto) == bare(everything())
    assert index_model(proto).fingerprint == index_model(everything()).fingerprint


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_embedding_twice_is_embedding_once(options: EmbedOptions) -> None:
    once, twice = everything(), everything()
    embed(once, record(), options)
    embed(twice, record(), EmbedOptions())
    embed(twice, record(), options)
    assert metadata_keys(once) == metadata_keys(twice)
    assert all(len(set(keys)) == len(keys) for keys in metadata_keys(twice))


def test_keys_of_an_earlier_embedding_are_replaced() -> None:
    proto = everything()
    embed(proto, record(), EmbedOptions())
    embed(proto, provenance(everything(), LAYERS, {"h": ["head"]}), EmbedOptions())
    keys = {key: read_node_keys(item) for key, item in walk_nodes(proto)}
    assert keys["h"][MODULE_KEY] == "head"
    assert MODULE_KEY not in keys["y"]
    assert TAG_KEY not in keys["y"]


def test_every_node_of_every_graph_says_where_it_comes_from() -> None:
    proto = everything()
    embed(proto, record(), EmbedOptions())
    keys = {key: read_node_keys(item) for key, item in walk_nodes(proto)}
    assert keys["h"] == {
        CONFIDENCE_KEY: "exact",
        TAG_KEY: "/Net/Encoder/Layer.0",
        MODULE_KEY: "enc.layer.0.fc",
        EVIDENCE_KEY: "scope:t",
    }
    assert keys["y|then_branch|t"][MODULE_KEY] == "enc.layer.0#1"
    assert keys["local::Twice|b"][MODULE_KEY] == "head"
    assert keys["k"][MODULE_KEY] == ""
    assert json.loads(keys["k"][MODULES_KEY]) == ["enc.layer.0", "head"]


def test_a_node_says_what_it_does_and_in_which_layer() -> None:
    proto, found = everything(), record()
    entry = found.nodes["h"]
    changed = replace(entry, attribution=replace(entry.attribution, role="mlp.up", layer_id=0))
    embed(proto, replace(found, nodes={**found.nodes, "h": changed}), EmbedOptions())
    keys = {key: read_node_keys(item) for key, item in walk_nodes(proto)}
    assert (keys["h"][ROLE_KEY], keys["h"][LAYER_KEY]) == ("mlp.up", "0")
    assert not {ROLE_KEY, LAYER_KEY} & keys["y"].keys()


def test_a_node_without_answer_has_its_confidence_alone() -> None:
    proto = model(node("Relu", "x", "y"))
    embed(proto, provenance(proto, LAYERS, {}), EmbedOptions())
    assert read_node_keys(proto.graph.node[0]) == {CONFIDENCE_KEY: "none"}


@pytest.mark.parametrize("level", [Level.FULL, Level.LEAN])
def test_the_model_carries_its_record(level: Level) -> None:
    proto = everything()
    embed(proto, record(), EmbedOptions(level))
    packed = read_record(proto)
    assert packed is not None
    assert unpack(packed) == record()


def test_a_lean_model_has_no_keys_on_nodes() -> None:
    proto = everything()
    embed(proto, record(), EmbedOptions(Level.LEAN))
    assert not any(read_node_keys(item) for _, item in walk_nodes(proto))


def test_nothing_leaves_nothing_behind() -> None:
    proto = everything()
    embed(proto, record(), EmbedOptions())
    embed(proto, record(), EmbedOptions(Level.NONE))
    assert read_record(proto) is None
    assert proto.SerializeToString(deterministic=True) == everything().SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("level", "before", "after"),
    [
        (Level.FULL, 8, 10),
        (Level.FULL, 10, 10),
        (Level.FULL, 11, 11),
        (Level.LEAN, 8, 8),
        (Level.NONE, 8, 8),
    ],
)
def test_the_format_is_raised_only_for_keys_on_nodes(level: Level, before: int, after: int) -> None:
    proto = everything(ir_version=before)
    embed(proto, record(), EmbedOptions(level))
    assert proto.ir_version == after


def test_metadata_of_the_exporter_goes_everywhere_and_that_of_others_nowhere() -> None:
    proto = everything()
    assert len(metadata_keys(proto)) > 12
    embed(proto, record(), EmbedOptions(Level.NONE, strip_exporter_metadata=True))
    assert {tuple(keys) for keys in metadata_keys(proto)} == {("mine",)}


def test_metadata_of_the_exporter_stays_unless_asked() -> None:
    proto = everything()
    embed(proto, record(), EmbedOptions())
    assert all(keys[:4] == metadata_keys(everything())[0] for keys in metadata_keys(proto))
    assert metadata_keys(proto)[0][-1] == RECORD_KEY


def test_stripping_matches_whole_keys_and_prefixes() -> None:
    proto = model(node("Relu", "x", "y"))
    set_metadata(proto.graph.node[0], {"namespace": "a", "namespaces": "b", "pkg.torch": "c", "pkg.torch.d": "e"})
    strip_metadata(proto, ("pkg.torch.",), ("namespace",))
    assert [entry.key for entry in proto.graph.node[0].metadata_props] == ["namespaces", "pkg.torch"]


def names_given(*nodes: onnx.NodeProto, found: dict[str, Attribution]) -> list[str]:
    proto = model(*nodes)
    rename_nodes(proto, found)
    return [item.name for _, item in walk_nodes(proto)]


def test_a_name_is_the_path_of_the_module_and_the_operator() -> None:
    proto = everything()
    rename_nodes(proto, {key: entry.attribution for key, entry in record().nodes.items()})
    assert {key: item.name for key, item in walk_nodes(proto)} == {
        "h": "/enc/layer.0/fc/MatMul",
        "k": "/Twice",
        "y": "/head/If",
        "y|then_branch|t": "/enc/layer.0#1/Constant",
        "local::Twice|b": "/head/Add",
    }
    assert bare(proto, names=False) == bare(everything(), names=False)


def test_a_node_without_answer_is_named_after_its_operator() -> None:
    assert names_given(node("Relu", "x", "h"), node("Relu", "h", "y"), found={}) == ["/Relu", "/Relu_1"]


def test_an_operator_that_looks_numbered_gets_no_name_twice() -> None:
    nodes = [node(op, f"v{place}", f"v{place + 1}") for place, op in enumerate(["Op", "Op", "Op_1", "Op_1", "Op"])]
    names = names_given(*nodes, found={})
    assert len(set(names)) == len(names)


@given(st.lists(st.tuples(st.sampled_from(["Op", "Op_1", "Op_1_1"]), st.sampled_from(["", "head", "enc"]))))
def test_names_are_unique(wanted: list[tuple[str, str]]) -> None:
    nodes = [node(op, f"v{place}", f"v{place + 1}") for place, (op, _) in enumerate(wanted)]
    found = {f"v{place + 1}": attribution(LAYERS, path) for place, (_, path) in enumerate(wanted)}
    names = names_given(*nodes, found=found)
    assert len(set(names)) == len(names)
    assert all(name.startswith(f"/{path}" if path else "/Op") for name, (_, path) in zip(names, wanted, strict=True))


def test_the_record_beside_a_model_bears_its_name() -> None:
    assert sidecar_path(Path("a/bert.v2.onnx")) == Path("a/bert.v2.hierarchy.json")
