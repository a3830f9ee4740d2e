"""The names of a graph's outputs are those of what the model returns, in its order."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import modelexport as mx
from modelexport.api.value_comparison import pair_outputs

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Twice(nn.Module):
    """It returns one tensor under two names, as models do that return what their parts return."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.narrow = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        made = self.linear(x)
        return {"logits": made, "narrow": self.narrow(made), "state": made}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_what_is_returned_twice_has_both_names(exporter: str, tmp_path: Path) -> None:
    model = Twice().eval()
    result = mx.export(model, tmp_path / "m.onnx", inputs=X, exporter=exporter)
    assert [value.name for value in onnx.load(result.path).graph.output] == ["logits", "narrow", "state"]
    assert result.check is not None
    assert result.check.ok
    found = mx.verify(result.path, model, inputs=X)
    assert found.ok
    assert list(found.outputs) == ["logits", "narrow", "state"]


def test_outputs_are_paired_by_name_or_by_place() -> None:
    assert pair_outputs(["b", "a"], ["a", "b"]) == [("b", "b"), ("a", "a")]
    assert pair_outputs(["b", "b_2"], ["a", "b"]) == [("b", "a"), ("b_2", "b")]
    assert pair_outputs(["x", "a"], ["a", "y", "z"]) == [("x", "y"), ("a", "a")]


class Hands(nn.Module):
    """It returns what it was given, and a weight, under other names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"out": self.linear(x) + y, "given": x, "weight": self.linear.weight, "y": y}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_what_is_handed_through_keeps_its_own_name(exporter: str, tmp_path: Path) -> None:
    model = Hands().eval()
    inputs = {"x": X, "y": X + 1}
    result = mx.export(model, tmp_path / "m.onnx", inputs=inputs, exporter=exporter)
    graph = onnx.load(result.path).graph
    assert [value.name for value in graph.input] == ["x", "y"]
    assert [value.name for value in graph.output] == ["out", "given", "weight", "y_output"]
    assert "linear.weight" in {tensor.name for tensor in graph.initializer}
    assert result.check is not None
    assert result.check.ok
    found = mx.verify(result.path, model, inputs=inputs)
    assert found.ok
    assert len(found.outputs) == 4
