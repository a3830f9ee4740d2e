from __future__ import annotations

import pytest
from tests.support.building import body, claim, graph, module, node, owners, run, set_metadata, tree

from modelexport.attribute.scopes import SCOPES_KEY, claim_dynamo_scopes, claim_same_fx_nodes, dynamo_calls
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Confidence
from modelexport.record.signals import ExporterScopes

NONE = ExporterScopes()
NET = tree({"": "Net", "enc": "Encoder", "enc.fc": "Linear", "head": "Linear"})
TWICE = tree({"": "Net", "fc": "Linear"}, "", "fc", "fc")


def test_the_innermost_module_is_named_before_the_operator() -> None:
    found = claim_dynamo_scopes(
        graph(
            node("MatMul", "x w", "h", scope=["", "enc", "enc.fc", "linear"]),
            node("Relu", "h", "y", scope=["", "relu"]),
        ),
        NET,
        NONE,
        "s",
    )
    assert owners(found) == {"h": ("enc.fc",), "y": ("",)}
    assert {claim.confidence for claim in found.values()} == {Confidence.EXACT}
    assert {claim.strategy for claim in found.values()} == {"s"}


def test_a_node_without_scope_gets_no_claim() -> None:
    assert claim_dynamo_scopes(graph(node("Relu", "x", "y")), NET, NONE, "s") == {}


def test_an_operator_alone_names_no_module() -> None:
    assert claim_dynamo_scopes(graph(node("Relu", "x", "y", scope=["relu"])), NET, NONE, "s") == {}


def test_a_scope_that_is_no_module_is_a_fake() -> None:
    fake = ["", "_empty_nn_module_stack_from_metadata_hook", "sym_size"]
    assert claim_dynamo_scopes(graph(node("Shape", "x", "y", scope=fake)), NET, NONE, "s") == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "enc.fc",
        "'enc.fc'",
        "['', 'enc.fc', 'linear'",
        "{'': 'enc.fc'}",
        "{[]: 1}",
        "__import__('os')",
        "[1, 2, 3]",
        "\0",
        "-" * 100_000 + "1",
        "(" * 1000,
    ],
)
def test_malformed_metadata_names_no_module(text: str) -> None:
    proto = node("Relu", "x", "y")
    set_metadata(proto, {SCOPES_KEY: text})
    assert claim_dynamo_scopes(graph(proto), NET, NONE, "s") == {}


def test_an_alias_means_the_module_itself() -> None:
    shared = Hierarchy.of([module("", "Net"), module("a", "Linear", aliases=("b",))], run("", "a"))
    found = claim_dynamo_scopes(graph(node("MatMul", "x w", "y", scope=["", "b", "linear"])), shared, NONE, "s")
    assert owners(found) == {"y": ("a",)}


def test_a_module_that_was_not_seen_running_is_named_all_the_same() -> None:
    silent = tree({"": "Net", "fc": "Linear"}, "")
    found = claim_dynamo_scopes(graph(node("MatMul", "x w", "y", scope=["", "fc", "linear"])), silent, NONE, "s")
    assert owners(found) == {"y": ("fc",)}


def test_the_exported_program_numbers_calls() -> None:
    scopes = ExporterScopes({"linear": ModuleCall("fc", 1), "linear_1": ModuleCall("fc")})
    found = claim_dynamo_scopes(
        graph(
            node("MatMul", "x w", "h", scope=["", "fc", "linear"]),
            node("MatMul", "h w", "y", scope=["", "fc", "linear_1"]),
        ),
        TWICE,
        scopes,
        "s",
    )
    assert owners(found) == {"h": ("fc#1",), "y": ("fc",)}
    assert {claim.confidence for claim in found.values()} == {Confidence.EXACT}


