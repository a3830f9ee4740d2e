from __future__ import annotations

import pytest
from tests.support.building import graph, module, node, owners, tree

from modelexport.attribute.scopes import claim_torchscript_scopes, expected_scope, torchscript_calls
from modelexport.record.hierarchy import CallSite, Hierarchy, ModuleCall
from modelexport.record.provenance import Confidence


def claimed(hierarchy: Hierarchy, *names: str) -> dict[str, tuple[str, ...]]:
    """The owners of a chain of nodes with these names."""
    nodes = [node("Relu", f"v{place}", f"v{place + 1}", name) for place, name in enumerate(names)]
    found = owners(claim_torchscript_scopes(graph(*nodes, inputs="v0"), hierarchy, "s"))
    return {name: found[f"v{place + 1}"] for place, name in enumerate(names) if f"v{place + 1}" in found}


def test_a_scope_has_one_part_for_each_open_call() -> None:
    net = tree(
        {"": "Net", "encoder": "Encoder", "encoder.layer": "ModuleList", "encoder.layer.0": "Layer"}
        | {"encoder.layer.0.query": "Linear"}
    )
    assert claimed(net, "/encoder/layer.0/query/MatMul", "/encoder/layer.0/Add", "/encoder/Mul_3", "/Softmax") == {
        "/encoder/layer.0/query/MatMul": ("encoder.layer.0.query",),
        "/encoder/layer.0/Add": ("encoder.layer.0",),
        "/encoder/Mul_3": ("encoder",),
        "/Softmax": ("",),
    }


def test_one_meaning_is_exact() -> None:
    (claim,) = claim_torchscript_scopes(graph(node("Relu", "x", "y", "/Relu")), tree({"": "Net"}), "s").values()
    assert (claim.confidence, claim.strategy) == (Confidence.EXACT, "s")
    assert str(claim.evidence[0]) == "scope:torchscript"


@pytest.mark.parametrize("name", ["", "Identity_3", "node_linear", "onnx::Add", "fc/MatMul"])
def test_a_name_without_scope_says_nothing(name: str) -> None:
    assert claimed(tree({"": "Net", "fc": "Linear"}), name) == {}


def test_a_scope_that_no_call_can_have_says_nothing() -> None:
    assert claimed(tree({"": "Net", "fc": "Linear"}), "/other/MatMul", "/fc/fc/MatMul", "/fc_1/MatMul") == {}


def test_a_called_sequential_is_doubled() -> None:
    net = tree({"": "Net", "net": "Sequential", "net.0": "Linear", "net.1": "Linear"}, "", "net", "net.0", "net.1")
    assert claimed(net, "/net/net.0/MatMul", "/net/net.1/MatMul") == {
        "/net/net.0/MatMul": ("net.0",),
        "/net/net.1/MatMul": ("net.1",),
    }


def test_a_sequential_of_sequentials_keeps_its_numbers() -> None:
    net = tree({"": "Sequential", "0": "Sequential", "0.1": "Linear"}, "", "0", "0.1")
    assert claimed(net, "/0/0.1/MatMul") == {"/0/0.1/MatMul": ("0.1",)}


def test_the_name_of_a_dictionary_is_lost() -> None:
    net = tree({"": "Net", "d": "ModuleDict", "d.p": "Linear", "d.q": "Linear"})
    assert claimed(net, "/p/MatMul", "/q/MatMul") == {"/p/MatMul": ("d.p",), "/q/MatMul": ("d.q",)}


def test_a_parent_whose_forward_was_called_directly_is_lost() -> None:
    net = tree({"": "Net", "sub": "Block", "sub.fc": "Linear"}, "", "sub.fc")
    assert claimed(net, "/fc/MatMul") == {"/fc/MatMul": ("sub.fc",)}


def test_two_modules_with_the_same_scope_are_numbered_together() -> None:
    net = tree({"": "Net", "a": "Block", "a.fc": "Linear", "b": "Block", "b.fc": "Linear"}, "", "b.fc", "a.fc")
    assert claimed(net, "/fc/MatMul", "/fc_1/MatMul") == {"/fc/MatMul": ("b.fc",), "/fc_1/MatMul": ("a.fc",)}


