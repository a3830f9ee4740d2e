"""What the networks of the corpus have in common: each one brings the inputs that it is called with."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn


class Network(nn.Module):
    @abstractmethod
    def example(self) -> object:
        """Inputs to call the network with: a tuple by position, or a dictionary by keyword."""

    def make_equal(self) -> None:
        """Called when all weights have been made different from each other: for networks that need equal ones."""


class OnVectors(Network):
    """A network that takes vectors of four numbers. Many of them: few numbers tell nothing about their origin."""

    def example(self) -> tuple[Tensor, ...]:
        return (floats(16, 4),)


class OnImages(Network):
    def example(self) -> tuple[Tensor, ...]:
        return (floats(2, 3, 12, 12),)


class OnSequences(Network):
    def example(self) -> tuple[Tensor, ...]:
        return (floats(4, 5, 8),)


def floats(*shape: int, seed: int = 0) -> Tensor:
    """The same numbers in every process, no two alike."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(below: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))
