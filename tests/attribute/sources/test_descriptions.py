"""Descriptions of modules whose class nobody wrote: what their nodes do, and nothing where that says too little."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto
from tests.support.building import model, node

from modelexport.attribute.sources.find import find_hierarchy
from modelexport.graph.index import index_model


def describe(*nodes: onnx.NodeProto) -> dict[str, str]:
    """By path, for nodes in a row; `w…` are weights: matrices, `k…` kernels of two axes."""
    used = sorted({name for proto in nodes for name in proto.input})
    kernels = [
        TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4, 4, 3, 3]) for name in used if name[0] == "k"
    ]
    proto = model(*nodes, weights=[*kernels, *(name for name in used if name[0] == "w")], outputs=nodes[-1].output[0])
    return {path: item.class_name for path, item in find_hierarchy(index_model(proto)).hierarchy.modules.items()}


def row(scope: str, *operators: str) -> list[onnx.NodeProto]:
    values = ["x", *(f"v{number}" for number in range(len(operators)))]
    names = [f"{scope}/{operator}" for operator in operators]
    return [node(*each) for each in zip(operators, values, values[1:], names, strict=False)]


@pytest.mark.parametrize(
    ("operators", "description"),
    [
        (["Relu"], "Relu-like"),
        (["Relu", "Tanh"], "Relu + Tanh"),
        (["Relu", "Tanh", "Relu", "Sigmoid"], "Relu + Tanh + Sigmoid"),
        (["Relu", "Tanh", "Sigmoid", "Erf"], ""),
        (["GlobalAveragePool"], "AvgPool-like"),
        (["Transpose"], ""),
    ],
)
def test_up_to_three_kinds_of_work_describe_a_module(operators: list[str], description: str) -> None:
    assert describe(*row("/act", *operators), node("Neg", "x", "z", "/Neg"))["act"] == description


def test_words_are_those_of_pytorch() -> None:
    nodes = [
        node("Conv", "x k", "a", "/block/Conv"),
        node("BatchNormalization", "a w1 w2 w3 w4", "b", "/block/BatchNormalization"),
    ]
    assert describe(*nodes)["block"] == "Conv2d + BatchNorm"


def test_a_root_is_not_described() -> None:
    """What the whole model does is no kind of module, even if it is a single node."""
    assert describe(node("Relu", "x", "y")) == {"": ""}
    assert describe(node("Relu", "x", "y", "/Relu")) == {"": ""}


def test_a_module_with_modules_inside_is_not_described() -> None:
    """What it does is what they do, and its own nodes only join that."""
    nodes = [node("MatMul", "x w", "a", "/enc/fc/MatMul"), node("Relu", "a", "y", "/enc/Relu")]
    assert describe(*nodes) == {"": "", "enc": "", "enc.fc": "Linear-like"}


def test_adding_describes_a_module_only_by_itself() -> None:
    assert (
        describe(node("MatMul", "x w1", "a", "/fc/MatMul"), node("Add", "a w2", "y", "/fc/Add"))["fc"] == "Linear-like"
    )
    assert describe(node("Add", "x w", "y", "/shift/Add"))["shift"] == "Add-like"
