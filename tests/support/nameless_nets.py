"""Networks made by hand, operator by operator, whose names say nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper
from tests.support.building import model

from modelexport.attribute.sources.structure import read_structure
from modelexport.graph.index import index_model

WIDTH = 32


class Net:
    """A graph that grows. Values are called v0, v1, …, weights w0, w1, …

    parts  by key of a node: what it is meant to be
    """

    def __init__(self, inputs: str = "x") -> None:
        self.inputs = inputs
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, domain: str = "", count: int = 1, **attributes: Any) -> str:
        outputs = [f"v{len(self.nodes)}{'abcd'[index]}" for index in range(count)]
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, domain=domain, **attributes))
        return outputs[0]

    def weight(self, *shape: int, dtype: int = TensorProto.FLOAT) -> str:
        self.weights.append(TensorProto(name=f"w{len(self.weights)}", data_type=dtype, dims=shape))
        return self.weights[-1].name

    def linear(self, value: str, given: int = WIDTH, made: int = WIDTH) -> str:
        return self.add("MatMul", value, self.weight(given, made))

    def embed(self, ids: str = "x") -> str:
        return self.add("Gather", self.weight(100, WIDTH), ids)

    def norm(self, value: str) -> str:
        return self.add("LayerNormalization", value, self.weight(WIDTH), self.weight(WIDTH))

    def attend(self, query: str, content: str = "", mask: str = "") -> str:
        content = content or query
        made, key, value = self.linear(query), self.linear(content), self.linear(content)
        scores = self.add("MatMul", made, self.add("Transpose", key, perm=[0, 2, 1]))
        scores = self.add("Add", scores, mask) if mask else scores
        return self.linear(self.add("MatMul", self.add("Softmax", scores), value))

    def feed_forward(self, value: str) -> str:
        return self.linear(self.add("Relu", self.linear(value, made=48)), given=48)

    def pre_norm_layer(self, value: str, *, memory: str = "", mask: str = "") -> str:
        value = self.add("Add", value, self.attend(self.norm(value), mask=mask))
        if memory:
            value = self.add("Add", value, self.attend(self.norm(value), memory))
        return self.add("Add", value, self.feed_forward(self.norm(value)))

    def post_norm_layer(self, value: str) -> str:
        value = self.norm(self.add("Add", self.attend(value), value))
        return self.norm(self.add("Add", self.feed_forward(value), value))

    def convolve(self, value: str, given: int, made: int, kernel: int = 3, **attributes: Any) -> str:
        return self.add("Conv", value, self.weight(made, given, kernel, kernel), **attributes)

    def convolution_block(self, value: str, given: int, made: int) -> str:
        """Two convolutions around a shortcut, which has one of its own where the width changes."""
        branch = self.convolve(self.add("Relu", self.convolve(value, given, made)), made, made)
        short = value if given == made else self.convolve(value, given, made, 1)
        return self.add("Relu", self.add("Add", branch, short))

    def proto(self, *outputs: str) -> onnx.ModelProto:
        return model(*self.nodes, inputs=self.inputs, outputs=" ".join(outputs), weights=self.weights)

    def paths(self, *outputs: str) -> dict[str, str]:
        """By node key: the path that is read; empty if nothing repeats."""
        return read_paths(self.proto(*outputs))


def read_paths(proto: onnx.ModelProto) -> dict[str, str]:
    reading = read_structure(index_model(proto))
    return {} if reading is None else {key: path for key, (path,) in reading.nodes.items()}


def layers(paths: dict[str, str]) -> Sequence[str]:
    """The layers among paths, sorted: everything up to the number behind `layers`."""
    return sorted({".".join(parts[: parts.index("layers") + 2]) for parts in map(_split, paths.values()) if parts})


def _split(path: str) -> list[str]:
    parts = path.split(".")
    return parts if "layers" in parts else []


def _convolutions(net: Net) -> str:
    value = "x"
    for given, made in ((3, 8), (8, 8), (8, 16), (16, 16)):
        value = net.add("Relu", net.convolve(value, given, made))
        value = net.add("MaxPool", value, kernel_shape=[2, 2]) if given == made else value
    return value


def _perceptron(net: Net) -> str:
    value = "x"
    for _ in range(6):
        value = net.add("Relu", net.linear(value))
    return value


def _one_layer(net: Net) -> str:
    return net.linear(net.pre_norm_layer(net.embed()))


def _one_block(net: Net) -> str:
    return net.add("GlobalAveragePool", net.convolution_block(net.convolve("x", 3, 8), 8, 8))


def _siamese(net: Net) -> str:
    shared = [net.weight(8, 3, 3, 3), net.weight(8, 8, 3, 3)]
    opened = [net.add("Relu", net.add("Conv", given, shared[0])) for given in ("x", net.add("Neg", "x"))]
    return net.add("Sub", *(net.add("Conv", value, shared[1]) for value in opened))


def _two_unlike_blocks(net: Net) -> str:
    value = net.convolution_block(net.convolve("x", 3, 8), 8, 8)
    return net.add("Add", value, net.convolve(net.convolve(net.convolve(value, 8, 4, 1), 4, 4), 4, 8, 1))


WITHOUT_REPETITION: tuple[Callable[[Net], str], ...] = (
    *(_convolutions, _perceptron, _one_layer, _one_block, _siamese, _two_unlike_blocks),
)
