"""Whose work a node is, where exporters merge and fold what several modules do, or look at the wrong moment."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from measure.corpus.networks.network import Network, OnSequences, floats


class MaskedMixing(nn.Module):
    """Attention in small, with a mask that it makes of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        hidden = (1.0 - keep[:, None, :].float()) * -1000.0
        return torch.softmax(self.query(x) @ x.transpose(1, 2) + hidden, -1) @ x


class MergedMasks(Network):
    """Two of three layers make the same mask, and the third one makes it of fewer positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MaskedMixing() for _ in range(3))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        first, second, third = self.layers
        x = second(first(x, keep), keep)
        return third(x[:, ::2], keep[:, ::2])

    def example(self) -> tuple[Tensor, ...]:
        return floats(3, 6, 8), torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])


class Reordering(nn.Module):
    """Looks up positions by indices that are the same in every layer."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.value = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        order = (torch.arange(self.length) * 2 + 1) % self.length
        return torch.tanh(self.value(x)[:, order])


class FoldedTables(OnSequences):
    """The indices of all layers become one constant; each layer looks up its own values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Reordering(5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class EqualBiases(Network):
    """Two biases of zeros, large enough for exporters to merge them: whoever adds is told by the operator alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(768, 768)
        self.second = nn.Linear(768, 768)

    def make_equal(self) -> None:
        nn.init.zeros_(self.first.bias)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))

    def example(self) -> tuple[Tensor, ...]:
        return (floats(2, 3, 768),)


def _shorten(x: Tensor, length: int) -> Tensor:
    return x[:, :length] * 2.0 + 1.0 if x.size(1) > length else x * 3.0 - 1.0


with warnings.catch_warnings():
    # torch is about to drop scripts; models that have some are exported all the same.
    warnings.simplefilter("ignore", DeprecationWarning)
    shorten = torch.jit.script(_shorten)


class Shortening(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(shorten(x, self.length))


class ScriptedBranches(OnSequences):
    """Scripted functions have no scope, and their branches hold constants that other modules hold as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Shortening(4)
        self.second = Shortening(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(torch.tanh(x) * 2.0 + 1.0))


class TakenAgain(OnSequences):
    """Elements of a tensor that is written into: torch takes them again where they are read next, in another module."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.right = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x)
        first, second, *others = hidden
        hidden.mul_(2.0)
        result = self.left(first) + self.right(second)
        for other in others:
            result = result + self.right(other)
        return result


def mix(query: Tensor, key: Tensor) -> Tensor:
    return torch.softmax(query @ key.transpose(1, 2), -1) @ key


class ViewsThenHelper(nn.Module):
    """Issues views itself, and everything else in a function: fewer Python frames than all else in the same call."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return mix(self.query(x).transpose(1, 2), self.key(x).transpose(1, 2)).transpose(1, 2)


class ViewsInForward(OnSequences):
    def __init__(self) -> None:
        super().__init__()
        self.first = ViewsThenHelper()
        self.second = ViewsThenHelper()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))
