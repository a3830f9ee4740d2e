from __future__ import annotations

from tests.support.building import body, claim, graph, module, node, owners, run, tree

from modelexport.attribute.dataflow import claim_folded_parameters, claim_named_initializers, claim_parameter_readers
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import Confidence

NET = tree({"": "Net", "a": "Linear", "b": "Linear"})
TWICE = tree({"": "Net", "a": "Linear"}, "", "a", "a")


def test_a_node_that_reads_a_weight_belongs_to_its_module() -> None:
    made = graph(node("MatMul", "x a.weight", "h"), node("Add", "h a.bias", "k"), node("Relu", "k", "y"))
    found = claim_parameter_readers(NET, made.nodes, "s")
    assert owners(found) == {"h": ("a",), "k": ("a",)}
    assert {item.confidence for item in found.values()} == {Confidence.STRONG}


def test_a_node_that_reads_weights_of_two_modules_says_nothing() -> None:
    assert claim_parameter_readers(NET, graph(node("Add", "a.weight b.weight", "y")).nodes, "s") == {}


def test_a_copy_of_a_weight_belongs_to_the_module_whose_name_it_bears() -> None:
    copy = graph(node("Identity", "a.weight", "b.weight", "Identity_0"), node("MatMul", "x b.weight", "y"))
    assert owners(claim_parameter_readers(NET, copy.nodes, "s")) == {"b.weight": ("b",), "y": ("b",)}


def test_one_reader_for_each_call_tells_the_calls_apart() -> None:
    made = graph(node("MatMul", "x a.weight", "h"), node("MatMul", "h a.weight", "y"))
    assert owners(claim_parameter_readers(TWICE, made.nodes, "s")) == {"h": ("a",), "y": ("a#1",)}


def test_other_counts_of_readers_belong_to_all_calls() -> None:
    one = graph(node("MatMul", "x a.weight", "y"))
    assert owners(claim_parameter_readers(TWICE, one.nodes, "s")) == {"y": ("a", "a#1")}
    three = graph(*(node("MatMul", "x a.weight", f"y{place}") for place in range(3)))
    assert set(owners(claim_parameter_readers(TWICE, three.nodes, "s")).values()) == {("a", "a#1")}


def test_readers_are_paired_with_calls_parameter_by_parameter() -> None:
    """A body that runs twice reads the weight once and the bias once."""
    once = graph(node("MatMul", "x a.weight", "h"), node("Add", "h a.bias", "y"))
    assert owners(claim_parameter_readers(TWICE, once.nodes, "s")) == {"h": ("a", "a#1"), "y": ("a", "a#1")}
    halves = (node("MatMul", "y a.weight", "k"), node("Add", "k a.bias", "z"))
    twice = graph(node("MatMul", "x a.weight", "h"), node("Add", "h a.bias", "y"), *halves)
    found = owners(claim_parameter_readers(TWICE, twice.nodes, "s"))
    assert found == {"h": ("a",), "y": ("a",), "k": ("a#1",), "z": ("a#1",)}


def test_a_module_that_was_not_seen_running_owns_what_reads_its_weight() -> None:
    silent = tree({"": "Net", "a": "Linear"}, "")
    found = claim_parameter_readers(silent, graph(node("MatMul", "x a.weight", "y")).nodes, "s")
    assert owners(found) == {"y": ("a",)}
    assert found["y"].confidence is Confidence.INFERRED


def test_a_weight_in_a_body_is_known_by_its_own_name() -> None:
    branch = body(node("Identity", "x", "a.weight"), outputs="a.weight")
    made = graph(node("If", "c", "y", then_branch=branch), inputs="x c")
    assert owners(claim_parameter_readers(NET, made.nodes, "s")) == {"y|then_branch|a.weight": ("a",)}


def test_an_initializer_belongs_to_the_module_that_holds_the_parameter() -> None:
    shared = Hierarchy.of([module("", "Net"), module("a", "Linear", aliases=("c",))], run("", "a", "a"))
    made = graph(node("MatMul", "x c.weight", "y"), weights=["c.weight", "a.bias", "onnx::MatMul_7"])
    found = claim_named_initializers(made, shared, "s")
    assert owners(found) == {"c.weight": ("a",), "a.bias": ("a",)}
    assert {item.confidence for item in found.values()} == {Confidence.EXACT}


def test_a_folded_constant_belongs_also_to_the_modules_whose_weights_went_into_it() -> None:
    made = graph(node("Mul", "a.weight b.weight", "h"), node("Add", "h a.bias", "folded"))
    claims = {"folded": claim("a"), "other": claim("b")}
    found = claim_folded_parameters(claims, {"folded": made.nodes, "unknown": made.nodes}, NET)
    assert owners(found) == {"folded": ("a", "b")}
    assert found["folded"].confidence is claims["folded"].confidence
    assert claim_folded_parameters({"folded": claim("a", "b")}, {"folded": made.nodes}, NET) == {}
