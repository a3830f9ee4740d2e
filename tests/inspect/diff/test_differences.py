"""What is the same and what is not, in models made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.support.scrambling import scrambled
from tests.support.stacks import WIDTH, Save, node_of, set_weight, stack, weight_of

import modelexport as mx
from modelexport.record.results.diff import Change, NodeChange, WeightForm


def only_change(found: mx.Diff) -> NodeChange:
    changes = [change for _, change in found.node_changes()]
    assert len(changes) == 1
    assert not list(found.weight_changes())
    assert not found.model
    return changes[0]


def operators(change: NodeChange) -> tuple[list[str], list[str]]:
    return [node.op_type for node in change.left], [node.op_type for node in change.right]


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_other_names_and_another_order_are_no_difference(save: Save, seed: int, equal: bool) -> None:
    model = stack(equal=equal)
    found = mx.diff(save(model), save(scrambled(model, seed)))
    assert found.identical
    assert len(found.pairs) == len(model.graph.node)


def test_inputs_and_outputs_may_be_renamed(save: Save) -> None:
    model, other = stack(), stack()
    for node in other.graph.node:
        node.input[:] = ["given" if name == "x" else name for name in node.input]
        node.output[:] = ["made" if name == "y" else name for name in node.output]
    other.graph.input[0].name, other.graph.output[0].name = "given", "made"
    found = mx.diff(save(model), save(other))
    assert found.identical
    assert {(one.what, one.left, one.right) for one in found.renamed} == {
        ("input", "x", "given"),
        ("output", "y", "made"),
    }


def test_operands_of_a_sum_may_change_places(save: Save) -> None:
    other = stack()
    node = node_of(other, "l2.out")
    node.input[:] = reversed(node.input)
    assert mx.diff(save(stack()), save(other)).identical


def test_a_weight_in_one_of_equal_layers(save: Save) -> None:
    model, other = stack(equal=True), stack(equal=True)
    array = numpy_helper.to_array(weight_of(other, "l3.w")).copy()
    array[2, 5] += 0.25
    set_weight(other, "l3.w", array)
    found = mx.diff(save(model), save(scrambled(other)))
    [(_, change)] = found.weight_changes()
    assert not list(found.node_changes())
    assert change.left is not None
    assert change.left.name == "l3.w"
    assert change.form is WeightForm.VALUES
    assert change.changed == 1
    assert change.largest == pytest.approx(0.25)


def test_a_replaced_region_is_one_change(save: Save) -> None:
    other = stack()
    product = node_of(other, "l2.mm")
    product.op_type = "Gemm"
    product.input.append("l2.b")
    product.output[0] = "l2.add"
    other.graph.node.remove(next(node for node in other.graph.node if "l2.mm" in node.input))
    change = only_change(mx.diff(save(stack()), save(scrambled(other))))
    assert change.change is Change.REPLACED
    assert operators(change) == (["MatMul", "Add"], ["Gemm"])


def test_an_attribute(save: Save) -> None:
    other = stack()
    node_of(other, "y").attribute[0].i = 0
    change = only_change(mx.diff(save(stack()), save(scrambled(other))))
    assert change.change is Change.CHANGED
    assert [(one.what, one.left, one.right) for one in change.fields] == [("attribute axis", "-1", "0")]


def test_an_attribute_that_says_what_goes_without_saying(save: Save) -> None:
    other = stack()
    del node_of(other, "y").attribute[:]
    assert mx.diff(save(stack()), save(other)).identical


def test_other_operands(save: Save) -> None:
    other = stack()
    node_of(other, "l4.out").input[1] = "l1.out"
    change = only_change(mx.diff(save(stack()), save(other)))
    assert [(one.what, one.left, one.right) for one in change.fields] == [("input 1", "l3.out (Add)", "l1.out (Add)")]


@pytest.mark.parametrize("gone", [0, 3, 5])
@pytest.mark.parametrize("notes", [True, False])
def test_a_missing_layer_moves_no_other(save: Save, gone: int, notes: bool) -> None:
    rest = stack([number for number in range(6) if number != gone])
    found = mx.diff(save(stack()), save(scrambled(rest, notes=notes)))
    change = only_change(found)
    assert change.change is Change.REMOVED
    assert {node.key for node in change.left} == {f"l{gone}.{name}" for name in ("mm", "add", "relu", "out")}


def test_several_changes_at_once(save: Save) -> None:
    other = stack([0, 1, 3, 4, 5])
    set_weight(other, "l4.b", numpy_helper.to_array(weight_of(other, "l4.b")) * 2)
    node_of(other, "l0.relu").op_type = "Tanh"
    found = mx.diff(save(stack()), save(scrambled(other)))
    removed, replaced = sorted((change for _, change in found.node_changes()), key=lambda one: one.change)
    assert operators(replaced) == (["Relu"], ["Tanh"])
    assert {"l2.mm", "l2.add", "l2.relu"} < {node.key for node in removed.left}
    assert len(removed.left) == 4
    assert not removed.right
    assert [change.name for _, change in found.weight_changes()] == ["l4.b"]


def test_weights_are_cast_turned_and_quantized(save: Save) -> None:
    model, other = stack([0]), stack([0])
    weight = numpy_helper.to_array(weight_of(model, "l0.w"))
    set_weight(other, "l0.w", np.ascontiguousarray(weight.T))
    [(_, turned)] = mx.diff(save(model), save(other)).weight_changes()
    assert turned.form is WeightForm.TRANSPOSED
    assert turned.largest == 0

    scale = np.array(np.abs(weight).max() / 127, np.float32)
    set_weight(other, "l0.w", np.rint(weight / scale).astype(np.int8))
    other.graph.initializer.append(numpy_helper.from_array(scale, "scale"))
    other.graph.node.insert(0, helper.make_node("DequantizeLinear", ["l0.w", "scale"], ["dequantized"]))
    node_of(other, "l0.mm").input[1] = "dequantized"
    found = mx.diff(save(model), save(other))
    [(_, small)] = found.weight_changes()
    assert small.form is WeightForm.QUANTIZED
    assert small.relative is not None
    assert 0 < small.relative < 0.02


def test_weights_that_are_not_read_are_not_compared(save: Save) -> None:
    model, other = stack(), stack()
    big = np.zeros((WIDE, WIDE), np.float32)
    for one, number in ((model, 1.0), (other, 2.0)):
        one.graph.initializer.append(numpy_helper.from_array(big + np.float32(number), "big"))
        one.graph.node.append(helper.make_node("Identity", ["big"], ["z"]))
        one.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [WIDE, WIDE]))
    paths = save(model), save(other)
    assert not mx.diff(*paths).identical
    found = mx.diff(*paths, weights=False)
    assert found.identical
    assert not found.weights_read


WIDE = 64


def test_types_and_shapes_are_told_where_they_begin(save: Save) -> None:
    model, other = stack(), stack()
    for one, width in ((model, 8), (other, 9)):
        for name in ("l1.mm", "l1.add", "l1.relu"):
            one.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width]))
    change = only_change(mx.diff(save(model), save(other)))
    assert [node.key for node in change.left] == ["l1.mm"]
    assert [(one.what, one.left, one.right) for one in change.fields] == [("output 0", "float[n, 8]", "float[n, 9]")]


def test_names_of_open_axes_are_names(save: Save) -> None:
    other = stack()
    for value in (*other.graph.input, *other.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    assert mx.diff(save(stack()), save(other)).identical


def test_what_the_model_is_given_and_says(save: Save) -> None:
    other = stack()
    other.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    other.opset_import[0].version = 21
    other.metadata_props.add(key="author", value="me")
    other.metadata_props.add(key="pkg.tool.note", value="mine")
    found = mx.diff(save(stack()), save(other))
    assert [(one.what, one.left, one.right) for one in found.model] == [
        ("input x", "float[n, 8]", "float[4, 8]"),
        ("opset ai.onnx", "20", "21"),
        ("metadata author", "", "me"),
    ]


def test_functions_are_what_they_do(save: Save) -> None:
    other = stack()
    body = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Add", ["b", "c"], ["d"])]
    opsets = [helper.make_opsetid("", 20)]
    other.functions.append(helper.make_function("mine", "End", ["a", "c"], ["d"], body, opsets))
    other.opset_import.add(domain="mine", version=1)
    kept = [node for node in other.graph.node if node.output[0] not in ("l3.relu", "l3.out")]
    call = helper.make_node("End", ["l3.add", "l2.out"], ["l3.out"], domain="mine")
    place = [node.output[0] for node in kept].index("l3.add") + 1
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del other.graph.node[:]
    other.graph.node.extend([*nodes[:place], call, *nodes[place:]])
    assert mx.diff(save(stack()), save(other)).identical


def test_bodies_are_compared(save: Save) -> None:
    def choosing(operator: str) -> onnx.ModelProto:
        result = helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, None)
        branches = {
            name: helper.make_graph([helper.make_node(op, ["l5.out"], ["r"])], name, [], [result])
            for name, op in (("then_branch", operator), ("else_branch", "Neg"))
        }
        chosen = helper.make_node("If", ["yes"], ["chosen"])
        chosen.attribute.extend(helper.make_attribute(name, branch) for name, branch in branches.items())
        model = stack()
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        node_of(model, "y").input[0] = "chosen"
        model.graph.node.insert(len(model.graph.node) - 1, chosen)
        return model

    model = choosing("Relu")
    assert mx.diff(save(model), save(scrambled(model))).identical
    change = only_change(mx.diff(save(model), save(scrambled(choosing("Tanh")))))
    assert operators(change) == (["Relu"], ["Tanh"])


def test_models_that_have_nothing_in_common_are_refused(save: Save) -> None:
    other = stack([7])
    for node in other.graph.node:
        node.op_type = {"Relu": "Tanh", "Add": "Mul", "Softmax": "LogSoftmax"}.get(node.op_type, node.op_type)
    node_of(other, "l7.mm").op_type = "Mul"
    with pytest.raises(mx.UserError, match=r"little in common: \d+ % of their nodes and 0 % of their weights"):
        mx.diff(save(stack()), save(other))


def test_two_inputs_that_changed_places(save: Save) -> None:
    """What makes them is the same as before, also where only shapes are reckoned with."""

    def sliced(order: int) -> onnx.ModelProto:
        model = stack()
        nodes = [helper.make_node("Shape", ["l5.out"], ["shape"])]
        for number in (0, 1):
            index = numpy_helper.from_array(np.array(number), f"index{number}")
            axis = numpy_helper.from_array(np.array([0]), f"axis{number}")
            model.graph.initializer.extend([index, axis])
            nodes.append(helper.make_node("Gather", ["shape", f"index{number}"], [f"side{number}"]))
            nodes.append(helper.make_node("Unsqueeze", [f"side{number}", f"axis{number}"], [f"sides{number}"]))
        nodes.append(helper.make_node("Concat", ["sides0", "sides1"][::order], ["sides"], axis=0))
        nodes.append(helper.make_node("Reshape", ["l5.out", "sides"], ["shaped"]))
        node_of(model, "y").input[0] = "shaped"
        for node in nodes:
            model.graph.node.insert(len(model.graph.node) - 1, node)
        return model

    change = only_change(mx.diff(save(sliced(1)), save(scrambled(sliced(-1)))))
    assert operators(change) == (["Concat"], ["Concat"])
    assert [(one.what, one.left, one.right) for one in change.fields] == [
        ("input 0", "sides0 (Unsqueeze)", "sides1 (Unsqueeze)"),
        ("input 1", "sides1 (Unsqueeze)", "sides0 (Unsqueeze)"),
    ]


def test_equal_arithmetic_stays_in_its_layer(save: Save) -> None:
    """What is computed from constants alone, in the same way in every layer, goes with what reads it."""

    def model(layers: Sequence[int]) -> onnx.ModelProto:
        made = stack(layers)
        made.graph.initializer.append(numpy_helper.from_array(np.array([WIDTH]), "size"))
        for number in layers:
            names = [f"l{number}.step{step}" for step in range(LONG)]
            chain = [helper.make_node("ConstantOfShape", ["size"], names[:1])]
            chain += [helper.make_node("Neg", [a], [b]) for a, b in pairwise(names)]
            relu = node_of(made, f"l{number}.relu")
            place = list(made.graph.node).index(relu)
            relu.CopyFrom(helper.make_node("PRelu", [f"l{number}.add", names[-1]], list(relu.output)))
            for node in reversed(chain):
                made.graph.node.insert(place, node)
        return made

    change = only_change(mx.diff(save(model(range(8))), save(model([0, 1, 2, 3, 4, 6, 7]))))
    assert change.change is Change.REMOVED
    assert {node.key.partition(".")[0] for node in change.left} == {"l5"}
    assert len(change.left) == LONG + 4


LONG = 9
