"""Models that go one way or another, which tracers cannot follow."""

from __future__ import annotations

import torch
from measure.corpus.networks.control import ValueDependent
from torch import Tensor, nn

Made = tuple[nn.Module, dict[str, Tensor]]


class ByShape(nn.Module):
    """The shape of its input decides: torch.export can follow, symbolic tracing cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) if x.shape[1] > 2 else x


def by_data() -> Made:
    return ValueDependent(), _sample()


def by_shape() -> Made:
    return ByShape(), _sample()


def _sample() -> dict[str, Tensor]:
    return {"x": torch.linspace(-1, 2, 8).reshape(2, 4)}
