"""What tools put before or into products: views, transpositions, packed weights, scales, a bias that a norm became."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.support.building import graph, node

from modelexport.graph.index import Graph
from modelexport.lineage.descent import trace_lineage
from modelexport.record.provenance import Confidence


def sources(before: Graph, after: Graph, key: str) -> set[str]:
    return set(trace_lineage(before, after).nodes[key].sources)


def tensors(**arrays: object) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


WEIGHT, OTHER, LAST = (numbers(seed, 16, 16) for seed in (1, 2, 3))
BIAS, GAIN = numbers(4, 16), numbers(20, 16)


def test_a_transposition_is_in_the_product_that_reads_it_and_in_no_view_behind_the_other() -> None:
    weights = tensors(w=WEIGHT, b=BIAS, flat=[-1, 16], deep=[2, -1, 16])
    before = graph(
        node("MatMul", "x w", "m"),
        node("Add", "b m", "k"),
        node("Transpose", "k", "t", perm=[0, 2, 1]),
        node("MatMul", "q t", "p"),
        node("Softmax", "p", "y"),
        inputs="x q",
        weights=weights,
    )
    after = graph(
        node("Reshape", "x flat", "view"),
        node("Gemm", "view w b", "product"),
        node("Reshape", "product deep", "back"),
        node("FusedMatMul", "q back", "scores", domain="com.microsoft", transB=1),
        node("Softmax", "scores", "y"),
        inputs="x q",
        weights=weights,
    )
    assert sources(before, after, "product") == {"m", "k"}
    assert sources(before, after, "scores") == {"t", "p"}


def test_a_scale_behind_a_view_is_in_the_product_that_reads_it() -> None:
    """The transposition of an axis of one element is gone; what is left is a view, which changes no numbers."""
    weights = tensors(w=WEIGHT, deep=[2, -1, 1, 16], flat=[2, 1, -1, 16], half=np.float32(0.5))
    before = graph(
        node("MatMul", "x w", "m"),
        node("Reshape", "m deep", "v"),
        node("Transpose", "v", "t", perm=[0, 2, 1, 3]),
        node("Mul", "t half", "s"),
        node("MatMul", "s k", "p"),
        node("Softmax", "p", "y"),
        inputs="x k",
        weights=weights,
    )
    after = graph(
        node("MatMul", "x w", "m"),
        node("Reshape", "m flat", "view"),
        node("FusedMatMul", "view k", "scores", domain="com.microsoft", alpha=0.5),
        node("Softmax", "scores", "y"),
        inputs="x k",
        weights=weights,
    )
    assert sources(before, after, "view") == {"v"}
    assert sources(before, after, "scores") == {"s", "p"}


def test_integers_that_are_dequantized_are_weights() -> None:
    """A sum with a bias is not one of two values, further up."""
    before = graph(
        node("Add", "x z", "s"),
        node("Tanh", "s", "n"),
        node("MatMul", "n w", "m"),
        node("Add", "m b", "a"),
        node("MatMul", "q a", "p"),
        node("Softmax", "p", "y"),
        inputs="x z q",
        weights=tensors(w=WEIGHT, b=np.zeros(16, np.float32)),
    )
    after = graph(
        node("Add", "x z", "one"),
        node("Tanh", "one", "two"),
        node("MatMulNBits", "two packed", "product", domain="com.microsoft"),
        node("DequantizeLinear", "steps scale", "bias"),
        node("Add", "product bias", "sum"),
        node("QLinearMatMul", "q sum", "scores"),
        node("Softmax", "scores", "y"),
        inputs="x z q",
        weights=tensors(packed=np.arange(32, dtype=np.uint8), steps=np.zeros(16, np.int32), scale=np.float32(0.1)),
    )
    assert sources(before, after, "sum") == {"a"}
    assert sources(before, after, "scores") == {"p"}


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


ZEROS = np.zeros(16, np.float32)
MICROSOFT = "com.microsoft"


def test_a_transposition_between_two_products_is_in_the_second_one() -> None:
    """No weights of the first make up for it. Equal biases, which are read everywhere, say nothing of it."""
    weights = tensors(w=WEIGHT, z=ZEROS, v=OTHER)
    before = graph(
        node("MatMul", "x v", "p"), node("Add", "p z", "q"),
        node("MatMul", "x w", "m"), node("Add", "m z", "k"), node("Transpose", "k", "t", perm=[0, 2, 1]),
        node("MatMul", "q t", "s"), node("Softmax", "s", "y"),
        weights=weights,
    )  # fmt: skip
    after = graph(
        node("MatMul", "x v", "p"), node("Add", "p z", "q"),
        node("MatMulNBits", "x w z", "key", domain=MICROSOFT),
        node("FusedMatMul", "q key", "scores", domain=MICROSOFT, transB=1), node("Softmax", "scores", "y"),
        weights=weights,
    )  # fmt: skip
    assert sources(before, after, "key") == {"m", "k"}
    assert sources(before, after, "scores") == {"t", "s"}


def test_constants_that_a_fused_norm_reads_itself_are_no_work_of_others() -> None:
    """Its bias of zero is the one of the next layer as well, and of every sum."""
    weights = tensors(w=WEIGHT, v=OTHER, u=LAST, g=GAIN, z=ZEROS)
    before = graph(
        node("MatMul", "x w", "m"), node("Add", "m z", "a"), node("Add", "a x", "s"),
        node("LayerNormalization", "s g z", "n"),
        node("MatMul", "n v", "b"), node("MatMul", "n u", "c"), node("Add", "b z", "d"), node("Add", "c z", "e"),
        node("Mul", "d e", "f"), node("Add", "f n", "r"), node("LayerNormalization", "r g z", "y"),
        weights=weights,
    )  # fmt: skip
    after = graph(
        node("MatMul", "x w", "m"),
        node("SkipLayerNormalization", "m x g z z", "norm", domain=MICROSOFT),
        node("MatMul", "norm packed", "both"), node("Split", "both", "one two", axis=-1, num_outputs=2),
        node("Add", "one z", "i"), node("Add", "two z", "j"),
        node("Strange", "i j norm g z", "y"),
        weights=[*weights, *tensors(packed=numbers(21, 16, 32))],
    )  # fmt: skip
    assert sources(before, after, "norm") == {"a", "s", "n"}


def test_a_product_of_two_values_is_not_one_with_a_weight() -> None:
    """Of three products in a region, the one of two values is the only one of its kind."""
    before = graph(
        node("MatMul", "x w", "a"), node("MatMul", "x v", "b"), node("Add", "a z", "q"), node("Add", "b z", "k"),
        node("MatMul", "q k", "s"), node("Mul", "s half", "h"), node("Softmax", "h", "y"),
        weights=tensors(w=WEIGHT, v=OTHER, z=ZEROS, half=np.float32(0.5)),
    )  # fmt: skip
    after = graph(
        node("MatMul", "x packed", "both"), node("Split", "both", "one two", axis=-1, num_outputs=2),
        node("Add", "one z", "i"), node("Add", "two z", "j"),
        node("FusedMatMul", "i j", "scores", domain=MICROSOFT, alpha=0.5), node("Softmax", "scores", "y"),
        weights=tensors(packed=numbers(22, 16, 32), z=ZEROS),
    )  # fmt: skip
    assert sources(before, after, "scores") == {"s", "h"}
    assert sources(before, after, "i") == {"q"}
    assert sources(before, after, "j") == {"k"}


def test_a_scale_between_two_weights_may_be_in_either() -> None:
    """Weights are known by their numbers up to a factor: which one took in the scale, they do not say."""
    weights = tensors(g=GAIN, w=WEIGHT)
    before = graph(
        node("Mul", "x g", "n"),
        node("Mul", "n scale", "s"),
        node("MatMul", "s w", "y"),
        weights=[*weights, *tensors(scale=np.float32(0.25))],
    )
    after = graph(node("Mul", "x g", "one"), node("MatMulNBits", "one w", "y", domain=MICROSOFT), weights=weights)
    link = trace_lineage(before, after).nodes["y"]
    assert set(link.sources) == {"s", "y"}
    assert link.confidence is Confidence.INFERRED


def test_a_bias_that_a_norm_reads_is_not_added_by_the_product_above() -> None:
    weights = tensors(w=WEIGHT, b=BIAS, g=GAIN, c=numbers(23, 16), z=ZEROS)
    before = graph(
        node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Add", "r o", "u"), node("Add", "a u", "s"),
        node("LayerNormalization", "s g c", "y"),
        inputs="x r o",
        weights=weights,
    )  # fmt: skip
    after = graph(
        node("MatMulNBits", "x w", "product", domain=MICROSOFT), node("Add", "r o", "sum"),
        node("SkipLayerNormalization", "product sum g c b", "y", domain=MICROSOFT),
        inputs="x r o",
        weights=weights,
    )  # fmt: skip
    assert sources(before, after, "product") == {"m"}
    assert sources(before, after, "sum") == {"u"}
    assert sources(before, after, "y") == {"a", "s", "y"}


def test_what_divides_a_size_divides_no_values() -> None:
    """An activation in its parts has a division, too."""
    before = graph(
        node("MatMul", "x w", "m"),
        node("Shape", "m", "size"),
        node("Gather", "size last", "long"),
        node("Div", "long two", "half"),
        node("Slice", "m zero half last", "s"),
        node("Gelu", "s", "g"),
        node("MatMul", "g v", "y"),
        weights=tensors(w=WEIGHT, v=numbers(24, 8, 16), last=[2], two=[2], zero=[0]),
    )
    after = graph(
        node("MatMul", "x w", "product"),
        node("Split", "product", "left right", axis=-1, num_outputs=2),
        node("Div", "left root", "divided"),
        node("Erf", "divided", "error"),
        node("Mul", "left error", "made"),
        node("MatMul", "made v", "y"),
        weights=tensors(w=WEIGHT, v=numbers(24, 8, 16), root=np.float32(1.41421)),
    )
    link = trace_lineage(before, after).nodes["divided"]
    assert (set(link.sources), link.confidence) == ({"s", "g"}, Confidence.INFERRED)


def test_of_two_views_behind_a_product_the_last_is_the_one_that_was_there() -> None:
    """The first takes the shape back that the product needed."""
    weights = tensors(w=WEIGHT, b=BIAS)
    before = graph(
        node("Shape", "x", "k"),
        node("MatMul", "x w", "m"),
        node("Add", "m b", "a"),
        node("Reshape", "a k", "r"),
        node("Transpose", "r", "y", perm=[1, 0, 2]),
        weights=weights,
    )
    after = graph(
        node("Strange", "x", "size"),
        node("Strange", "size", "heads"),
        node("Gemm", "x w b", "product"),
        node("Reshape", "product size", "back"),
        node("Reshape", "back heads", "view"),
        node("Strange", "view", "y"),
        weights=weights,
    )
    lineage = trace_lineage(before, after)
    assert "r" in lineage.nodes["view"].sources
    assert lineage.nodes["back"].confidence < Confidence.STRONG
