"""The smallest set of sources: what was moved, dropped or folded is in no node that only stands beside it."""

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


GAIN, SHIFT, BIAS = numbers(1, 16), numbers(2, 16), numbers(3, 16)
WEIGHT, LAST = numbers(4, 16, 16), numbers(5, 16, 16)


def test_a_view_of_what_comes_out_of_a_fused_node_was_dropped() -> None:
    weights = tensors(g=GAIN, c=SHIFT, w=LAST, flat=[-1, 16])
    before = graph(
        node("Add", "a b", "s"),
        node("LayerNormalization", "s g c", "n"),
        node("Reshape", "n flat", "v"),
        node("MatMul", "v w", "y"),
        inputs="a b",
        weights=weights,
    )
    fused = node("SkipLayerNormalization", "a b g c", "hidden", domain="com.microsoft")
    after = graph(fused, node("MatMul", "hidden w", "y"), inputs="a b", weights=weights)
    assert sources(before, after, "hidden") == {"s", "n"}


def test_so_was_the_view_of_what_goes_in_that_it_undid() -> None:
    weights = tensors(w=WEIGHT, v=LAST, flat=[-1, 16], deep=[2, -1, 16], half=np.float32(0.5), one=np.float32(1))
    gelu = [
        node("Mul", "r half", "h"),
        node("Tanh", "r", "t"),
        node("Add", "t one", "o"),
        node("Mul", "h o", "e"),
    ]
    before = graph(
        node("Gemm", "x w", "m"),
        node("Reshape", "m deep", "r"),
        *gelu,
        node("Reshape", "e flat", "f"),
        node("Gemm", "f v", "y"),
        weights=weights,
    )
    fused = node("FastGelu", "m", "hidden", domain="com.microsoft")
    after = graph(node("Gemm", "x w", "m"), fused, node("Gemm", "hidden v", "y"), weights=weights)
    assert sources(before, after, "hidden") == {"h", "t", "o", "e"}


def test_nobody_had_the_value_between_two_nodes_that_share_a_work() -> None:
    weights = tensors(w=WEIGHT, b=BIAS, g=GAIN, c=SHIFT)
    before = graph(
        node("Tanh", "x", "a"),
        node("Gemm", "a w b", "m"),
        node("Shape", "a", "k"),
        node("Reshape", "m k", "v"),
        node("Add", "v x", "s"),
        node("LayerNormalization", "s g c", "y"),
        weights=weights,
    )
    after = graph(
        node("Tanh", "x", "hidden"),
        node("MatMul", "hidden w", "product"),
        node("SkipLayerNormalization", "product x g c b", "y", domain="com.microsoft"),
        weights=weights,
    )
    assert sources(before, after, "product") == {"m"}
    assert {"m", "s", "y"} <= sources(before, after, "y")
    assert "a" not in sources(before, after, "y")


def test_a_norm_has_read_its_own_bias_even_if_the_one_before_it_is_equal() -> None:
    weights = tensors(w=WEIGHT, zero=np.zeros(16, np.float32), g=GAIN)
    before = graph(
        node("MatMul", "x w", "m"),
        node("Add", "m zero", "a"),
        node("Add", "r a", "s"),
        node("LayerNormalization", "s g zero", "n"),
        node("Tanh", "n", "y"),
        inputs="x r",
        weights=weights,
    )
    after = graph(
        node("DynamicQuantizeMatMul", "x w zero", "product", domain="com.microsoft"),
        node("SkipLayerNormalization", "r product g zero", "norm", domain="com.microsoft"),
        node("Tanh", "norm", "y"),
        inputs="x r",
        weights=weights,
    )
    assert sources(before, after, "product") == {"m", "a"}
    assert sources(before, after, "norm") == {"s", "n"}


def test_a_sum_with_zero_that_is_gone_is_no_work_of_its_reader() -> None:
    weights = tensors(w=WEIGHT, zero=np.zeros(16, np.float32))
    before = graph(
        node("MatMul", "x w", "m"),
        node("Identity", "zero", "o"),
        node("Add", "m o", "a"),
        node("MatMul", "a z", "p"),
        node("Softmax", "p", "y"),
        inputs="x z",
        weights=weights,
    )
    quantized = node("QLinearMatMul", "product scale at z scale at scale at", "scores")
    after = graph(
        node("MatMul", "x w", "product"),
        quantized,
        node("Softmax", "scores", "y"),
        inputs="x z",
        weights=[*weights, *tensors(scale=np.float32(0.1), at=np.uint8(3))],
    )
    assert sources(before, after, "scores") == {"p"}


