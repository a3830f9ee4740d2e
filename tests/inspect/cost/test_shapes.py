"""Shapes that are computed in the graph, from open axes to open axes."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.cost_files import cost_of, file_of, header, numbers, value

from modelexport.record.polynomial import Polynomial

BATCH, SEQUENCE = Polynomial.axis("batch"), Polynomial.axis("sequence")


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), output.split(), **attributes)


def test_a_shape_is_taken_apart_and_put_together() -> None:
    """As TorchScript does for `x.view(batch, sequence, heads, -1)`."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "b"),
        node("Slice", "s one two", "l"),
        node("Concat", "b l heads rest", "wanted", axis=0),
        node("Reshape", "x wanted", "r"),
        node("Transpose", "r", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "r", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "q k", "y"),
    ]
    weights = [numbers("zero", 0), numbers("one", 1), numbers("two", 2), numbers("heads", 4), numbers("rest", -1)]
    found = cost_of(file_of(nodes, [value("x", ("batch", "sequence", 32))], weights))
    assert found.total.flops == 2 * BATCH * 4 * SEQUENCE**2 * 8
    assert not found.unknown


def test_an_axis_may_be_empty() -> None:
    """As the cache of keys is at the first token."""
    nodes = [
        node("Concat", "past new", "keys", axis=1),
        node("Transpose", "keys", "turned", perm=[0, 2, 1]),
        node("MatMul", "new turned", "y"),
    ]
    model = file_of(nodes, [value("past", ("batch", "past", 8)), value("new", ("batch", 1, 8))])
    assert cost_of(model).total.flops == 2 * BATCH * (Polynomial.axis("past") + 1) * 8
    assert cost_of(model, {"past": 0, "batch": 3}).total.flops == 2 * 3 * 8
    assert cost_of(model, {"past": 5, "batch": 0}).total.flops == 0


def test_a_size_of_minus_one_is_replaced_by_the_one_that_is_there() -> None:
    """As TorchScript does for `x.expand(-1, sequence)`."""
    nodes = [
        node("Shape", "x", "s"),
        node("ConstantOfShape", "two", "ones", value=numbers("v", 1)),
        node("Mul", "ones minus", "all_minus"),
        node("Equal", "s all_minus", "open"),
        node("Where", "open ones s", "wanted"),
        node("Expand", "row wanted", "y"),
    ]
    weights = [numbers("two", 2), numbers("minus", -1)]
    found = cost_of(file_of(nodes, [value("x", ("batch", "sequence")), value("row", (1, 1))], weights))
    assert found.by_key["y"].activation_bytes == 4 * BATCH * SEQUENCE


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [(0, 5, 5), (1, 2**62, SEQUENCE - 1), (0, -1, SEQUENCE - 1), (-3, 2**62, 3), (-(2**62), 2**62, SEQUENCE)],
)
def test_slices_of_open_axes(start: int, end: int, left: Polynomial | int) -> None:
    nodes = [node("Slice", "x start end axis", "y")]
    weights = [numbers("start", start), numbers("end", end), numbers("axis", 1)]
    found = cost_of(file_of(nodes, [value("x", (1, "sequence"), TensorProto.INT8)], weights))
    assert found.nodes[0].activation_bytes == left


def test_a_shape_that_the_file_states_is_believed_where_nothing_else_is_known() -> None:
    nodes = [helper.make_node("Riddle", ["x"], ["r"], domain="org.nowhere"), node("MatMul", "r w", "y")]
    model = file_of(nodes, [value("x", ("batch", 8))], [header("w", (8, 3))])
    assert cost_of(model).by_key["y"].flops is None
    model.graph.value_info.append(value("r", ("batch", "2*batch + 1", 8)))
    assert cost_of(model).by_key["y"].flops == 48 * BATCH * (2 * BATCH + 1)


