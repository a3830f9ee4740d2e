"""`universal` says what the exporter tracked, and nothing that would have to be inferred."""

from __future__ import annotations

from tests.support.building import graph, node, owners, tree

from modelexport.attribute.strategies import UNIVERSAL as NAME
from modelexport.attribute.strategies import universal
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Confidence
from modelexport.record.signals import ExporterScopes, Signals

NET = tree({"": "Net", "enc": "Encoder", "enc.fc": "Linear", "head": "Linear"})
TWICE = tree({"": "Net", "fc": "Linear"}, "", "fc", "fc")
NOTHING = Signals()


def test_scopes_of_either_exporter_are_claimed() -> None:
    made = graph(
        node("MatMul", "x w", "a", scope=["", "enc", "enc.fc", "linear"]),
        node("Relu", "a", "b", "/enc/Relu"),
        node("MatMul", "b v", "y", "/head/MatMul"),
    )
    found = universal(made, NET, NOTHING)
    assert owners(found.nodes) == {"a": ("enc.fc",), "b": ("enc",), "y": ("head",)}
    assert {(claim.confidence, claim.strategy) for claim in found.nodes.values()} == {(Confidence.EXACT, NAME)}
    assert [str(claim.evidence[0]) for claim in found.nodes.values()] == [
        "scope:torchscript",
        "scope:torchscript",
        "scope:dynamo",
    ]


def test_nothing_is_inferred() -> None:
    """Neither from the weight that a node reads nor from its neighbours."""
    made = graph(
        node("MatMul", "x enc.fc.weight", "h", scope=["", "enc", "enc.fc", "linear"]),
        node("Relu", "h", "r"),
        node("MatMul", "r head.weight", "y"),
        weights=["enc.fc.weight", "head.weight", "folded"],
    )
    found = universal(made, NET, NOTHING)
    assert owners(found.nodes) == {"h": ("enc.fc",)}
    assert owners(found.initializers) == {"enc.fc.weight": ("enc.fc",), "head.weight": ("head",)}


def test_calls_that_the_exporter_does_not_number_are_not_told_apart() -> None:
    made = graph(
        node("MatMul", "x w", "h", scope=["", "fc", "linear"]),
        node("MatMul", "h w", "y", scope=["", "fc", "linear_1"]),
    )
    unnumbered = universal(made, TWICE, NOTHING).nodes
    assert set(owners(unnumbered).values()) == {("fc", "fc#1")}
    assert {claim.confidence for claim in unnumbered.values()} == {Confidence.STRONG}
    scopes = ExporterScopes({"linear": ModuleCall("fc"), "linear_1": ModuleCall("fc", 1)})
    numbered = universal(made, TWICE, Signals(scopes)).nodes
    assert owners(numbered) == {"h": ("fc",), "y": ("fc#1",)}
    assert {claim.confidence for claim in numbered.values()} == {Confidence.EXACT}


def test_a_scope_that_may_mean_two_modules_is_not_claimed() -> None:
    net = tree({"": "Net", "fc": "Linear", "fc_1": "Linear"}, "", "fc", "fc", "fc_1")
    made = graph(node("Gemm", "x fc.weight", "a", "/fc/Gemm"), node("Gemm", "a fc_1.weight", "y", "/fc_1/Gemm"))
    assert owners(universal(made, net, NOTHING).nodes) == {"a": ("fc",)}


def test_the_exporters_own_module_map_is_believed() -> None:
    made = graph(node("Relu", "x", "y", "/renamed/Relu"))
    assert universal(made, NET, NOTHING).nodes == {}
    known = Signals(ExporterScopes(parts={"enc": "renamed"}))
    assert owners(universal(made, NET, known).nodes) == {"y": ("enc",)}