def test_a_product_that_adds_a_value_to_what_it_multiplies_is_one_with_a_weight() -> None:
    """So the activation between two products of which one weight is not known belongs to the first of them."""
    kernel, other = numbers(6, 16, 16, 1, 1), numbers(7, 16, 16, 1, 1)
    before = graph(
        node("Conv", "x w b", "c"),
        node("Clip", "c", "d"),
        node("Conv", "d v", "r"),
        node("Add", "z r", "s"),
        node("Tanh", "s", "y"),
        inputs="x z",
        weights=tensors(w=kernel, v=other, b=BIAS),
    )
    blocked = "com.microsoft.nchwc"
    after = graph(
        node("Conv", "x p b", "one", domain=blocked),
        node("Conv", "one q o z", "two", domain=blocked),
        node("Tanh", "two", "y"),
        inputs="x z",
        weights=tensors(p=numbers(8, 32, 16, 1, 1), q=numbers(9, 32, 32, 1, 1), b=BIAS, o=np.zeros(32, np.float32)),
    )
    assert sources(before, after, "one") == {"c", "d"}
    assert sources(before, after, "two") == {"r", "s"}


def test_what_varies_stands_for_no_constant() -> None:
    weights = tensors(half=np.float32(0.5), two=np.float32(2))
    before = graph(node("Mul", "x half", "h"), node("Pow", "x two", "p"), node("Sub", "h p", "y"), weights=weights)
    after = graph(
        node("Mul", "x half", "hidden"),
        node("Mul", "x x", "square"),
        node("Sub", "hidden square", "y"),
        weights=weights,
    )
    assert sources(before, after, "hidden") == {"h"}
    assert sources(before, after, "square") == {"p"}


@pytest.mark.parametrize("product", ["m", "hidden"])
def test_a_transposition_that_was_moved_is_in_no_product(product: str) -> None:
    before = graph(
        node("MatMul", "x w", "m"),
        node("Transpose", "m", "t", perm=[0, 2, 1]),
        node("Split", "t", "a b", axis=1, num_outputs=2),
        node("Exp", "a", "y"),
        node("Tanh", "b", "z"),
        outputs="y z",
        weights=tensors(w=WEIGHT),
    )
    after = graph(
        node("MatMulNBits", "x q", product, domain="com.microsoft"),
        node("Split", product, "p r", axis=2, num_outputs=2),
        node("Transpose", "p", "turned", perm=[0, 2, 1]),
        node("Exp", "turned", "y"),
        node("Tanh", "r", "s"),
        node("Transpose", "s", "z", perm=[0, 2, 1]),
        outputs="y z",
        weights=tensors(q=np.arange(32, dtype=np.uint8)),
    )
    assert sources(before, after, product) == {"m"}
    assert "m" not in sources(before, after, "p")
    assert "m" not in sources(before, after, "s")


def test_of_congruent_views_that_were_rewritten_each_is_one() -> None:
    before = graph(
        node("Flatten", "x", "a"), node("Flatten", "x", "b"), node("Gather", "a i", "y"), node("Gather", "b j", "z"),
        outputs="y z", weights=tensors(i=[0, 1], j=[1, 1]),
    )  # fmt: skip
    weights = tensors(i=[0, 1], j=[1, 1], s=[0, -1], t=[2, -1])
    after = graph(
        node("Reshape", "x s", "first"), node("Reshape", "x t", "second"),
        node("Gather", "first i", "y"), node("Gather", "second j", "z"), outputs="y z", weights=weights,
    )  # fmt: skip
    assert sources(before, after, "first") == {"a"}
    assert sources(before, after, "second") == {"b"}


def test_what_was_folded_into_a_constant_is_no_work_of_its_reader() -> None:
    weights = tensors(size=np.array([2, 2]), w=WEIGHT)
    before = graph(
        node("ConstantOfShape", "size", "k"), node("Exp", "x", "e"), node("Add", "k e", "s"), node("Tanh", "s", "y"),
        weights=weights,
    )  # fmt: skip
    after = graph(
        node("Exp", "x", "hidden"), node("Add", "zeros hidden", "sum"), node("Tanh", "sum", "y"),
        weights=tensors(zeros=np.zeros((2, 2), np.float32)),
    )  # fmt: skip
    assert sources(before, after, "sum") == {"s"}