def test_calls_without_number_are_told_apart_by_order() -> None:
    found = claim_dynamo_scopes(
        graph(
            node("MatMul", "x w", "a", scope=["", "fc", "linear"]),
            node("Add", "a b", "c", scope=["", "fc", "linear"]),
            node("Relu", "c", "r", scope=["", "relu"]),
            node("MatMul", "r w", "d", scope=["", "fc", "linear_1"]),
            node("Add", "d b", "y", scope=["", "fc", "linear_1"]),
        ),
        TWICE,
        NONE,
        "s",
    )
    assert owners(found) == {"a": ("fc",), "c": ("fc",), "r": ("",), "d": ("fc#1",), "y": ("fc#1",)}
    assert found["a"].confidence is found["y"].confidence is Confidence.STRONG
    assert found["r"].confidence is Confidence.EXACT
    assert "order" in found["a"].evidence[0].detail


@pytest.mark.parametrize("operators", [["MatMul", "MatMul", "Add"], ["MatMul", "Add"], ["MatMul"]])
def test_calls_that_order_does_not_tell_apart_share_their_nodes(operators: list[str]) -> None:
    nodes = [node(op, f"v{place} w", f"v{place + 1}", scope=["", "fc", "op"]) for place, op in enumerate(operators)]
    found = claim_dynamo_scopes(graph(*nodes, inputs="v0"), TWICE, NONE, "s")
    assert set(owners(found).values()) == {("fc", "fc#1")}
    assert len(found) == len(operators)
    # Which of them it was is open; values may tell later.
    assert {claim.confidence for claim in found.values()} == {Confidence.INFERRED}


def test_a_scope_alone_stands_for_all_calls_of_its_module() -> None:
    made = graph(node("MatMul", "x w", "h", scope=["", "fc", "linear"]), node("Relu", "h", "y", scope=["", "relu"]))
    numbered = ExporterScopes({"linear": ModuleCall("fc", 1)})
    assert list(dynamo_calls(made, TWICE, NONE).values()) == [
        (ModuleCall("fc"), ModuleCall("fc", 1)),
        (ModuleCall(""),),
    ]
    assert list(dynamo_calls(made, TWICE, numbered).values()) == [(ModuleCall("fc", 1),), (ModuleCall(""),)]


def test_nodes_in_bodies_have_scopes_of_their_own() -> None:
    branch = body(node("Relu", "x", "t", scope=["", "enc", "relu"]), outputs="t")
    other = body(node("Neg", "x", "e"), outputs="e")
    found = claim_dynamo_scopes(
        graph(node("If", "c", "y", scope=["", "cond"], then_branch=branch, else_branch=other), inputs="x c"),
        NET,
        NONE,
        "s",
    )
    assert owners(found) == {"y": ("",), "y|then_branch|t": ("enc",)}


def test_fx_names_in_a_body_are_those_of_another_program() -> None:
    branch = body(node("MatMul", "x w", "t", scope=["", "fc", "linear"]), outputs="t")
    found = claim_dynamo_scopes(
        graph(node("If", "c", "y", then_branch=branch), inputs="x c"),
        tree({"": "Net", "fc": "Linear"}),
        ExporterScopes({"linear": ModuleCall("", 0)}),
        "s",
    )
    assert owners(found) == {"y|then_branch|t": ("fc",)}


def test_what_was_one_operator_has_one_issuer() -> None:
    """In bodies torch names no modules, but the FX node that it made a node from."""
    branch = body(
        node("MatMul", "x w", "h", scope=["linear"]),
        node("Add", "h b", "k", scope=["linear"]),
        node("Mul", "k k", "t", scope=["mul"]),
        outputs="t",
    )
    other = body(node("MatMul", "x w", "e", scope=["linear"]), outputs="e")
    made = graph(node("If", "c", "y", then_branch=branch, else_branch=other), inputs="x c")
    known = {"y|then_branch|k": claim("enc.fc")}
    assert owners(claim_same_fx_nodes(made, known, "s")) == {"y|then_branch|h": ("enc.fc",)}
    known["y|then_branch|h"] = claim("head")
    assert claim_same_fx_nodes(made, known, "s") == {}


def test_an_operator_that_several_issued_tells_nothing() -> None:
    made = graph(
        node("Transpose", "w", "v", scope=["linear"]),
        node("MatMul", "x v", "h", scope=["linear"]),
        node("Add", "h b", "y", scope=["linear"]),
    )
    assert claim_same_fx_nodes(made, {"v": claim("head"), "y": claim("enc.fc")}, "s") == {}
