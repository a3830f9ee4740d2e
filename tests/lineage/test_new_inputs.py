"""What a tool puts before or into a product: a view of its own, a bias that a norm became, weights that were packed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.support.building import graph, node

from modelexport.graph.index import Graph
from modelexport.lineage.descent import trace_lineage


def sources(before: Graph, after: Graph, key: str) -> set[str]:
    return set(trace_lineage(before, after).nodes[key].sources)


def tensors(**arrays: object) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


WEIGHT, OTHER, LAST, BIAS = numbers(1, 16, 16), numbers(2, 16, 16), numbers(3, 16, 16), numbers(4, 16)


def test_a_view_between_a_transposition_and_a_product_is_the_tools_own() -> None:
    """A Gemm takes two axes. Another view further up says nothing about this one: the transposition is still done."""
    weights = tensors(w=WEIGHT, b=BIAS, wide=[2, -1, 16])
    before = graph(
        node("Relu", "x", "r"),
        node("Reshape", "r k", "v"),
        node("Transpose", "v", "t", perm=[0, 2, 1]),
        node("MatMul", "t w", "m"),
        node("Add", "b m", "s"),
        node("Exp", "s", "y"),
        inputs="x k",
        weights=weights,
    )
    after = graph(
        node("Relu", "x", "one"),
        node("Reshape", "one k", "two"),
        node("Transpose", "two", "turned", perm=[0, 2, 1]),
        node("Shape", "x", "size"),
        node("Reshape", "turned size", "view"),
        node("Gemm", "view w b", "product"),
        node("Reshape", "product wide", "back"),
        node("Exp", "back", "y"),
        inputs="x k",
        weights=weights,
    )
    assert sources(before, after, "product") == {"m", "s"}
    assert sources(before, after, "turned") == {"t"}


FILTER, OTHER_FILTER, BIASES = numbers(5, 4, 4, 3, 3), numbers(6, 4, 4, 3, 3), numbers(7, 2, 4)
GAINS = {name: numbers(8 + seed, 4, 1, 1) for seed, name in enumerate(("g1", "b1", "g2", "b2"))}
SCALE = {"scale": np.float32(0.01), "zero": np.uint8(0)}


@pytest.mark.parametrize("made", ["hidden", "c1"])
def test_a_convolution_with_a_bias_that_is_new_has_taken_in_the_norm(made: str) -> None:
    """The sum of two of them does no norm's work, whatever name a convolution has kept."""
    before = graph(
        node("Conv", "x w", "c1"), node("Mul", "c1 g1", "m1"), node("Add", "m1 b1", "n1"),
        node("Conv", "x v", "c2"), node("Mul", "c2 g2", "m2"), node("Add", "m2 b2", "n2"),
        node("Add", "n1 n2", "s"), node("Relu", "s", "r"),
        node("Exp", "r", "e"), node("Tanh", "e", "y"),
        weights=tensors(w=FILTER, v=OTHER_FILTER, **GAINS),
    )  # fmt: skip
    after = graph(
        node("Conv", "x w b", made), node("Conv", "x v d", "other"), node("Add", f"{made} other", "sum"),
        node("QuantizeLinear", "sum scale zero", "q"), node("DequantizeLinear", "q scale zero", "f"),
        node("Strange", "f", "y"),
        weights=tensors(w=FILTER, v=OTHER_FILTER, b=BIASES[0], d=BIASES[1], **SCALE),
    )  # fmt: skip
    assert sources(before, after, made) == {"c1", "m1", "n1"}
    assert sources(before, after, "other") == {"c2", "m2", "n2"}
    assert sources(before, after, "sum") == {"s"}


def test_a_packed_product_of_which_one_piece_is_known_is_not_that_piece_alone() -> None:
    """Biases of zero are one constant, and tell nobody from others; who reads the third piece is known."""
    products = [node("MatMul", f"x {weight}", made) for weight, made in ("wa", "vb", "uc")]
    sums = [node("Add", f"{made} z", total) for made, total in ("ad", "be", "cf")]
    last = [node("Mul", "d e", "s"), node("Softmax", "s", "t"), node("MatMul", "t f", "y")]
    before = graph(*products, *sums, *last, weights=["w", "v", "u", "z"])
    after = graph(
        node("MatMul", "x packed", "product"),
        node("Split", "product", "one two three", num_outputs=3),
        *[node("Add", f"{piece} z", total) for piece, total in (("one", "i"), ("two", "j"), ("three", "k"))],
        node("Mul", "i j", "l"),
        node("Softmax", "l", "n"),
        node("MatMul", "n k", "y"),
        weights=["packed", "z"],
    )
    assert sources(before, after, "product") == {"a", "b", "c"}
