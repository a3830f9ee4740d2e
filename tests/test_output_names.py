"""The names of a graph's outputs are those of what the model returns, in its order."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import modelexport as mx
from modelexport.api.observing import paired_names

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
    assert paired_names(["b", "a"], ["a", "b"]) == [("b", "b"), ("a", "a")]
    assert paired_names(["b", "b_2"], ["a", "b"]) == [("b", "a"), ("b_2", "b")]
    assert paired_names(["x", "a"], ["a", "y", "z"]) == [("x", "y"), ("a", "a")]
