"""Nodes come after what they read."""

from __future__ import annotations

import onnx
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import body, model, node
from tests.support.proof_stories import dags

from modelexport.graph.index import index_model, walk_nodes
from modelexport.graph.protos import in_order, names_read


def made(nodes: object) -> list[str]:
    return [one.output[0] for one in nodes]  # type: ignore[attr-defined]


def test_an_order_that_is_right_is_left_alone() -> None:
    nodes = [node("Sin", "x", "b"), node("Cos", "x", "a"), node("Add", "a b", "y")]
    assert in_order(nodes) is nodes


@given(dags(), st.randoms(use_true_random=False))
def test_any_order_becomes_one_that_can_run(proto: onnx.ModelProto, random: object) -> None:
    nodes = list(proto.graph.node)
    random.shuffle(nodes)  # type: ignore[attr-defined]
    found = in_order(nodes)
    assert sorted(made(found)) == sorted(made(nodes))
    known = {"x"}
    for one in found:
        assert set(one.input) <= known
        known |= set(one.output)


def test_what_a_body_reads_comes_before_its_node() -> None:
    inner = body(node("Sin", "a", "s"), outputs="s")
    branch = node("If", "c", "y", then_branch=inner, else_branch=inner)
    assert names_read(branch) == {"c", "a"}
    late = [branch, node("Cos", "x", "a"), node("Cast", "a", "c", to=onnx.TensorProto.BOOL)]
    assert made(in_order(late)) == ["a", "c", "y"]


def test_a_circle_is_left_for_others_to_complain_of() -> None:
    nodes = [node("Sin", "b", "a"), node("Cos", "a", "b"), node("Neg", "x", "y")]
    assert sorted(made(in_order(nodes))) == ["a", "b", "y"]


def test_the_index_is_in_that_order_and_so_are_walks() -> None:
    proto = model(node("Neg", "h", "y"), node("Sin", "x", "h"))
    found = index_model(proto)
    assert [one.key for one in found.nodes] == ["h", "y"] == [key for key, _ in walk_nodes(proto)]
    assert found.computed >= {"h", "y"}


def test_a_long_chain_the_wrong_way_round() -> None:
    nodes = [node("Neg", f"v{place}", f"v{place + 1}") for place in range(5000)]
    assert made(in_order(list(reversed(nodes)))) == [f"v{place + 1}" for place in range(5000)]


def test_nodes_of_a_function_are_put_in_order_too() -> None:
    """Tools append the nodes that they add to functions as well, and every maker is looked up before its readers."""
    nodes = [node("Relu", "b", "c"), node("Neg", "a", "b")]
    function = onnx.helper.make_function("local", "F", ["a"], ["c"], nodes, [onnx.helper.make_opsetid("", 20)])
    proto = model(node("F", "x", "y", domain="local"), functions=[function])
    assert [made.op_type for made in index_model(proto).nodes if made.graph] == ["Neg", "Relu"]
    assert [key for key, _ in walk_nodes(proto)] == [made.key for made in index_model(proto).nodes]
