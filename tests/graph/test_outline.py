from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given
from onnx import helper, numpy_helper
from tests.support.building import body, graph, model, node, weight
from tests.support.graphs import models

from modelexport.graph.file.reading import parse_model
from modelexport.graph.index import Graph, index_model
from modelexport.graph.outline import digested, graph_of, outlined, sketches_like, sketches_of
from modelexport.record.outline import PLACES, Sketch

SKETCH = Sketch((64, 64), 0.0, 1.0, tuple(range(PLACES)))


def again(made: Graph) -> Graph:
    return graph_of(outlined(made, lambda _: None))


def rows(made: Graph) -> list[tuple[object, ...]]:
    """Everything of nodes but what an outline leaves out: names and metadata."""
    return [(one.key, one.op_type, one.domain, one.graph, one.position, one.inputs, one.outputs) for one in made.nodes]


@given(models())
def test_a_graph_is_the_same_after_it_was_an_outline(proto: onnx.ModelProto) -> None:
    made = index_model(proto)
    found = again(made)
    assert rows(found) == rows(made)
    assert (found.inputs, found.outputs) == (made.inputs, made.outputs)
    assert (found.body_owner, found.body_outputs, found.body_inputs) == (
        made.body_owner,
        made.body_outputs,
        made.body_inputs,
    )
    assert found.initializers.keys() == made.initializers.keys()
    for name, tensor in made.initializers.items():
        assert (found.initializers[name].dtype, found.initializers[name].shape) == (tensor.dtype, tensor.shape)
        assert (found.initializers[name].content is None) == (tensor.content is None)
    assert found.computed == made.computed


@given(models())
def test_it_compares_with_the_digested_graph(proto: onnx.ModelProto) -> None:
    made = digested(index_model(proto))
    found = again(index_model(proto))
    assert found.fingerprint == made.fingerprint
    assert [(one.attributes, one.constant) for one in found.nodes] == [
        (one.attributes, one.constant) for one in made.nodes
    ]
    assert found.initializers == made.initializers


def test_attributes_and_constants_are_told_apart_by_their_digests() -> None:
    made = graph(
        node("Concat", "x x", "a", axis=0),
        node("Concat", "x x", "b", axis=1),
        node("Concat", "x x", "c", axis=0),
        node("Constant", "", "d", value=weight("", 1)),
        node("Constant", "", "e", value=weight("", 2)),
        node("Constant", "", "f", value_string="word"),
        outputs="a",
        weights=[weight("g", 1), weight("h", 2), weight("i", 1)],
    )
    found = again(made)
    a, b, c, d, e, f = found.nodes
    assert a.attributes == c.attributes != b.attributes
    assert None not in (d.constant, e.constant)
    assert d.constant != e.constant
    assert f.constant is None
    contents = [found.initializers[name].content for name in "ghi"]
    assert contents[0] == contents[2] != contents[1]
    assert contents[0] == d.constant


def test_functions_and_bodies_keep_what_goes_in_and_out() -> None:
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 20)]
    )
    loop = body(node("Neg", "s", "t"), inputs="i k s", outputs="k t")
    made = index_model(
        model(node("Loop", "_ _ x", "h", body=loop), node("Twice", "h", "y", domain="local"), functions=[function])
    )
    found = again(made)
    assert found.body_owner == {"h|body": "h"}
    assert found.body_inputs["h|body"] == ("h|body|i", "h|body|k", "h|body|s")
    assert found.body_outputs["local::Twice"] == ("local::Twice|b",)
    assert found.callers == made.callers


def test_sketches_of_floats_travel_and_those_of_integers_do_not() -> None:
    made = graph(node("Constant", "", "held", value=weight("", 1)), node("Add", "x held", "y"), weights=["w", "q"])
    found = outlined(made, lambda name: Sketch((64, 64), 0.0, 1.0, SKETCH.steps, quantized=name == "q"))
    assert found.sketches == {"w": SKETCH, "held": SKETCH}


def test_zeros_at_the_end_of_a_bias_may_be_its_own() -> None:
    """ONNX Runtime fills biases of blocked convolutions up with zeros; one that is all zeros was perhaps not filled."""
    bias = numpy_helper.from_array(np.zeros(32, np.float32), "b")
    kernel = numpy_helper.from_array(np.arange(32 * 16, dtype=np.float32).reshape(32, 16, 1, 1), "w")
    convolution = helper.make_node("Conv", ["x", "w", "b"], ["y"], domain="com.microsoft.nchwc")
    file = parse_model(model(convolution, weights=[kernel, bias]).SerializeToString())
    known = sketches_of(file)("b")
    assert known is not None
    assert sketches_of(file, 8)("b") != known
    assert sketches_like(file, [known])("b") == known


def packed(array: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """A weight in four bits, as MatMulNBits reads it: two numbers in a byte, the first one low, and their scales."""
    columns, rows = array.shape
    blocks = array.T.reshape(rows, columns // block, block)
    scales = np.abs(blocks).max(axis=2) / 7
    numbers = (np.rint(blocks / scales[..., None]) + 8).astype(np.uint8)
    return numbers[..., ::2] | numbers[..., 1::2] << 4, scales.reshape(-1).astype(np.float32)


def test_a_weight_in_four_bits_is_known_by_the_numbers_that_it_stands_for() -> None:
    floats, others = (np.random.default_rng(seed).normal(size=(64, 48)).astype(np.float32) for seed in (0, 1))
    stored, scales = packed(floats, 16)
    made = model(
        node("MatMulNBits", "x packed scales", "y", N=48, K=64, bits=4, block_size=16, domain="com.microsoft"),
        weights=[numpy_helper.from_array(stored, "packed"), numpy_helper.from_array(scales, "scales")],
    )
    plain = model(
        node("MatMul", "x floats", "h"),
        node("Mul", "h others", "y"),
        weights=[numpy_helper.from_array(floats, "floats"), numpy_helper.from_array(others, "others")],
    )
    after, before = (sketches_of(parse_model(proto.SerializeToString())) for proto in (made, plain))
    coarse, original, another = after("packed"), before("floats"), before("others")
    assert coarse is not None
    assert original is not None
    assert another is not None
    assert coarse.quantized
    assert coarse.sides == original.sides
    assert coarse.likeness(original) > 0.97
    assert not coarse.likeness(another)


def test_a_packed_weight_whose_scales_are_missing_has_no_sketch() -> None:
    stored, _ = packed(np.ones((16, 16), np.float32), 16)
    made = model(
        node("MatMulNBits", "x packed s", "y", N=16, K=16, bits=4, block_size=16, domain="com.microsoft"),
        inputs="x s",
        weights=[numpy_helper.from_array(stored, "packed")],
    )
    assert sketches_of(parse_model(made.SerializeToString()))("packed") is None
