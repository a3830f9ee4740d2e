"""What a model and the bodies inside of it are given and return."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.stacks import WIDTH, Save, node_of, stack

import modelexport as mx


def renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    return model


def returning(*names: str) -> onnx.ModelProto:
    model = stack()
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in names)
    return model


def told(found: mx.Diff) -> list[tuple[str, str, str]]:
    return [(one.what, one.left, one.right) for one in found.model]


def test_outputs_that_return_what_the_other_did(save: Save) -> None:
    crossed = returning("l1.out", "l3.out")
    for node in crossed.graph.node:
        turned = {"l1.out": "l3.out", "l3.out": "l1.out"}
        node.input[:] = [turned.get(name, name) for name in node.input]
        node.output[:] = [turned.get(name, name) for name in node.output]
    found = mx.diff(save(returning("l1.out", "l3.out")), save(crossed))
    assert not found.modules
    assert told(found) == [
        ("output l1.out is made by", "l1.out (Add)", "l3.out (Add)"),
        ("output l3.out is made by", "l3.out (Add)", "l1.out (Add)"),
    ]


def test_another_value_in_the_place_of_an_output_is_not_renamed(save: Save) -> None:
    found = mx.diff(save(returning("l1.out")), save(returning("l2.out")))
    assert told(found) == [("output l1.out is made by", "l1.out (Add)", "l2.out (Add)")]
    assert not found.renamed


def test_a_constant_that_is_returned(save: Save) -> None:
    models = []
    for number in (1.0, 2.0):
        model = returning("constant")
        model.graph.initializer.append(numpy_helper.from_array(np.full((4, WIDTH), number, np.float32), "constant"))
        models.append(save(model))
    assert mx.diff(models[0], models[0]).identical
    [(_, change)] = mx.diff(*models).weight_changes()
    assert change.largest == 1


@pytest.mark.parametrize("turned", [False, True])
def test_several_inputs_and_outputs_may_be_renamed(save: Save, turned: bool) -> None:
    """In another order, they are known by what is made of them and how they are made."""

    def model() -> onnx.ModelProto:
        made = returning("l2.out")
        node_of(made, "l4.out").input[1] = "other"
        made.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["n", WIDTH]))
        return made

    other = renamed(model(), {"x": "a", "other": "b", "y": "c", "l2.out": "d"})
    if turned:
        ends = list(other.graph.input)[::-1]
        del other.graph.input[:]
        other.graph.input.extend(ends)
    found = mx.diff(save(model()), save(other))
    assert found.identical
    assert {(one.left, one.right) for one in found.renamed} == {
        ("x", "a"),
        ("other", "b"),
        ("y", "c"),
        ("l2.out", "d"),
    }


def choosing(returned: str) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["l5.out"], ["first"]), helper.make_node("Neg", ["first"], ["second"])]
    value = helper.make_tensor_value_info(returned, TensorProto.FLOAT, None)
    other = helper.make_tensor_value_info("other", TensorProto.FLOAT, None)
    chosen = helper.make_node(
        "If",
        ["yes"],
        ["chosen"],
        then_branch=helper.make_graph(nodes, "then", [], [value]),
        else_branch=helper.make_graph([helper.make_node("Abs", ["l5.out"], ["other"])], "else", [], [other]),
    )
    model = stack()
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    node_of(model, "y").input[0] = "chosen"
    model.graph.node.insert(len(model.graph.node) - 1, chosen)
    return model


def test_a_body_that_returns_another_value(save: Save) -> None:
    [(_, change)] = mx.diff(save(choosing("second")), save(choosing("first"))).node_changes()
    assert [node.op_type for node in change.left] == ["If"]
    assert [(one.what, one.left, one.right) for one in change.fields] == [
        ("then_branch output 0", "chosen|then_branch|second (Neg)", "chosen|then_branch|first (Relu)")
    ]


def test_weights_of_a_body_that_are_in_another_file(save: Save) -> None:
    """Nothing says that they are equal but what they hold."""
    paths = []
    for number in (1.0, 1.0, 2.0):
        model = choosing("second")
        body = next(item.g for item in node_of(model, "chosen").attribute if item.name == "then_branch")
        body.node[0].CopyFrom(helper.make_node("MatMul", ["l5.out", "inner"], ["first"]))
        body.initializer.append(numpy_helper.from_array(np.full((WIDTH, WIDTH), number, np.float32), "inner"))
        path = save(model)
        onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.data", size_threshold=0)
        paths.append(path)
    assert mx.diff(paths[0], paths[1]).identical
    [(_, change)] = mx.diff(paths[0], paths[2]).weight_changes()
    assert change.name == "chosen|then_branch|inner"
    assert change.largest == 1
