"""What a node has taken in, and what it only seems to have: names do not help, weights hold the same where they can."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from tests.support.building import graph, node

from modelexport.graph.index import Graph
from modelexport.lineage.descent import trace_lineage


def sources(before: Graph, after: Graph, key: str) -> set[str]:
    return set(trace_lineage(before, after).nodes[key].sources)


def tensors(**arrays: object) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


W1, W2, BIAS = (np.arange(start, start + size, dtype=np.float32) for start, size in ((0, 16), (16, 16), (40, 4)))


def test_a_view_that_is_put_before_a_product_is_not_one_further_up() -> None:
    before = graph(
        node("MatMul", "x w1", "h"),
        node("Reshape", "h shape", "v"),
        node("Transpose", "v", "t", perm=[1, 0]),
        node("Gelu", "t", "g"),
        node("MatMul", "g w2", "p"),
        node("Add", "p b", "y"),
        weights=tensors(w1=W1, w2=W2, b=BIAS, shape=[-1, 4]),
    )
    after = graph(
        node("MatMul", "x w1", "n0"),
        node("Reshape", "n0 shape", "n1"),
        node("Transpose", "n1", "n2", perm=[1, 0]),
        node("Gelu", "n2", "n3"),
        node("Reshape", "n3 flat", "n4"),
        node("Gemm", "n4 w2 b", "n5"),
        node("Reshape", "n5 back", "y"),
        weights=tensors(w1=W1, w2=W2, b=BIAS, shape=[-1, 4], flat=[4, 4], back=[2, 2, 4]),
    )
    assert sources(before, after, "n3") == {"g"}
    assert sources(before, after, "n1") == {"v"}
    assert sources(before, after, "n5") == {"p", "y"}
    assert "v" not in sources(before, after, "n4")


def test_a_transposition_that_others_still_read_is_in_a_product_as_well() -> None:
    before = graph(
        node("Relu", "x", "r"),
        node("Transpose", "r", "t", perm=[1, 0]),
        node("MatMul", "t w1", "p"),
        node("Add", "t p", "y"),
        weights=tensors(w1=W1, w2=W2),
    )
    after = graph(
        node("Relu", "x", "r"),
        node("Transpose", "r", "t", perm=[1, 0]),
        node("FusedMatMul", "r w1", "p", transA=1),
        node("Add", "t p", "y"),
        weights=tensors(w1=W1, w2=W2),
    )
    assert sources(before, after, "p") == {"t", "p"}
    assert sources(before, after, "t") == {"t"}


def test_a_product_with_a_number_is_not_in_a_norm_whose_weight_is_as_it_was() -> None:
    before = graph(
        node("Relu", "x", "r"),
        node("Mul", "r w1", "n"),
        node("Mul", "n half", "s"),
        node("MatMul", "s w2", "y"),
        weights=tensors(w1=W1, w2=W2, half=np.float32(0.5)),
    )
    after = graph(
        node("Relu", "x", "n0"),
        node("SimplifiedLayerNormalization", "n0 w1", "n1"),
        node("FusedMatMul", "n1 w2", "y", alpha=0.5),
        weights=tensors(w1=W1, w2=W2),
    )
    assert sources(before, after, "y") == {"s", "y"}
    assert sources(before, after, "n1") == {"n"}


def test_a_product_with_other_weights_is_found_by_what_came_behind_it() -> None:
    """Its weights have taken in a norm and are rounded; a quantizer cuts off what the activation did."""
    scale = {f"s{place}": np.float32(0.1 * place) for place in range(1, 4)}
    norms = {name: np.arange(start, start + 4, dtype=np.float32) for name, start in (("g1", 50), ("g2", 60))}
    before = graph(
        node("Abs", "x", "a"),
        node("MatMul", "a w1", "p1"),
        node("Mul", "p1 g1", "m1"),
        node("Relu", "m1", "r1"),
        node("MatMul", "r1 w2", "p2"),
        node("Mul", "p2 g2", "m2"),
        node("Relu", "m2", "r2"),
        node("Neg", "r2", "y"),
        weights=tensors(w1=W1, w2=W2, **norms),
    )
    after = graph(
        node("Abs", "x", "a"),
        node("MatMul", "a v1", "n1"),
        node("QuantizeLinear", "n1 s1", "q1"),
        node("DequantizeLinear", "q1 s1", "d1"),
        node("MatMul", "d1 v2", "r2"),
        node("QuantizeLinear", "r2 s2", "q2"),
        node("DequantizeLinear", "q2 s2", "d2"),
        node("Neg", "d2", "y"),
        weights=tensors(v1=W1 * 7.3, v2=W2[::-1] * 0.11, **scale),
    )
    assert sources(before, after, "r2") == {"p2", "m2"}
    assert sources(before, after, "q2") == {"r2"}
    assert sources(before, after, "q1") == {"r1"}
    assert sources(before, after, "n1") == {"p1", "m1"}


def test_a_node_that_is_as_it_was_does_nothing_of_what_was_dropped_before_it() -> None:
    before = graph(node("Relu", "x", "r"), node("Neg", "r", "n"), node("Exp", "n", "y"))
    after = graph(node("Relu", "x", "r"), node("Exp", "r", "y"))
    lineage = trace_lineage(before, after)
    assert lineage.nodes["y"].sources == ("y",)
    assert lineage.consistency.unexplained == ("n",)


def test_padding_is_taken_in_by_a_convolution_whose_pads_changed() -> None:
    weights = {name: np.full((2, 2, 3, 3), number, np.float32) for number, name in enumerate(("v", "w"), 1)}
    pads = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    before = graph(
        node("Conv", "x v", "r"),
        node("Pad", "r pads", "p"),
        node("Conv", "p w", "y", pads=[0, 0, 0, 0]),
        weights=tensors(pads=pads, **weights),
    )
    changed, same = (
        graph(node("Conv", "x v", "r"), node("Conv", "r w", "y", pads=pads), weights=tensors(**weights))
        for pads in ([0, 0, 1, 1], [0, 0, 0, 0])
    )
    assert sources(before, changed, "y") == {"p", "y"}
    assert sources(before, same, "y") == {"y"}


def test_a_negated_condition_is_taken_in_by_all_whose_branches_are_exchanged() -> None:
    before = graph(
        node("Greater", "x w", "c"),
        node("Not", "c", "n"),
        node("Relu", "x", "r"),
        node("Where", "n r x", "a"),
        node("Where", "n x a", "y"),
        weights=tensors(w=W1),
    )
    after = graph(
        node("Greater", "x w", "c"),
        node("Relu", "x", "r"),
        node("Where", "c x r", "a"),
        node("Where", "c a x", "y"),
        weights=tensors(w=W1),
    )
    assert sources(before, after, "a") == {"n", "a"}
    assert sources(before, after, "y") == {"n", "y"}
    assert trace_lineage(before, after).consistency.unexplained == ()
    # Whoever leaves it out and changes nothing else computes something else.
    kept = graph(
        node("Greater", "x w", "c"),
        node("Relu", "x", "r"),
        node("Where", "c r x", "a"),
        node("Where", "c x a", "y"),
        weights=tensors(w=W1),
    )
    assert trace_lineage(before, kept).consistency.unexplained == ("n",)


def test_a_product_with_one_is_not_the_product_before_it() -> None:
    before = graph(
        node("Relu", "x", "r"),
        node("Mul", "r w1", "p"),
        node("Mul", "p one", "q"),
        node("Neg", "q", "y"),
        weights=tensors(w1=W1, one=np.float32(1)),
    )
    after = graph(node("Relu", "x", "r"), node("Mul", "r w1", "p"), node("Neg", "p", "y"), weights=tensors(w1=W1))
    assert sources(before, after, "p") == {"p"}
