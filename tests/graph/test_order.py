from __future__ import annotations

from random import Random

import onnx
from hypothesis import given
from hypothesis import strategies as st
from tests.building import body, graph, model, node
from tests.graphs import models

from modelexport.graph.index import Graph, index_model
from modelexport.graph.order import cycle_in, ordered


def runs_in_order(made: Graph) -> bool:
    """Whether each node and its bodies find what they read, and bodies are right behind their owners."""
    seen = {value for values in made.takes.values() for value in values} | set(made.initializers)
    for place, one in enumerate(made.nodes):
        if not {value for value in one.inputs if value} <= seen or one.position != place:
            return False
        seen.update(one.outputs)
    return True


@given(models(), st.randoms())
def test_a_graph_in_any_order_is_put_in_order(proto: onnx.ModelProto, random: Random) -> None:
    made = index_model(proto)
    nodes = list(proto.graph.node)
    random.shuffle(nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    found = ordered(index_model(proto))
    assert runs_in_order(found)
    assert {one.key: (one.op_type, one.inputs, one.graph) for one in found.nodes} == {
        one.key: (one.op_type, one.inputs, one.graph) for one in made.nodes
    }
    assert found.computed == made.computed
    assert cycle_in(index_model(proto)) == ()


@given(models())
def test_a_graph_that_is_in_order_stays_as_it_is(proto: onnx.ModelProto) -> None:
    made = index_model(proto)
    assert ordered(made) is made


def test_what_a_body_reads_comes_before_its_owner() -> None:
    inner = body(node("Neg", "t", "u"), node("Abs", "h", "t"), outputs="u")
    found = ordered(graph(node("If", "x", "y", then_branch=inner), node("Relu", "x", "h"), node("Exp", "y", "z")))
    assert [one.key for one in found.nodes] == ["h", "y", "y|then_branch|t", "y|then_branch|u", "z"]


def test_a_long_chain_the_wrong_way_round() -> None:
    nodes = [node("Neg", f"v{place}", f"v{place + 1}") for place in range(5000)]
    found = ordered(graph(*reversed(nodes), inputs="v0", outputs="v5000"))
    assert [one.key for one in found.nodes] == [f"v{place + 1}" for place in range(5000)]


def test_a_circle_is_named_and_left_alone() -> None:
    made = graph(node("Relu", "x", "a"), node("Add", "a d", "b"), node("Neg", "b", "c"), node("Abs", "c", "d"))
    assert set(cycle_in(made)) == {"b", "c", "d"}
    found = ordered(made)
    assert sorted(one.key for one in found.nodes) == ["a", "b", "c", "d"]


def test_a_node_that_reads_itself() -> None:
    assert cycle_in(graph(node("Add", "x y", "y"))) == ("y",)


def test_a_circle_through_a_body() -> None:
    inner = body(node("Neg", "z", "t"), outputs="t")
    proto = model(node("If", "x", "y", then_branch=inner), node("Relu", "y", "z"), outputs="z")
    assert set(cycle_in(index_model(proto))) == {"y", "z"}
