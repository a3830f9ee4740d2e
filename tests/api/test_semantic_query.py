"""Nodes by what they are, against the modules that are known to be that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx
import pytest
from tests.support.building import model, node, provenance, tree
from tests.support.exports import Exports

import modelexport as mx
from modelexport.api.mission import MODULE_TYPES
from modelexport.errors import QueryInvalid, UnknownName

both_exporters = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


def modules(nodes: Iterable[mx.NodeEntry]) -> set[str | None]:
    return {entry.attribution.module for entry in nodes}


def asked(exports: Exports, name: str, exporter: str = "dynamo") -> mx.SemanticQueryInterface:
    """Of the file alone."""
    return mx.SemanticQueryInterface(mx.load(exports(name, exporter).path))


@both_exporters
@pytest.mark.parametrize("layer", [0, 1])
def test_attention_of_one_layer(exports: Exports, exporter: str, layer: int) -> None:
    parts = asked(exports, "bert", exporter).get_attention_components(layer_id=layer)
    attention = f"encoder.layer.{layer}.attention"
    for name in ("query", "key", "value"):
        assert modules(parts[name]) == {f"{attention}.self.{name}"}
    assert modules(parts["output"]) == {f"{attention}.output.dense"}
    for name in ("scores", "softmax", "context"):
        assert modules(parts[name]) == {f"{attention}.self"}
        assert len(parts[name]) == 1
    assert not any("cross" in name for name in parts)


def test_attention_of_all_layers_is_that_of_each(exports: Exports) -> None:
    q = asked(exports, "bert")
    assert q.layer_ids == (0, 1)
    whole, layers = q.get_attention_components(), [q.get_attention_components(number) for number in q.layer_ids]
    assert whole.keys() == layers[0].keys()
    for name, nodes in whole.items():
        assert set(nodes) == {entry for layer in layers for entry in layer[name]}


@both_exporters
def test_cross_attention_is_apart_and_a_module_tells_encoder_from_decoder(exports: Exports, exporter: str) -> None:
    q = asked(exports, "t5", exporter)
    encoder, decoder = (q.get_attention_components(0, side) for side in ("encoder", "decoder"))
    assert modules(encoder["query"]) == {"encoder.block.0.layer.0.SelfAttention.q"}
    assert modules(decoder["query"]) == {"decoder.block.0.layer.0.SelfAttention.q"}
    assert modules(decoder["cross_attention.key"]) == {"decoder.block.0.layer.1.EncDecAttention.k"}
    assert not any(name.startswith("cross_attention") for name in encoder)
    assert len(q.get_attention_components(0)["query"]) == len(encoder["query"]) + len(decoder["query"])
    cross, own = (q.find_nodes_by_module_type(f"{kind}_attention") for kind in ("cross", "self"))
    assert cross
    assert own
    assert set(cross).isdisjoint(own)
    assert {*cross, *own} == set(q.find_nodes_by_module_type("attention"))


def test_one_matrix_for_query_key_and_value(exports: Exports) -> None:
    parts = asked(exports, "gpt2").get_attention_components(1)
    assert modules(parts["qkv"]) == {"transformer.h.1.attn.c_attn"}
    assert "query" not in parts


def test_no_attention_is_invented(exports: Exports) -> None:
    q = asked(exports, "resnet")
    assert q.get_attention_components() == q.get_attention_components(0) == {}
    assert q.find_nodes_by_module_type("attention") == ()


@both_exporters
def test_linear_projections_are_the_nodes_of_linear_modules(exports: Exports, exporter: str) -> None:
    """BERT projects by nothing but `nn.Linear`, and does nothing else with it."""
    q = asked(exports, "bert", exporter)
    found = q.find_nodes_by_module_type("linear_projection")
    owners = {path for path, part in q.provenance.hierarchy.modules.items() if part.class_name == "Linear"}
    assert modules(found) == owners
    assert set(found) == set(q.find_nodes_by_module_type("Linear"))


@pytest.mark.parametrize(
    ("module_type", "class_name"),
    [
        ("normalization", "LayerNorm"),
        ("activation", "GELUActivation"),
        ("head", "BertPooler"),
    ],
)
def test_types_agree_with_the_modules_that_are_of_this_kind(
    exports: Exports, module_type: str, class_name: str
) -> None:
    q = asked(exports, "bert")
    found, inside = (set(q.find_nodes_by_module_type(name)) for name in (module_type, class_name))
    assert found & inside
    # The pooler's own tanh is an activation as well, and not a head.
    assert {entry.op_type for entry in found ^ inside} <= {"Tanh", "Gather", "Slice", "Squeeze"}


def test_types_of_a_convolutional_network(exports: Exports) -> None:
    q = asked(exports, "resnet")
    convolutions = q.find_nodes_by_module_type("convolution")
    assert set(convolutions) == {entry for entry in q.provenance.nodes.values() if entry.op_type == "Conv"}
    assert modules(q.find_nodes_by_module_type("stem")) == {"embedder.embedder"}
    assert {entry.op_type for entry in q.find_nodes_by_module_type("residual")} == {"Add"}
    assert {entry.op_type for entry in q.find_nodes_by_module_type("activation")} == {"Relu"}
    assert q.find_nodes_by_module_type("linear_projection") == ()
    # Folded into the convolutions: no node normalizes, and the class still finds what became of it.
    assert q.find_nodes_by_module_type("normalization") == ()
    assert set(q.find_nodes_by_module_type("BatchNorm2d")) == set(convolutions)


def test_a_convolution_in_the_place_of_a_projection_is_a_convolution() -> None:
    proto = model(node("Conv", "x w", "h"), node("MatMul", "h v", "y"), weights="wv")
    found = provenance(proto, tree({"": "Net"}), {})
    roles = {
        key: replace(entry, attribution=replace(entry.attribution, role="attention.query"))
        for key, entry in found.nodes.items()
    }
    q = mx.SemanticQueryInterface(replace(found, nodes=roles))
    assert [entry.key for entry in q.find_nodes_by_module_type("linear_projection")] == ["y"]
    assert [entry.key for entry in q.find_nodes_by_module_type("convolution")] == ["h"]
    assert len(q.get_attention_components()["query"]) == 2  # nodes without a module are not left out


def test_a_node_that_is_all_of_an_attention() -> None:
    proto = model(node("Attention", "x x x", "h"), node("Attention", "h x x", "y"))
    found = provenance(proto, tree({"": "Net"}), {})
    roles = dict(zip("hy", ("attention", "cross_attention"), strict=True))
    nodes = {
        key: replace(entry, attribution=replace(entry.attribution, role=roles[key]))
        for key, entry in found.nodes.items()
    }
    parts = mx.SemanticQueryInterface(replace(found, nodes=nodes)).get_attention_components()
    assert {name: [entry.key for entry in group] for name, group in parts.items()} == {
        "attention": ["h"],
        "cross_attention": ["y"],
    }


def test_classes_include_what_is_inside_also_of_lists(exports: Exports) -> None:
    q = asked(exports, "bert")
    layers = set(q.query("module=encoder.layer.**"))
    assert set(q.find_nodes_by_module_type("BertLayer")) == layers
    assert set(q.find_nodes_by_module_type("ModuleList")) == layers


def test_what_layers_share_is_part_of_none(exports: Exports) -> None:
    q = asked(exports, "bert")
    inside = [set(q.find_nodes_by_module(f"encoder.layer.{number}")) for number in q.layer_ids]
    shared = inside[0] & inside[1]
    assert shared
    for number in q.layer_ids:
        assert set(q.find_nodes_by_layer(number)) == inside[number] - shared


def test_by_module_call_and_role() -> None:
    hierarchy = tree({"": "Net", "block": "Block", "block.fc": "Linear"}, "", "block", "block.fc", "block", "block.fc")
    proto = model(node("Relu", "x", "h"), node("Sin", "h", "g"), node("Cos", "g", "y"))
    q = mx.SemanticQueryInterface(provenance(proto, hierarchy, {"h": ["block.fc"], "g": ["block.fc#1"], "y": [""]}))
    assert [entry.key for entry in q.find_nodes_by_module("block")] == ["h", "g"]
    assert [entry.key for entry in q.find_nodes_by_module("block#1")] == ["g"]
    assert [entry.key for entry in q.find_nodes_by_module("")] == ["h", "g", "y"]
    with pytest.raises(mx.UserError, match="no layers"):
        q.find_nodes_by_layer(0)


def test_roles_and_free_queries(exports: Exports) -> None:
    q = asked(exports, "bert")
    assert q.find_nodes_by_role("mlp.*") == q.query("role=mlp.*") == q.find_nodes_by_module_type("mlp") != ()
    assert q.find_nodes_by_role("attention.query") == q.get_attention_components()["query"]


def test_a_mapper_a_record_and_a_file_give_the_same_answers(exports: Exports) -> None:
    result = exports("bert", "dynamo")
    mapper = mx.SemanticMapper(onnx.load(result.path), result.provenance)
    sources = (mapper, result.provenance, result.path, str(result.path))
    answers = [mx.SemanticQueryInterface(source).get_attention_components(1) for source in sources]
    assert all(answer == answers[0] for answer in answers)


def test_unknown_names_are_errors_with_what_is_known(exports: Exports) -> None:
    q = asked(exports, "bert")
    with pytest.raises(UnknownName, match="Did you mean 'linear_projection'"):
        q.find_nodes_by_module_type("linear_projektion")
    with pytest.raises(UnknownName, match="Did you mean 'BertSelfAttention'"):
        q.find_nodes_by_module_type("BertSelfAtention")
    with pytest.raises(UnknownName, match=r"unknown layer '7'\nKnown: 0, 1"):
        q.get_attention_components(layer_id=7)
    with pytest.raises(UnknownName, match=r"unknown module 'encoder\.layer\.9'"):
        q.get_attention_components(module="encoder.layer.9")
    with pytest.raises(UnknownName, match="unknown role"):
        q.find_nodes_by_role("attention.qery")
    with pytest.raises(QueryInvalid):
        q.query("module=")


def test_every_type_is_found_somewhere(exports: Exports) -> None:
    found = {
        name
        for model_name in ("bert", "t5", "resnet")
        for name in MODULE_TYPES
        if asked(exports, model_name).find_nodes_by_module_type(name)
    }
    assert found == set(MODULE_TYPES)
