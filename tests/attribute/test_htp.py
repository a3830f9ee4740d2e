"""`htp` on real exports: names and metadata mean nothing to it, nor does the order of the file."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

import onnx
import pytest
from tests.support.building import graph, node, tree
from tests.support.reruns import Rerun, Reruns

from modelexport.attribute.strategies import GraphClaims, htp
from modelexport.graph.index import Graph, index_model
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Claim, Confidence, EvidenceKind
from modelexport.record.signals import GraphValues, Signals

pytestmark = pytest.mark.slow

BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


def judged(rerun: Rerun, made: Graph | None = None, values: GraphValues | None = None) -> GraphClaims:
    signals = rerun.signals if values is None else replace(rerun.signals, values=values)
    return htp(made or rerun.graph, rerun.hierarchy, signals)


def copied(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _given(proto: onnx.ModelProto) -> list[str]:
    return [value.name for value in proto.graph.input] + [tensor.name for tensor in proto.graph.initializer]


def renamed(rerun: Rerun) -> tuple[Graph, GraphValues, Mapping[str, str]]:
    """The same graph with other names throughout and no metadata, and what its values are called there."""
    proto = copied(rerun.file.proto)
    own = _given(proto)
    own += [name for item in proto.graph.node for name in item.output if name]
    numbers = random.Random(0).sample(range(10_000), len(set(own)))
    names = {name: f"v{number}" for name, number in zip(dict.fromkeys(own), numbers, strict=True)}
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = names[value.name]
    for tensor in proto.graph.initializer:
        tensor.name = names[tensor.name]
    for item in proto.graph.node:
        item.name = ""
        item.ClearField("metadata_props")
        item.input[:] = [names.get(name, name) for name in item.input]
        item.output[:] = [names.get(name, name) for name in item.output]
    assert rerun.signals.values is not None
    prints = {names[name]: found for name, found in rerun.signals.values.prints.items()}
    return index_model(proto), GraphValues(prints), names


def shuffled(rerun: Rerun, seed: int) -> Graph:
    """The same nodes in another order in which each comes after what it reads."""
    proto = copied(rerun.file.proto)
    waiting = list(proto.graph.node)
    made = {"", *_given(proto)}
    ordered: list[onnx.NodeProto] = []
    choose = random.Random(seed)
    while waiting:
        item = choose.choice([item for item in waiting if made.issuperset(item.input)])
        waiting.remove(item)
        made.update(item.output)
        ordered.append(item)
    del proto.graph.node[:]
    proto.graph.node.extend(ordered)
    return index_model(proto)


def layers(owners: Iterable[ModuleCall]) -> set[str]:
    """The numbers of the layers that calls are in."""
    parts = [call.path.split(".") for call in owners]
    return {f"{path[at]}{path[at + 1]}" for path in parts for at in range(len(path) - 1) if path[at] in ("layer", "h")}


def agreeing(claims: Mapping[str, Claim], rerun: Rerun, confidence: Confidence) -> float:
    sure = {key: claim for key, claim in claims.items() if claim.confidence >= confidence}
    assert sure
    right = [set(claim.owners) <= set(rerun.provenance.nodes[key].attribution.owners) for key, claim in sure.items()]
    return sum(right) / len(right)


@BOTH
@pytest.mark.parametrize("name", ["bert", "gpt2", "albert"])
def test_every_node_has_a_claim_and_sure_ones_are_right(reruns: Reruns, name: str, exporter: str) -> None:
    rerun = reruns(name, exporter)
    claims = judged(rerun)
    assert set(claims.nodes) == {item.key for item in rerun.graph.nodes}
    assert set(claims.initializers) == set(rerun.graph.initializers)
    assert agreeing(claims.nodes, rerun, Confidence.EXACT) == 1
    assert agreeing(claims.nodes, rerun, Confidence.STRONG) >= 0.98
    assert agreeing(claims.nodes, rerun, Confidence.FALLBACK) >= 0.95
    by_value = [item for item in claims.nodes.values() if item.evidence[0].kind is EvidenceKind.VALUE]
    assert len(by_value) > len(rerun.graph.nodes) / 8


@BOTH
def test_calls_of_one_module_are_told_apart(reruns: Reruns, exporter: str) -> None:
    rerun = reruns("albert", exporter)
    claims = judged(rerun).nodes
    numbered = [key for key, claim in claims.items() if any(call.index for call in claim.owners)]
    assert len(numbered) > 40
    for key in numbered:
        truth = rerun.provenance.nodes[key].attribution.owners
        assert set(claims[key].owners) <= set(truth), key


@BOTH
def test_names_and_metadata_mean_nothing(reruns: Reruns, exporter: str) -> None:
    rerun = reruns("bert", exporter)
    made, values, names = renamed(rerun)
    plain, other = judged(rerun), judged(rerun, made, values)
    assert other.nodes == {names[key]: claim for key, claim in plain.nodes.items()}
    assert other.initializers == {names[name]: claim for name, claim in plain.initializers.items()}


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_file_mixes_no_layers(reruns: Reruns, exporter: str, seed: int) -> None:
    rerun = reruns("bert", exporter)
    claims = judged(rerun, shuffled(rerun, seed)).nodes
    assert len(claims) == len(rerun.graph.nodes)
    for key, claim in claims.items():
        truth = layers(rerun.provenance.nodes[key].attribution.owners)
        assert not truth or layers(claim.owners) <= truth, key
    assert agreeing(claims, rerun, Confidence.EXACT) == 1


@BOTH
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_without_values_nothing_is_exact_and_no_layer_is_mixed(reruns: Reruns, name: str, exporter: str) -> None:
    rerun = reruns(name, exporter)
    assert rerun.signals.values is not None
    prints = rerun.signals.values.prints
    known = {key: found for key, found in prints.items() if key in rerun.graph.initializers}
    claims = judged(rerun, values=GraphValues(known, "no runtime")).nodes
    assert set(claims) == {item.key for item in rerun.graph.nodes}
    assert max(claim.confidence for claim in claims.values()) <= Confidence.STRONG
    mixed = [
        key
        for key, claim in claims.items()
        if (truth := layers(rerun.provenance.nodes[key].attribution.owners))
        and (said := layers(claim.owners))
        and truth.isdisjoint(said)
    ]
    assert mixed == []


def test_without_a_run_nothing_is_said() -> None:
    assert htp(graph(node("Sin", "x", "y")), tree({"": "Net"}), Signals()) == GraphClaims({}, {})
