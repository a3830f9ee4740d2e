"""Which nodes draw random numbers when a file runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import body, model, node
from tests.support.exports import Exports

from modelexport.graph.file.reading import open_model
from modelexport.graph.operators import RandomNode, random_nodes


def stored(name: str, value: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value), name)


def dropout(inputs: str = "x ratio training", outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return node("Dropout", inputs, outputs, "drop", **attributes)


DRAWING = {
    "Bernoulli": node("Bernoulli", "x", "y", "it"),
    "Multinomial": node("Multinomial", "x", "y", "it"),
    "RandomNormal": node("RandomNormal", "", "y", "it", shape=[2]),
    "RandomNormalLike": node("RandomNormalLike", "x", "y", "it"),
    "RandomUniform": node("RandomUniform", "", "y", "it", shape=[2]),
    "RandomUniformLike": node("RandomUniformLike", "x", "y", "it"),
}


@pytest.mark.parametrize("op_type", DRAWING)
def test_operators_that_draw(op_type: str) -> None:
    proto = model(node("Sin", "x", "h"), DRAWING[op_type])
    assert random_nodes(proto) == (RandomNode("y", "it", op_type),)
    assert str(random_nodes(proto)[0]) == f"it ({op_type})"


def test_a_node_without_a_name_is_named_by_what_it_makes() -> None:
    assert [str(found) for found in random_nodes(model(node("Bernoulli", "x", "y")))] == ["y (Bernoulli)"]


def test_operators_of_others_are_not_known() -> None:
    proto = model(helper.make_node("Bernoulli", ["x"], ["y"], domain="elsewhere"))
    assert random_nodes(proto) == ()


@pytest.mark.parametrize(
    ("training", "ratio", "draws"), [(True, 0.5, True), (False, 0.5, False), (True, 0.0, False), (True, None, True)]
)
@pytest.mark.parametrize("place", ["initializers", "nodes"])
def test_a_dropout_draws_if_it_is_at_work(training: bool, ratio: float | None, draws: bool, place: str) -> None:
    tensors = [stored("training", training), *([] if ratio is None else [stored("ratio", np.float32(ratio))])]
    drop = dropout("x _ training" if ratio is None else "x ratio training")
    if place == "initializers":
        proto = model(drop, weights=tensors)
    else:
        proto = model(*(node("Constant", "", tensor.name, value=tensor) for tensor in tensors), drop)
    assert bool(random_nodes(proto)) is draws


def test_a_dropout_without_a_mode_does_nothing() -> None:
    ratio = stored("ratio", np.float32(0.5))
    assert random_nodes(model(dropout("x"))) == ()
    assert random_nodes(model(dropout("x ratio"), weights=[ratio])) == ()


def test_a_mode_that_is_given_when_the_file_runs_is_not_known() -> None:
    assert random_nodes(model(dropout("x _ training"), inputs="x training")) == ()
    computed = node("Not", "no", "training")
    assert random_nodes(model(computed, dropout("x _ training"), weights=[stored("no", False)])) == ()


@pytest.mark.parametrize(
    ("opset", "attributes", "draws"),
    [(6, {}, True), (6, {"is_test": 0}, True), (6, {"is_test": 1}, False), (7, {}, False), (10, {"ratio": 0.5}, False)],
)
def test_dropouts_of_old_files(opset: int, attributes: dict[str, Any], draws: bool) -> None:
    proto = model(dropout("x", **attributes))
    proto.opset_import[0].version = opset
    assert bool(random_nodes(proto)) is draws


def test_bodies_see_the_tensors_around_them() -> None:
    inner = body(dropout("x _ training", "d"), outputs="d")
    outer = body(
        node("If", "yes", "e", then_branch=inner, else_branch=inner),
        outputs="e",
        weights=[stored("training", False)],
    )
    drops = body(node("Identity", "x", "f"), dropout("f _ training", "g"), outputs="g")
    proto = model(
        node("If", "yes", "y", "branch", then_branch=drops, else_branch=outer),
        weights=[stored("yes", True), stored("training", True)],
    )
    assert random_nodes(proto) == (RandomNode("y|then_branch|g", "drop", "Dropout"),)


def test_functions_are_looked_into_once() -> None:
    on = node("Constant", "", "training", value=stored("", True))
    inside = [on, dropout("a _ training", "b")]
    function = helper.make_function("own", "Twist", ["a"], ["b"], inside, [helper.make_opsetid("", 20)])
    twists = [
        helper.make_node("Twist", ["x"], ["h"], domain="own"),
        helper.make_node("Twist", ["h"], ["y"], domain="own"),
    ]
    proto = model(*twists, functions=[function], weights=[stored("training", False)])
    assert random_nodes(proto) == (RandomNode("own::Twist|b", "drop", "Dropout"),)


def test_a_tensor_whose_data_is_elsewhere_says_nothing() -> None:
    apart = TensorProto(name="training", data_type=TensorProto.BOOL, dims=[])
    assert random_nodes(model(dropout("x _ training"), weights=[apart])) == ()


def test_an_export_for_inference_draws_nothing(exports: Exports) -> None:
    assert random_nodes(open_model(exports("bert", "dynamo").path).proto) == ()