def test_calls_are_numbered_over_the_whole_model_at_the_deepest_part() -> None:
    net = tree(
        {"": "Net", "blk": "Block", "blk.fc": "Linear"},
        *("", "blk", "blk.fc", "blk.fc", "blk", "blk.fc", "blk.fc"),
    )
    names = ["/blk/fc/MatMul", "/blk/fc_1/MatMul", "/blk/Add", "/blk/fc_2/MatMul", "/blk/fc_3/MatMul", "/blk_1/Add"]
    assert claimed(net, *names) == {
        "/blk/fc/MatMul": ("blk.fc",),
        "/blk/fc_1/MatMul": ("blk.fc#1",),
        "/blk/Add": ("blk",),
        "/blk/fc_2/MatMul": ("blk.fc#2",),
        "/blk/fc_3/MatMul": ("blk.fc#3",),
        "/blk_1/Add": ("blk#1",),
    }


def test_calls_that_left_no_node_make_the_others_unsure() -> None:
    net = tree({"": "Net", "fc": "Linear"}, "", "fc", "fc", "fc")
    assert claimed(net, "/fc/MatMul", "/fc_1/MatMul") == {
        "/fc/MatMul": ("fc",),
        "/fc_1/MatMul": ("fc#1",),
    }
    nodes = graph(node("MatMul", "x w", "y", "/fc/MatMul"))
    found = claim_torchscript_scopes(nodes, net, "s")["y"]
    assert found.confidence is Confidence.INFERRED
    assert found.evidence[0].detail == "one of fc, fc#1, fc#2"


def test_nodes_around_tell_which_call_left_no_node() -> None:
    """`act` runs three times and the second time leaves nothing: the linears around say so."""
    net = tree(
        {"": "Net", "a": "Linear", "b": "Linear", "c": "Linear", "act": "ReLU"}, "", "a", "act", "b", "act", "c", "act"
    )
    names = ["/a/Gemm", "/act/Relu", "/b/Gemm", "/c/Gemm", "/act_1/Relu"]
    assert claimed(net, *names)["/act/Relu"] == ("act",)
    assert claimed(net, *names)["/act_1/Relu"] == ("act#2",)


def test_a_module_named_like_a_second_call_is_told_by_its_parameters() -> None:
    net = tree({"": "Net", "fc": "Linear", "fc_1": "Linear"}, "", "fc", "fc", "fc_1")
    found = claim_torchscript_scopes(
        graph(
            node("Gemm", "x fc.weight", "a", "/fc/Gemm"),
            node("Gemm", "a fc.weight", "b", "/fc_1/Gemm"),
            node("Gemm", "b fc_1.weight", "c", "/fc_1/Gemm_1"),
            node("Relu", "c", "y", "/fc_1/Relu"),
        ),
        net,
        "s",
    )
    assert owners(found) == {"a": ("fc",), "b": ("fc#1",), "c": ("fc_1",), "y": ("fc_1",)}
    assert found["b"].confidence is Confidence.EXACT
    assert found["y"].confidence is Confidence.EXACT


def test_the_scope_is_that_of_the_run_not_of_the_definition() -> None:
    modules = [module("", "Net"), module("a", "Block"), module("a.shared", "Linear"), module("b", "Block")]
    root, inner = ModuleCall(""), ModuleCall("b")
    sites = [CallSite(root, None), CallSite(inner, root), CallSite(ModuleCall("a.shared"), inner)]
    assert claimed(Hierarchy.of(modules, sites), "/b/shared/MatMul") == {"/b/shared/MatMul": ("a.shared",)}


def test_the_scope_of_a_stack() -> None:
    stack = [ModuleCall(""), ModuleCall("encoder.layer.11", 3), ModuleCall("encoder.layer.11.self.query")]
    assert expected_scope(stack) == "/layer.11/query"
    assert expected_scope(stack[:1]) == ""
    assert expected_scope(stack, {"encoder.layer.11": "eleven"}) == "/eleven/query"


def test_the_exporters_own_names_come_first() -> None:
    net = tree({"": "Net", "a": "Block", "a.fc": "Linear"})
    made = graph(node("Relu", "x", "y", "/renamed/fc/Relu"))
    assert claim_torchscript_scopes(made, net, "s") == {}
    assert owners(claim_torchscript_scopes(made, net, "s", {"a": "renamed"})) == {"y": ("a.fc",)}


def test_a_scope_alone_may_stand_for_several_calls() -> None:
    net = tree({"": "Net", "fc": "Linear", "fc_1": "Linear"}, "", "fc", "fc", "fc_1")
    found = torchscript_calls(graph(node("Gemm", "x fc_1.weight", "y", "/fc_1/Gemm")), net)
    assert [sorted({call.path for call in calls}) for calls in found.values()] == [["fc", "fc_1"]]
