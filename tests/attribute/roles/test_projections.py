"""Query, key, value and output projections of real networks, against the modules that *are* those projections.

The module paths stand here and nowhere in the source: roles are found from dataflow.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.support.further_models import Assigned

from modelexport.graph.index import Graph
from modelexport.record.provenance import Provenance

pytestmark = pytest.mark.slow

EXPORTERS = ("dynamo", "torchscript")
PRODUCTS = ("MatMul", "Gemm", "Conv")


def layers(pattern: str, *names: str, count: int = 2, kind: str = "attention") -> dict[str, set[str]]:
    """Roles with the paths that have them: `pattern` is the attention of layer `*`, `names` its four projections."""
    parts = ("query", "key", "value", "output") if len(names) == 4 else ("qkv", "output")
    paths = [pattern.replace("*", str(number)) for number in range(count)]
    return {f"{kind}.{part}": {f"{path}.{name}" for path in paths} for part, name in zip(parts, names, strict=True)}


def together(*found: dict[str, set[str]]) -> dict[str, set[str]]:
    return {role: set().union(*(item.get(role, set()) for item in found)) for item in found for role in item}


QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
OUT = ("q_proj", "k_proj", "v_proj", "out_proj")
BERT = ("self.query", "self.key", "self.value", "output.dense")
T5 = ("q", "k", "v", "o")

WRITTEN_FOR = {
    "bert": layers("encoder.layer.*.attention", *BERT),
    "gpt2": layers("transformer.h.*.attn", "c_attn", "c_proj"),
    "llama": layers("model.layers.*.self_attn", *QKVO),
    "t5": together(
        layers("encoder.block.*.layer.0.SelfAttention", *T5),
        layers("decoder.block.*.layer.0.SelfAttention", *T5),
        layers("decoder.block.*.layer.1.EncDecAttention", *T5, kind="cross_attention"),
    ),
    "vit": layers("layers.*.attention", *QKVO),
    "whisper": together(
        layers("model.encoder.layers.*.self_attn", *OUT),
        layers("model.decoder.layers.*.self_attn", *OUT),
        layers("model.decoder.layers.*.encoder_attn", *OUT, kind="cross_attention"),
    ),
    "albert": layers("encoder.albert_layer_groups.0.albert_layers.0.attention", "query", "key", "value", "dense"),
    "deberta": layers(
        "encoder.layer.*.attention", "self.query_proj", "self.key_proj", "self.value_proj", "output.dense"
    ),
}
NOT_WRITTEN_FOR = {
    "minilm": layers("encoder.layer.*.attention", *BERT, count=6),
    "distilbert": layers("transformer.layer.*.attention", "q_lin", "k_lin", "v_lin", "out_lin"),
    "electra": layers("encoder.layer.*.attention", *BERT),
    "mixtral": layers("model.layers.*.self_attn", *QKVO),
    "qwen2": layers("model.layers.*.self_attn", *QKVO),
    "gemma": layers("model.layers.*.self_attn", *QKVO),
    "opt": layers("model.decoder.layers.*.self_attn", *OUT),
    "bart": together(
        layers("model.encoder.layers.*.self_attn", *OUT),
        layers("model.decoder.layers.*.self_attn", *OUT),
        layers("model.decoder.layers.*.encoder_attn", *OUT, kind="cross_attention"),
    ),
    "swin": together(*(layers(f"encoder.layers.{stage}.blocks.*.attention", *QKVO) for stage in (0, 1))),
    "clip": together(
        layers("text_model.encoder.layers.*.self_attn", *OUT), layers("vision_model.encoder.layers.*.self_attn", *OUT)
    ),
    "wav2vec2": layers("encoder.layers.*.attention", *OUT),
    "phi3": layers("model.layers.*.self_attn", "qkv_proj", "o_proj"),
    "bloom": layers("transformer.h.*.self_attention", "query_key_value", "dense"),
    "mamba": {},
    "resnet": {},
    "convnext": {},
    "softmaxes": {},
    "memory": {},
}
CASES = {**WRITTEN_FOR, **NOT_WRITTEN_FOR}
PROJECTIONS = ("query", "key", "value", "output", "qkv", "qk", "kv", "qv")


def products(graph: Graph, provenance: Provenance) -> Iterable[tuple[str, str, int | None]]:
    """Module (with its call), role and layer of every product."""
    for node in graph.nodes:
        if node.op_type in PRODUCTS:
            attribution = provenance.nodes[node.key].attribution
            yield attribution.module or "", attribution.role, attribution.layer_id


def by_role(graph: Graph, provenance: Provenance) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for module, role, _ in products(graph, provenance):
        if "attention" in role and role.partition(".")[2] in PROJECTIONS:
            found.setdefault(role, []).append(module)
    return found


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", [name for name in CASES if name != "albert"])
def test_projections_are_the_modules_that_project(assigned: Assigned, name: str, exporter: str) -> None:
    found = by_role(*assigned(name, exporter))
    assert {role: sorted(modules) for role, modules in found.items()} == {
        role: sorted(modules) for role, modules in CASES[name].items()
    }


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_call_of_a_shared_layer_has_its_own(assigned: Assigned, exporter: str) -> None:
    graph, provenance = assigned("albert", exporter)
    for role, (path,) in CASES["albert"].items():
        found = [(module, layer) for module, named, layer in products(graph, provenance) if named == role]
        assert sorted(found) == [(path, 0), (f"{path}#1", 1), (f"{path}#2", 2)]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit", "whisper", "deberta", "bart", "minilm"])
def test_a_projection_is_in_the_layer_that_its_path_says(assigned: Assigned, name: str, exporter: str) -> None:
    for module, role, layer in products(*assigned(name, exporter)):
        if "attention" in role and role.partition(".")[2] in PROJECTIONS:
            assert layer == next(int(part) for part in module.split(".") if part.isdecimal())


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_one_projection_of_positions_and_of_content_has_two_roles(assigned: Assigned, exporter: str) -> None:
    """DeBERTa may project positions by the query and key projections: then that product is no query or key."""
    found = by_role(*assigned("deberta-shared", exporter))
    assert {role: sorted(modules) for role, modules in found.items()} == {
        role: sorted(modules) for role, modules in CASES["deberta"].items()
    }


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_one_matrix_for_all_three(assigned: Assigned, exporter: str) -> None:
    """`nn.MultiheadAttention` holds its projections itself, so they belong to it, not to modules of their own."""
    found = by_role(*assigned("encoder", exporter))
    attentions = ["layers.0.self_attn", "layers.1.self_attn"]
    outputs = found.pop("attention.output")
    assert [module.removesuffix(".out_proj") for module in sorted(outputs)] == attentions
    assert {role: sorted(modules) for role, modules in found.items()} == {"attention.qkv": attentions}
