"""Law: the order of inputs of a commutative operator is no difference, for any such operator; of others it is."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.stacks import Save

import modelexport as mx

FLOATS = ("Add", "Mul", "Max", "Min", "Sum", "Mean")
LOGICAL = ("And", "Or", "Xor", "Equal")
BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
OF_ANY_NUMBER = ("Max", "Min", "Sum", "Mean")
TYPES = {
    **dict.fromkeys(FLOATS, TensorProto.FLOAT),
    **dict.fromkeys(LOGICAL, TensorProto.BOOL),
    **dict.fromkeys(BITWISE, TensorProto.INT32),
}


def graph(op_type: str, order: list[int], *, domain: str = "") -> onnx.ModelProto:
    """Inputs and a weight that are told apart by what is done before, and are read in this order."""
    dtype = TYPES.get(op_type, TensorProto.FLOAT)
    values = [helper.make_tensor_value_info(name, dtype, [4]) for name in ("a", "b", "c", "y")]
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    nodes = [
        helper.make_node("Identity", ["a"], ["first"]),
        helper.make_node("Reshape", ["b", "shape"], ["second"]),
        helper.make_node("Concat", ["c"], ["third"], axis=0),
        helper.make_node(op_type, [("first", "second", "third")[place] for place in order], ["mixed"], domain=domain),
        helper.make_node("Identity", ["mixed"], ["y"]),
    ]
    shape = numpy_helper.from_array(np.array([4], np.int64), "shape")
    large = numpy_helper.from_array(np.arange(64).astype(kind), "unused")
    made = helper.make_graph(nodes, "g", values[:3], values[3:], [shape, large])
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(made, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("op_type", [*FLOATS, *LOGICAL, *BITWISE])
def test_two_inputs_may_change_places(save: Save, op_type: str) -> None:
    assert mx.diff(save(graph(op_type, [0, 1])), save(graph(op_type, [1, 0]))).identical


@pytest.mark.parametrize("op_type", OF_ANY_NUMBER)
@pytest.mark.parametrize("order", [[1, 2, 0], [2, 1, 0], [0, 2, 1]])
def test_three_inputs_may_be_in_any_order(save: Save, op_type: str, order: list[int]) -> None:
    found = mx.diff(save(graph(op_type, [0, 1, 2])), save(graph(op_type, order)))
    assert found.identical
    assert len(found.pairs) == 5


@pytest.mark.parametrize("op_type", ["Sub", "Div", "Pow", "Less", "MatMul"])
def test_the_order_of_other_operators_is_a_difference(save: Save, op_type: str) -> None:
    found = mx.diff(save(graph(op_type, [0, 1])), save(graph(op_type, [1, 0])))
    [(_, change)] = found.node_changes()
    assert [field.what for field in change.fields] == ["input 0", "input 1"]


def test_an_operator_of_another_domain_may_only_be_called_so(save: Save) -> None:
    domain = "example.ops"
    found = mx.diff(save(graph("Add", [0, 1], domain=domain)), save(graph("Add", [1, 0], domain=domain)))
    assert not found.identical


@pytest.mark.parametrize("op_type", OF_ANY_NUMBER)
def test_another_input_of_a_reordered_node_is_one_difference(save: Save, op_type: str) -> None:
    """`Max(a, b, c)` against `Max(c, a, a)`: `b` is gone and nothing else."""
    found = mx.diff(save(graph(op_type, [0, 1, 2])), save(graph(op_type, [2, 0, 0])))
    [(_, change)] = found.node_changes()
    assert [(field.left, field.right) for field in change.fields] == [("second (Reshape)", "first (Identity)")]


def weighted(op_type: str, *, turned: frozenset[int]) -> onnx.ModelProto:
    """A chain of nodes that read a weight each, some of them as their first input."""
    chance = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for layer in range(6):
        weights.append(numpy_helper.from_array(chance.normal(size=(4, 8)).astype(np.float32), f"w{layer}"))
        operands = [value, f"w{layer}"]
        value = f"v{layer}"
        nodes.append(helper.make_node(op_type, operands[::-1] if layer in turned else operands, [value]))
        nodes.append(helper.make_node("Relu", [value], [f"{value}r"]))
        value += "r"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x", value)]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("op_type", FLOATS)
@pytest.mark.parametrize("seed", range(3))
def test_a_weight_may_be_read_as_any_operand(save: Save, op_type: str, seed: int) -> None:
    turned = frozenset(random.Random(seed).sample(range(6), 3))
    plain, other = weighted(op_type, turned=frozenset()), weighted(op_type, turned=turned)
    assert mx.diff(save(plain), save(other)).identical
    assert mx.diff(save(other), save(plain), weights=False).identical
