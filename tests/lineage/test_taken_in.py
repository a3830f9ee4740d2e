"""What a node has taken in, and what it only seems to have: names do not help, weights hold the same where they can."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from tests.building import graph, node

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


def test_two_nodes_that_read_different_values_are_not_one() -> None:
    """Both read a value of the first layer, as that of the second was equal; what else they read is not known."""
    before = graph(
        node("Sin", "x", "ax"),
        node("Cos", "x", "bx"),
        node("Sqrt", "ka", "ad"),
        node("Sqrt", "kb", "bd"),
        node("ReduceMax", "ax", "am"),
        node("ReduceMax", "bx", "bm"),
        node("Concat", "am one ad", "ac", axis=0),
        node("Concat", "bm one bd", "bc", axis=0),
        node("Erf", "ac", "ae"),
        node("Tanh", "bc", "bt"),
        node("Max", "ae bt", "y"),
        weights=tensors(one=[1], ka=W1, kb=W2),
    )
    after = graph(
        node("Sin", "x", "n0"),
        node("Cos", "x", "n1"),
        node("Sqrt", "ka", "n2"),
        node("GlobalMaxPool", "n1", "n4"),
        node("Concat", "n4 one n2", "n6", axis=0),
        node("GlobalMaxPool", "n0", "n3"),
        node("Concat", "n3 one n2", "n5", axis=0),
        node("Erf", "n5", "n7"),
        node("Tanh", "n6", "n8"),
        node("Max", "n8 n7", "y"),
        weights=tensors(one=[1], ka=W1),
    )
    assert sources(before, after, "n5") & {"ac", "bc"} == {"ac"}
    assert sources(before, after, "n6") & {"ac", "bc"} == {"bc"}
