"""Functions in the place of their calls."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from modelexport.graph.functions import inline_graph
from modelexport.graph.index import index_model

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]


def nested() -> onnx.ModelProto:
    """Two calls of a function that calls another one twice."""
    inner = helper.make_function(
        "local",
        "Inner",
        ["a"],
        ["c"],
        [helper.make_node("Exp", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])],
        OPSETS[:1],
    )
    outer = helper.make_function(
        "local",
        "Outer",
        ["a"],
        ["c"],
        [
            helper.make_node("Inner", ["a"], ["b"], domain="local"),
            helper.make_node("Inner", ["b"], ["c"], domain="local"),
        ],
        OPSETS,
    )
    calls = [helper.make_node("Outer", [a], [b], domain="local") for a, b in (("x", "y"), ("y", "z"))]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "z")]
    graph = helper.make_graph(calls, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=OPSETS, functions=[inner, outer])


def test_every_call_has_values_of_its_own() -> None:
    found = inline_graph(index_model(nested()))
    made = [name for node in found.graph.nodes for name in node.outputs]
    assert len(set(made)) == len(made) == 8
    assert made[-1] == "z"
    assert len({node.key for node in found.graph.nodes}) == 8


def test_nodes_are_one_chain() -> None:
    nodes = inline_graph(index_model(nested())).graph.nodes
    assert [node.op_type for node in nodes] == ["Exp", "Neg"] * 4
    assert [node.inputs[0] for node in nodes] == ["x", *(node.outputs[0] for node in nodes[:-1])]


def test_every_node_says_for_which_calls_it_is() -> None:
    found = inline_graph(index_model(nested()))
    outer = [found.origins[node.key][0] for node in found.graph.nodes]
    assert outer == ["y"] * 4 + ["z"] * 4
