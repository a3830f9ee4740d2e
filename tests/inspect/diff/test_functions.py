"""Functions are compared as what they do where they are called."""

from __future__ import annotations

import onnx
from onnx import helper
from tests.support.scrambling import scrambled
from tests.support.stacks import Save, model_of

import modelexport as mx

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]


def nested(alphas: tuple[float, float], *, flat: bool = False) -> onnx.ModelProto:
    """Two calls of a function that calls another one, which does what the first is told to."""
    if flat:
        nodes, value = [], "x"
        for number, alpha in enumerate(alphas):
            end = "y" if number else "middle"
            nodes.append(helper.make_node("Elu", [value], [f"elu{number}"], alpha=alpha))
            nodes.append(helper.make_node("Neg", [f"elu{number}"], [f"neg{number}"]))
            nodes.append(helper.make_node("Abs", [f"neg{number}"], [end]))
            value = end
        return model_of(nodes, [])
    calls = [
        helper.make_node("Outer", ["x"], ["middle"], domain="mine", slope=alphas[0]),
        helper.make_node("Outer", ["middle"], ["y"], domain="mine", slope=alphas[1]),
    ]
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], [])
    del model.graph.node[:]
    model.graph.node.extend(calls)
    model.opset_import.add(domain="mine", version=1)
    elu = helper.make_node("Elu", ["a"], ["b"])
    elu.attribute.add(name="alpha", ref_attr_name="strength", type=onnx.AttributeProto.FLOAT)
    inner = [elu, helper.make_node("Neg", ["b"], ["c"])]
    called = helper.make_node("Inner", ["a"], ["b"], domain="mine")
    called.attribute.add(name="strength", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    outer = [called, helper.make_node("Abs", ["b"], ["c"])]
    model.functions.append(helper.make_function("mine", "Inner", ["a"], ["c"], inner, OPSETS, ["strength"]))
    model.functions.append(helper.make_function("mine", "Outer", ["a"], ["c"], outer, OPSETS, ["slope"]))
    onnx.checker.check_model(model)
    return model


def test_a_function_that_is_called_in_a_function_that_is_called_twice(save: Save) -> None:
    model = save(nested((1.5, 2.5)))
    assert mx.diff(model, save(scrambled(nested((1.5, 2.5))))).identical
    assert mx.diff(model, save(nested((1.5, 2.5), flat=True))).identical


def test_what_a_call_is_told_is_told_to_the_nodes_inside(save: Save) -> None:
    [(_, change)] = mx.diff(save(nested((1.5, 2.5))), save(nested((1.5, 3.5)))).node_changes()
    assert [(one.what, one.left, one.right) for one in change.fields] == [("attribute alpha", "2.5", "3.5")]
    assert change.left[0].key.startswith("y|")
