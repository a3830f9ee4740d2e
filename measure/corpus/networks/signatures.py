"""What goes into modules and what comes out of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from measure.corpus.networks.network import Network, OnVectors, floats


class NestedInputs(Network):
    """A list and a dictionary as inputs, a dictionary as output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, xs: list[Tensor], extra: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"first": self.linear(xs[0]) + extra["bias"], "second": torch.tanh(self.linear(xs[1]))}

    def example(self) -> dict[str, object]:
        return {"xs": [floats(16, 4), floats(16, 4, seed=1)], "extra": {"bias": floats(16, 4, seed=2)}}


class Starred(Network):
    """Any number of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        total = torch.tanh(self.linear(first))
        for other in others:
            total = total + other.sigmoid()
        return total

    def example(self) -> tuple[Tensor, ...]:
        return floats(16, 4), floats(16, 4, seed=1), floats(16, 4, seed=2)


class Optional(Network):
    """An input that is left out, and a keyword that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None, scale: float = 2.0) -> Tensor:
        hidden = torch.tanh(self.linear(x)) * scale
        hidden = hidden if mask is None else hidden.masked_fill(mask, 0.0)
        return hidden if bias is None else hidden + bias

    def example(self) -> dict[str, object]:
        return {"x": floats(16, 4), "bias": floats(16, 4, seed=1)}


class Pair(NamedTuple):
    mean: Tensor
    spread: Tensor


class Moments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(4, 3)
        self.spread = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Pair:
        return Pair(self.mean(x), nn.functional.softplus(self.spread(x)))


class SeveralOutputs(OnVectors):
    """A child that returns a named tuple, one part of which goes two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.moments = Moments()
        self.last = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.moments(x)
        return self.last(mean + spread * 0.5), mean, torch.log(spread)


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.linear(x).chunk(3, dim=-1)


class Mixing(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.sin(q) * torch.cos(k) + v


class Divided(OnVectors):
    """One module divides, another uses the parts: an optimizer makes one Split of it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts()
        self.mixing = Mixing()

    def forward(self, x: Tensor) -> Tensor:
        return self.mixing(*self.parts(x))


class PassedThrough(OnVectors):
    """Outputs that are an input, a weight and a constant, beside a computed one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return torch.tanh(self.linear(x)), x, self.linear.weight, torch.ones(2)


class NothingReturned(nn.Module):
    """A child that hands its result over by attribute."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> None:
        self.kept = torch.relu(self.linear(x))


class SideChannel(OnVectors):
    """What a child computed is read from its attribute, not from what it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.child = NothingReturned()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.child(x)
        return self.last(self.child.kept)
