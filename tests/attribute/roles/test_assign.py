"""Roles of whole networks, and laws that hold for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
import pytest
from tests.support.building import model, node, provenance, tree, weight
from tests.support.exports import Exports
from tests.support.further_models import Assigned

from modelexport.attribute.roles.assign import assign_roles
from modelexport.graph.file.reading import open_model
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall
from modelexport.record.provenance import Provenance

pytestmark = pytest.mark.slow

EXPORTERS = ("dynamo", "torchscript")
EXPECTED: Mapping[str, Mapping[str, set[str]]] = {
    "bert": {
        "embedding": {"embeddings.word_embeddings", "embeddings.token_type_embeddings"},
        "head": {"pooler.dense"},
        "mlp.up": {f"encoder.layer.{layer}.intermediate.dense" for layer in (0, 1)},
        "mlp.down": {f"encoder.layer.{layer}.output.dense" for layer in (0, 1)},
        "residual": {f"encoder.layer.{layer}{part}" for layer in (0, 1) for part in (".attention.output", ".output")},
    },
    "gpt2": {
        "embedding": {"transformer.wte"},
        "head": {"lm_head"},
        "residual": {f"transformer.h.{layer}" for layer in (0, 1)},
        "mlp.activation": {f"transformer.h.{layer}.mlp.act" for layer in (0, 1)},
    },
    "llama": {
        "embedding": {"model.embed_tokens"},
        "head": {"lm_head"},
        "mlp.gate": {f"model.layers.{layer}.mlp.gate_proj" for layer in (0, 1)},
        "mlp.up": {f"model.layers.{layer}.mlp.up_proj" for layer in (0, 1)},
        "mlp.down": {f"model.layers.{layer}.mlp.down_proj" for layer in (0, 1)},
        "position": {"model.rotary_emb", *(f"model.layers.{layer}.self_attn" for layer in (0, 1))},
        "residual": {f"model.layers.{layer}" for layer in (0, 1)},
        "norm": {
            "model.norm",
            *(f"model.layers.{layer}.{name}_layernorm" for layer in (0, 1) for name in ("input", "post_attention")),
        },
    },
    "t5": {
        "attention.bias": {
            f"{part}coder.block.{layer}.layer.0.SelfAttention" for layer in (0, 1) for part in ("en", "de")
        },
        "head": {"lm_head"},
        "position": {f"{part}coder.block.0.layer.0.SelfAttention.relative_attention_bias" for part in ("en", "de")},
    },
    "vit": {"stem": {"embeddings.patch_embeddings.projection"}, "head": {"pooler.dense"}, "position": {"embeddings"}},
    "whisper": {"stem": {"model.encoder.conv1", "model.encoder.conv2"}, "head": {"proj_out"}},
    "wav2vec2": {
        "stem": {*(f"feature_extractor.conv_layers.{layer}.conv" for layer in (0, 1)), "encoder.pos_conv_embed.conv"},
        "projection": {"feature_projection.projection"},
    },
    "resnet": {
        "stem": {"embedder.embedder"},
        "residual": {"encoder.stages.0.layers.0", "encoder.stages.1.layers.0", "encoder.stages.1.layers.1"},
    },
    "mixtral": {
        "projection": {f"model.layers.{layer}.mlp.gate" for layer in (0, 1)},
        "mlp.gate_up": {f"model.layers.{layer}.mlp.experts" for layer in (0, 1)},
        "mlp.down": {f"model.layers.{layer}.mlp.experts" for layer in (0, 1)},
    },
    "mamba": {
        "convolution": {f"backbone.layers.{layer}.mixer" for layer in (0, 1)},
        "residual": {f"backbone.layers.{layer}" for layer in (0, 1)},
        "head": {"lm_head"},
    },
}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", EXPECTED)
def test_roles_are_where_they_belong(assigned: Assigned, name: str, exporter: str) -> None:
    _, found = assigned(name, exporter)
    for role, modules in EXPECTED[name].items():
        entries = [entry.attribution for entry in found.nodes.values() if entry.attribution.role == role]
        assert {item.ancestor.path for item in entries if item.ancestor is not None} == modules, role


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["mamba", "resnet", "convnext", "softmaxes", "memory"])
def test_no_attention_is_invented(assigned: Assigned, name: str, exporter: str) -> None:
    _, found = assigned(name, exporter)
    assert not [entry for entry in found.nodes.values() if "attention" in entry.attribution.role]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_softmax_of_a_router_is_no_attention(assigned: Assigned, exporter: str) -> None:
    _, found = assigned("mixtral", exporter)
    softmaxes = [entry.attribution for entry in found.nodes.values() if entry.op_type == "Softmax"]
    assert sorted(item.role for item in softmaxes) == ["", "", "attention.softmax", "attention.softmax"]
    assert all(item.module is not None and item.module.endswith("mlp.gate") for item in softmaxes if not item.role)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["bert", "t5", "albert", "whisper"])
def test_names_do_not_matter(exports: Exports, assigned: Assigned, name: str, exporter: str) -> None:
    """Every value, node, module and class has another name, and all metadata is gone: the roles are the same."""
    graph, expected = assigned(name, exporter)
    proto = open_model(exports(name, exporter).path).proto
    places = {key: place for place, key in enumerate(expected.nodes)}
    assert list(places) == [node.key for node in graph.nodes]
    _rename(proto.graph)
    renamed = index_model(proto)
    keys = [node.key for node in renamed.nodes]
    entries = zip(keys, _renamed(expected).nodes.values(), strict=True)
    bare = replace(
        _renamed(expected), nodes={key: replace(entry, key=key, name="") for key, entry in entries}, initializers={}
    )
    found = assign_roles(renamed, bare)
    assert [entry.attribution.role for entry in found.nodes.values()] == [
        entry.attribution.role for entry in expected.nodes.values()
    ]
    assert [entry.attribution.layer_id for entry in found.nodes.values()] == [
        entry.attribution.layer_id for entry in expected.nodes.values()
    ]


def _rename(graph: onnx.GraphProto) -> None:
    names: dict[str, str] = {"": ""}
    for value in (*graph.input, *graph.output):
        value.name = names.setdefault(value.name, f"v{len(names)}")
    for tensor in graph.initializer:
        tensor.name = names.setdefault(tensor.name, f"v{len(names)}")
    for node_proto in graph.node:
        node_proto.name = ""
        del node_proto.metadata_props[:]
        for values in (node_proto.input, node_proto.output):
            values[:] = [names.setdefault(name, f"v{len(names)}") for name in values]


def _renamed(value: Provenance) -> Provenance:
    """The record with other names for all modules and classes, and without roles."""
    parts: dict[str, str] = {}
    classes: dict[str, str] = {}

    def path(old: str) -> str:
        return ".".join(parts.setdefault(part, f"p{len(parts)}") for part in old.split(".")) if old else ""

    def call(old: ModuleCall) -> ModuleCall:
        return ModuleCall(path(old.path), old.index)

    def module(old: Module) -> Module:
        name = classes.setdefault(old.class_name, f"C{len(classes)}")
        return replace(old, path=path(old.path), class_name=name, aliases=tuple(map(path, old.aliases)))

    sites = value.hierarchy.calls
    hierarchy = Hierarchy.of(
        map(module, value.hierarchy.modules.values()),
        (CallSite(call(site.call), None if site.parent is None else call(site.parent)) for site in sites),
    )
    nodes = {
        key: replace(
            entry,
            attribution=replace(
                entry.attribution,
                owners=tuple(map(call, entry.attribution.owners)),
                ancestor=None if entry.attribution.ancestor is None else call(entry.attribution.ancestor),
                role="",
                layer_id=None,
            ),
        )
        for key, entry in value.nodes.items()
    }
    return replace(value, hierarchy=hierarchy, nodes=nodes)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["bert", "albert", "whisper", "swin"])
def test_assigning_changes_nothing_else_and_twice_is_once(assigned: Assigned, name: str, exporter: str) -> None:
    graph, once = assigned(name, exporter)
    assert assign_roles(graph, once) == once
    for before, after in zip(once.nodes.values(), assign_roles(graph, once).nodes.values(), strict=True):
        assert replace(before.attribution, role="", layer_id=None) == replace(after.attribution, role="", layer_id=None)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_weights_have_the_role_of_what_reads_them(assigned: Assigned, exporter: str) -> None:
    _, found = assigned("bert", exporter)
    bias = found.initializers["encoder.layer.1.attention.self.query.bias"]
    assert (bias.role, bias.layer_id) == ("attention.query", 1)
    words = found.initializers["embeddings.word_embeddings.weight"]
    assert (words.role, words.layer_id) == ("embedding", None)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_weight_that_all_layers_read_is_part_of_none(assigned: Assigned, exporter: str) -> None:
    graph, found = assigned("albert", exporter)
    shared = [name for name, item in found.initializers.items() if item.role.startswith("attention.")]
    assert shared
    for name in shared:
        layers = {found.nodes[reader.key].attribution.layer_id for reader in graph.consumers[name]}
        assert found.initializers[name].layer_id == (layers.pop() if len(layers) == 1 else None)


def test_a_weight_that_is_read_for_two_purposes_has_no_role() -> None:
    proto = model(
        node("Gather", "w x", "e"), node("MatMul", "e w", "y"), weights=["w", weight("unread", 1)], outputs="y"
    )
    bare = provenance(proto, tree({"": "Net"}), {"e": [""], "y": [""]})
    answers = dict.fromkeys(("w", "unread"), bare.nodes["e"].attribution)
    found = assign_roles(index_model(proto), replace(bare, initializers=answers))
    assert [found.nodes[key].attribution.role for key in ("e", "y")] == ["embedding", "projection"]
    assert {item.role for item in found.initializers.values()} == {""}
