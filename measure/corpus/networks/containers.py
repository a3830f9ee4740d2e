"""Containers, names, and siblings that are hard to tell apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from measure.corpus.networks.network import OnSequences, OnVectors


class NestedSequential(OnVectors):
    """Sequential in Sequential, one of them called by its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), nn.Tanh())
        self.parts = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.whole(x)
        for part in self.parts:
            x = part(x)
        return x


class Dictionaries(OnVectors):
    """Two ModuleDicts with the same keys, whose own names one exporter loses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        self.second = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first["b"](self.first["a"](x)))
        return self.second["a"](x) - torch.tanh(self.second["b"](x))


class OddNames(OnVectors):
    """Names that mean something in paths, scopes and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("a/b", "c#1", "[bold]", "ünï", "0")})

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts.values():
            x = torch.relu(part(x))
        return x


class Twins(OnVectors):
    """Siblings that compute the same thing from the same input: one node remains."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.ReLU()
        self.right = nn.ReLU()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.left(x) * 2 + self.right(x))


class TwinBlocks(OnVectors):
    """Siblings with equal weights on different inputs: equal operators, unequal values."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.right = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.right.load_state_dict(self.left.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) - self.right(torch.flip(x, (-1,)))


class EqualNorms(OnSequences):
    """Norms without weights of their own: nothing but their place tells them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8, elementwise_affine=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = torch.tanh(norm(x)) + x
        return x


class ParameterContainers(OnVectors):
    """ParameterList and ParameterDict are modules that hold weights and never run."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.randn(4, 4) for _ in range(2))
        self.scales = nn.ParameterDict({"first": torch.randn(4), "second": torch.randn(4)})

    def forward(self, x: Tensor) -> Tensor:
        for matrix, scale in zip(self.matrices, self.scales.values(), strict=True):
            x = torch.tanh(x @ matrix) * scale
        return x


class DoNothing(OnVectors):
    """Modules that run and do nothing: Identity, Dropout in evaluation, a reshape to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = nn.Identity()
        self.first = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.flatten = nn.Flatten()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.flatten(self.dropout(torch.relu(self.first(self.identity(x))))))
