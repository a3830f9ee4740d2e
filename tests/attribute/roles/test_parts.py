"""Norms, feed-forward networks, residual adds, embeddings and positions in graphs made by hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from tests.support.building import node, weight
from tests.support.role_finding import find, table

TWO, TINY, ONE, MINUS_HALF = weight("two", 2), weight("tiny", 1e-6), weight("one", 1), weight("minus_half", -0.5)
SQUARES = [node("Pow", "d two", "sq"), node("ReduceMean", "sq", "ms"), node("Add", "ms tiny", "safe")]
ENDS = {
    "divided": [node("Sqrt", "safe", "root"), node("Div", "d root", "n")],
    "multiplied by the reciprocal": [
        node("Sqrt", "safe", "root"),
        node("Reciprocal", "root", "inverse"),
        node("Mul", "d inverse", "n"),
    ],
    "multiplied by one over it": [
        node("Sqrt", "safe", "root"),
        node("Div", "one root", "inverse"),
        node("Mul", "d inverse", "n"),
    ],
    "to the power": [node("Pow", "safe minus_half", "inverse"), node("Mul", "d inverse", "n")],
}
STARTS = {
    "root mean square": [node("Identity", "x", "d")],
    "layer norm": [node("ReduceMean", "x", "mean"), node("Sub", "x mean", "d")],
}
AFFINE = [node("Mul", "n scale", "m"), node("Add", "m shift", "y")]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_norms_that_were_taken_apart(start: list[onnx.NodeProto], end: list[onnx.NodeProto]) -> None:
    weights = [TWO, TINY, ONE, MINUS_HALF, table("scale", 8), table("shift", 8)]
    found = find(*start, *SQUARES, *end, *AFFINE, weights=weights)
    members = {item.output[0] for item in (*start, *SQUARES, *end, *AFFINE) if item.op_type != "Identity"}
    assert found == dict.fromkeys(members, "norm")


def test_a_deviation_that_nothing_is_divided_by_is_no_norm() -> None:
    found = find(node("Identity", "x", "d"), *SQUARES, node("Sqrt", "safe", "y"), weights=[TWO, TINY])
    assert found == {}


@pytest.mark.parametrize(
    "op_type", ["LayerNormalization", "BatchNormalization", "InstanceNormalization", "SkipLayerNormalization"]
)
def test_norms_in_one_node(op_type: str) -> None:
    assert find(node(op_type, "x w b", "y"), weights=["w", "b"]) == {"y": "norm"}


@pytest.mark.parametrize("op_type", ["LayerNormalization", "MatMul", "Attention", "Gather"])
def test_a_node_of_an_unknown_domain_has_no_role_whatever_its_name(op_type: str) -> None:
    assert find(node(op_type, "x w", "y", domain="my.domain"), weights=["w"]) == {}


def test_a_plain_feed_forward_network() -> None:
    nodes = [node("MatMul", "x w1", "u"), node("Gelu", "u", "a"), node("MatMul", "a w2", "y")]
    assert find(*nodes, weights=["w1", "w2"]) == {"u": "mlp.up", "a": "mlp.activation", "y": "mlp.down"}


def test_an_activation_that_was_taken_apart() -> None:
    gelu = [
        node("Div", "u root", "scaled"),
        node("Erf", "scaled", "erf"),
        node("Add", "erf one", "plus"),
        node("Mul", "u plus", "both"),
        node("Mul", "both half", "a"),
    ]
    weights: list[str | onnx.TensorProto] = ["w1", "w2", weight("root", 1.41), ONE, weight("half", 0.5)]
    found = find(node("MatMul", "x w1", "u"), *gelu, node("MatMul", "a w2", "y"), weights=weights)
    assert {found[item.output[0]] for item in gelu} == {"mlp.activation"}
    assert (found["u"], found["y"]) == ("mlp.up", "mlp.down")


def test_one_product_gates_the_other() -> None:
    silu = [node("Sigmoid", "g", "s"), node("Mul", "g s", "a")]
    nodes = [node("MatMul", "x w1", "g"), *silu, node("MatMul", "x w2", "u"), node("Mul", "u a", "h")]
    found = find(*nodes, node("MatMul", "h w3", "y"), weights=["w1", "w2", "w3"])
    assert found == {
        "g": "mlp.gate",
        "s": "mlp.activation",
        "a": "mlp.activation",
        "u": "mlp.up",
        "y": "mlp.down",
    }


def test_one_half_of_a_product_gates_the_other() -> None:
    nodes = [
        node("MatMul", "x w1", "h"),
        node("Split", "h", "g u", num_outputs=2),
        node("Gelu", "g", "a"),
        node("Mul", "a u", "m"),
        node("MatMul", "m w2", "y"),
    ]
    assert find(*nodes, weights=["w1", "w2"]) == {"h": "mlp.gate_up", "a": "mlp.activation", "y": "mlp.down"}


def test_two_products_in_a_row_are_no_network() -> None:
    nodes = [node("MatMul", "x w1", "u"), node("MatMul", "u w2", "y")]
    assert find(*nodes, weights=["w1", "w2"]) == {"u": "projection", "y": "projection"}


def test_a_value_added_to_what_was_made_of_it() -> None:
    assert find(node("MatMul", "x w", "h"), node("Add", "h x", "y"), weights=["w"])["y"] == "residual"
    assert (
        find(node("MatMul", "x w", "h"), node("Cast", "x", "z"), node("Add", "z h", "y"), weights=["w"])["y"]
        == "residual"
    )


def test_a_shortcut_with_a_product() -> None:
    branch = [node("Conv", "x w1", "a"), node("Relu", "a", "r"), node("Conv", "r w2", "b")]
    found = find(*branch, node("Conv", "x w3", "c"), node("Add", "b c", "y"), weights=["w1", "w2", "w3"])
    assert found["y"] == "residual"


NO_RESIDUAL = {
    "two products of one value": [node("MatMul", "x w", "a"), node("MatMul", "x v", "b"), node("Add", "a b", "y")],
    "a polynomial": [node("MatMul", "x w", "a"), node("Mul", "a a", "b"), node("Add", "a b", "y")],
    "two inputs": [node("MatMul", "x w", "a"), node("MatMul", "z v", "b"), node("Add", "a b", "y")],
}


@pytest.mark.parametrize("nodes", NO_RESIDUAL.values(), ids=NO_RESIDUAL)
def test_other_sums(nodes: list[onnx.NodeProto]) -> None:
    assert "residual" not in find(*nodes, inputs="x z", weights=["w", "v"]).values()


TABLE = table("t", 100, 8)
TOKENS = node("Gather", "t x", "e")


def test_a_table_read_by_what_the_model_is_fed() -> None:
    assert find(node("Gather", "t x", "y"), weights=[TABLE]) == {"y": "embedding"}


COUNTS = {
    "a range": [node("Shape", "x", "n"), node("Range", "zero n one", "i")],
    "a running sum": [node("Not", "x", "m"), node("Cast", "m", "c"), node("CumSum", "c one", "i")],
    "a row as long as the table": [node("Slice", "row zero one", "i")],
}


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_a_table_read_by_a_count(count: list[onnx.NodeProto]) -> None:
    weights = [TABLE, table("u", 50, 8), weight("zero", 0), ONE, table("row", 1, 50, dtype=TensorProto.INT64)]
    found = find(TOKENS, *count, node("Gather", "u i", "p"), node("Add", "e p", "y"), weights=weights)
    assert {key: found[key] for key in ("e", "p", "y")} == {"e": "embedding", "p": "position", "y": "position"}


def test_a_table_read_by_nobody_knows_what() -> None:
    kinds = table("kinds", 1, 50, dtype=TensorProto.INT64)
    found = find(
        TOKENS, node("Gather", "u kinds", "p"), node("Add", "e p", "y"), weights=[TABLE, table("u", 2, 8), kinds]
    )
    assert found == {"e": "embedding"}


def test_adding_a_table_is_a_position_and_adding_a_vector_is_not() -> None:
    assert find(node("Add", "x p", "y"), weights=[table("p", 1, 16, 8)]) == {"y": "position"}
    assert find(node("Add", "x p", "y"), weights=[table("p", 1, 1, 8)]) == {}


def test_weights_are_not_decoded() -> None:
    """A weight may lie in another file: nothing but its header is needed."""
    data = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w1")
    without = [node("MatMul", "x w1", "u"), node("Relu", "u", "a"), node("MatMul", "a w2", "y")]
    assert find(*without, weights=["w1", "w2"]) == find(*without, weights=[data, "w2"])
