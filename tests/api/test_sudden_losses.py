"""Modules that agree within the tolerance and lose more than rounding explains, by a model and by another file."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import modelexport as mx

X = torch.linspace(-2, 2, 96).sin().reshape(6, 16)
EXPORTERS = ("dynamo", "torchscript")


class Normed(nn.Module):
    """A norm with linear layers around it; what comes out of the last norm hides what went wrong before."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16, eps=1e-12)
        self.down = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.up(x)))


class Steep(nn.Module):
    """The exponentials of a softmax whose scores are large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * 60.0)


class Rest(nn.Module):
    """What is left of large numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 300.0) - 300.0 - x * 0.5


class Level(nn.Module):
    """A norm of what hardly varies."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x * 0.5 + 300.0)


class Ill(nn.Module):
    """Its inner module amplifies the rounding of what it is given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.up, self.inner = nn.Linear(16, 16), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.up(x)) + 1.0


def seeded(model: type[nn.Module], *parts: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return model(*parts).eval()


def exported(model: nn.Module, path: Path, exporter: str) -> Path:
    mx.export(model, path, inputs=X, exporter=exporter, no_check=True)
    return path


def with_epsilon(file: Path, target: Path, epsilon: float) -> Path:
    proto = onnx.load(file)
    norms = [node for node in proto.graph.node if node.op_type == "LayerNormalization"]
    next(item for item in norms[0].attribute if item.name == "epsilon").f = epsilon
    onnx.save(proto, target)
    return target


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_another_epsilon_is_remarked(exporter: str, tmp_path: Path) -> None:
    model = seeded(Normed)
    good = exported(model, tmp_path / "good.onnx", exporter)
    other = with_epsilon(good, tmp_path / "other.onnx", 1e-6)
    by_model, by_file = mx.verify(other, model, inputs=X), mx.verify(other, against=good, inputs=X)
    for result in (by_model, by_file):
        assert result.ok  # within the tolerance
        (loss,) = result.sudden_losses
        assert (str(loss.call), loss.class_name) == ("norm", "LayerNorm")
        assert loss.inputs.sqnr > 125
        assert loss.outputs.sqnr < 120
    assert not mx.verify(good, model, inputs=X).sudden_losses
    assert not mx.verify(good, against=good, inputs=X).sudden_losses


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("inner", [Steep, Rest, Level])
def test_what_amplifies_rounding_is_not(inner: type[nn.Module], exporter: str, tmp_path: Path) -> None:
    model = seeded(Ill, seeded(inner))
    good = exported(model, tmp_path / "good.onnx", exporter)
    # Nothing of the up projection is rounded as in PyTorch: its last bits are others.
    proto = onnx.load(good)
    shifted = onnx.helper.make_node("Mul", ["x", "one"], ["x_rounded"])
    for node in proto.graph.node:
        for position, name in enumerate(node.input):
            if name == "x":
                node.input[position] = "x_rounded"
    proto.graph.node.insert(0, shifted)
    proto.graph.initializer.append(onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [], [1 + 2.0**-22]))
    onnx.save(proto, tmp_path / "rounded.onnx")
    for result in (
        mx.verify(tmp_path / "rounded.onnx", model, inputs=X, proof=False, branches=False),
        mx.verify(tmp_path / "rounded.onnx", against=good, inputs=X),
    ):
        lost = {str(call.call): call.lost for call in result.calls}
        assert (lost["inner"] or 0) > 20, lost  # else there was nothing to explain
        assert not result.sudden_losses
