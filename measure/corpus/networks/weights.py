"""Weights that are shared, made, folded, borrowed or written."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from measure.corpus.networks.network import Network, OnImages, OnVectors, floats, integers


class TiedWeights(Network):
    """One matrix embeds words and scores them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(self.embedding(ids))))

    def example(self) -> tuple[Tensor, ...]:
        return (integers(10, 2, 5),)


class BorrowedWeights(Network):
    """A parameter of a child used by its parent, without calling the child."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.full((4,), 1.5))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids) * self.scale
        normed = nn.functional.layer_norm(hidden, (4,), self.norm.weight, self.norm.bias)
        return nn.functional.linear(normed, self.table.weight)

    def example(self) -> tuple[Tensor, ...]:
        return (integers(10, 2, 5),)


class FoldedNorms(OnImages):
    """Convolutions that exporters fuse with the batch normalization behind them, with and without work between."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(3, 8, 3)
        self.first = nn.BatchNorm2d(8)
        self.project = nn.Conv2d(8, 4, 1, bias=False)
        self.second = nn.BatchNorm2d(4)
        self.expand = nn.Conv2d(4, 6, 1, bias=False)
        self.third = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(self.narrow(x)))
        return torch.relu(self.third(self.expand(self.second(self.project(x)))))


class UnfoldedNorms(OnImages):
    """Batch normalization that nothing before it can take: first of all, behind an activation, and in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, 6, 3)
        self.middle = nn.BatchNorm2d(6)
        self.last = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(torch.relu(self.conv(self.entry(x))))
        return self.last(x.mean((2, 3)))


class OtherNorms(OnImages):
    """Group and instance norms, which exporters take apart in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.group = nn.GroupNorm(4, 8)
        self.instance = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.instance(torch.relu(self.group(self.conv(x))))


class RootMeanSquare(OnVectors):
    """A norm that is an operator of its own in new versions of ONNX."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.RMSNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.first(x)))


class FrozenTable(OnVectors):
    """A module whose whole work is folded into a constant, and a constant that the graph holds as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Embedding(20, 4)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("ids", torch.arange(16), persistent=False)
        self.register_buffer("scale", torch.tensor([0.5, 1.5, 2.5, 3.5]))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.position(self.ids)) * self.scale


class WrittenBuffer(OnVectors):
    """It writes into a buffer of its own while it runs, and reads it back."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.mean(0))
        return self.linear(x) + self.seen


class InPlace(OnVectors):
    """Operators that write into what they read, the input and slices of it among them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.activation = nn.ReLU(inplace=True)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x.mul_(2))
        hidden[:, 1:3] += 1
        hidden = self.activation(hidden)
        hidden.add_(x).sigmoid_()
        return self.last(hidden)


class WeightNorm(OnVectors):
    """A weight that a parametrization computes at every call; the parametrization is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(4, 4))
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class SpectralNorm(OnVectors):
    """A weight that is divided by its largest singular value, estimated from buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.spectral_norm(nn.Linear(4, 4))
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Parametrized(OnVectors):
    """A parametrization of one's own, on a Linear that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        parametrize.register_parametrization(self.linear, "weight", Symmetric())
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.linear(torch.relu(self.linear(x))))


class HalfPrecision(OnVectors):
    """A child that computes in float16 between casts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.narrow = nn.Linear(4, 4).half()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.narrow(self.first(x).half()).float())


class GeneratedWeights(OnVectors):
    """A child makes the weights that its parent multiplies with."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(4, 16)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        weight = torch.tanh(self.maker(condition)).view(-1, 4, 4)
        return self.last(torch.bmm(weight, x.unsqueeze(-1)).squeeze(-1))

    def example(self) -> tuple[Tensor, ...]:
        return floats(16, 4), floats(16, 4, seed=1)