def test_a_name_that_no_input_has_is_no_axis() -> None:
    """Other tools write names that they made up: `unk__3`."""
    model = file_of([node("NonZero", "x", "n"), node("Transpose", "n", "y")], [value("x", ("batch", 8))])
    model.graph.value_info.append(value("n", (2, "unk__3"), TensorProto.INT64))
    found = cost_of(model)
    assert [axis.name for axis in found.axes if not axis.given] == ["n[1]"]
    assert found.by_key["y"].activation_bytes == 16 * Polynomial.axis("n[1]")


def test_an_axis_without_a_name_is_called_by_its_input() -> None:
    model = file_of([node("MatMul", "x w", "y")], [value("x", (None, 8))], [header("w", (8, 3))])
    found = cost_of(model)
    assert [axis.name for axis in found.axes] == ["x[0]"]
    assert cost_of(model, {"x[0]": 2}).total.flops == 96


def test_an_input_may_be_as_long_as_others_together() -> None:
    inputs = [value("x", ("past + new", 8)), value("p", ("past",)), value("n", ("new",))]
    found = cost_of(file_of([node("MatMul", "x w", "y")], inputs, [header("w", (8, 3))]))
    assert [axis.name for axis in found.axes] == ["past", "new"]
    assert found.total.flops == 48 * (Polynomial.axis("past") + Polynomial.axis("new"))


def test_a_hyphen_in_the_name_of_an_axis_is_no_minus() -> None:
    found = cost_of(file_of([node("Relu", "x", "y")], [value("x", ("batch-size",))]), {"batch-size": 5})
    assert found.total.other == 5


def test_a_formula_that_grows_without_end_gets_a_name() -> None:
    """A file may square a size again and again."""
    nodes = [node("Shape", "x", "s0"), node("Add", "s0 three", "a0")]
    nodes += [node("Mul", f"a{place} a{place}", f"a{place + 1}") for place in range(40)]
    nodes += [node("ConstantOfShape", "a40", "y")]
    found = cost_of(file_of(nodes, [value("x", ("batch",))], [numbers("three", 3)]))
    assert found.by_key["y"].activation_bytes == 4 * Polynomial.axis("y[0]")


def test_what_follows_from_weights_alone_is_no_activation() -> None:
    nodes = [node("DequantizeLinear", "w s", "d"), node("MatMul", "x d", "y")]
    weights = [header("w", (8, 3), TensorProto.INT8), header("s", ())]
    found = cost_of(file_of(nodes, [value("x", (2, 8))], weights))
    assert found.by_key["d"].activation_bytes == 0
    assert found.total.activation_bytes == 24
    assert found.total.weight_bytes == 24 + 4
    assert found.total.parameters == 24


def test_scales_and_zero_points_are_no_parameters() -> None:
    nodes = [node("DequantizeLinear", "w s z", "d", axis=1), node("MatMul", "x d", "m"), node("Add", "m b", "y")]
    bias = [node("DequantizeLinear", "q s", "b", axis=0)]
    weights = [
        *(header("w", (8, 3), TensorProto.INT8), header("s", (3,)), header("z", (3,), TensorProto.INT8)),
        header("q", (3,), TensorProto.INT32),
    ]
    found = cost_of(file_of([*bias, *nodes], [value("x", (2, 8))], weights))
    assert found.total.parameters == 24 + 3
    assert found.total.weight_bytes == 24 + 12 + 3 + 12


def test_four_bits_take_half_a_byte() -> None:
    weights = [header("w", (3, 3), TensorProto.INT4), header("s", ())]
    found = cost_of(file_of([node("DequantizeLinear", "w s", "y")], [], weights))
    assert found.total.weight_bytes == 5 + 4
    assert found.total.parameters == 9


def test_an_attribute_that_refers_to_a_call_where_there_is_none() -> None:
    """The operator's default holds, as for one that is not stated."""
    transposed = node("Transpose", "x", "y")
    transposed.attribute.add(name="perm", ref_attr_name="order", type=onnx.AttributeProto.INTS)
    nodes = [transposed, node("MatMul", "y w", "z")]
    found = cost_of(file_of(nodes, [value("x", (8, "batch"))], [helper.make_tensor("w", 1, [8, 2], [0.0] * 16)]))
    assert found.total.flops == 2 * BATCH * 8 * 2
