"""Small models made by hand: layers one upon the other, each with weights of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

WIDTH = 8
Save = Callable[[onnx.ModelProto], Path]


def layer(number: int, value: str) -> tuple[list[onnx.NodeProto], str]:
    """A product, a bias, an activation and a residual."""
    name = f"l{number}"
    nodes = [
        helper.make_node("MatMul", [value, f"{name}.w"], [f"{name}.mm"]),
        helper.make_node("Add", [f"{name}.mm", f"{name}.b"], [f"{name}.add"]),
        helper.make_node("Relu", [f"{name}.add"], [f"{name}.relu"]),
        helper.make_node("Add", [f"{name}.relu", value], [f"{name}.out"]),
    ]
    return nodes, f"{name}.out"


def stack(layers: Sequence[int] = range(6), *, equal: bool = False) -> onnx.ModelProto:
    """equal  all layers hold the same weights"""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "x"
    for number in layers:
        more, value = layer(number, value)
        nodes += more
        chance = np.random.default_rng(0 if equal else number)
        for name, shape in (("w", (WIDTH, WIDTH)), ("b", (WIDTH,))):
            weights.append(numpy_helper.from_array(chance.standard_normal(shape, np.float32), f"l{number}.{name}"))
    nodes.append(helper.make_node("Softmax", [value], ["y"], axis=-1))
    return model_of(nodes, weights)


def model_of(nodes: Sequence[onnx.NodeProto], weights: Sequence[onnx.TensorProto]) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "stack", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def node_of(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if output in node.output)


def weight_of(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def set_weight(model: onnx.ModelProto, name: str, array: np.ndarray) -> None:
    weight_of(model, name).CopyFrom(numpy_helper.from_array(array, name))


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes models under names of their own."""
    written: list[Path] = []

    def write(model: onnx.ModelProto) -> Path:
        written.append(tmp_path / f"model{len(written)}.onnx")
        onnx.save(model, written[-1])
        return written[-1]

    return write
