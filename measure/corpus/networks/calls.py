"""Which call of which module a node belongs to."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from measure.corpus.networks.network import OnVectors


class CalledThrice(OnVectors):
    """One Linear, three calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(self.linear(torch.sigmoid(self.linear(x)))))


class Block(nn.Module):
    """Its own child runs twice; a Sequential and a ModuleDict are inside."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.kinds = nn.ModuleDict({"p": nn.Linear(4, 4)})

    def forward(self, x: Tensor) -> Tensor:
        return self.kinds["p"](self.net(self.fc(self.fc(x)))) + x


class RepeatedBlock(OnVectors):
    """A block that runs three times, with a child that runs twice each time."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.block(x)
        return x


class TwoNames(OnVectors):
    """One object under two names, and a module named like a numbered call of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.a_1 = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a_1(self.b(torch.relu(self.a(torch.tanh(self.b(x))))))


class SharedInside(OnVectors):
    """Two parents hold the same child."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(4, 4)
        self.left = nn.Sequential(nn.Linear(4, 4), shared)
        self.right = nn.Sequential(shared, nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.right(torch.relu(self.left(x)))


class DirectForward(OnVectors):
    """`sub.forward(x)` in place of `sub(x)`, for two subs whose children have the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Block()
        self.two = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.two.forward(self.one.forward(x))


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(4, 3)
        self.up = nn.Linear(3, 4)

    def encode(self, x: Tensor) -> Tensor:
        return torch.tanh(self.down(x))

    def decode(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.up(x))


class OtherMethods(OnVectors):
    """Methods of a child that are not `forward`: its own work has no call that it could belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.coder = Coder()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.coder.decode(self.coder.encode(x)))


class Unused(OnVectors):
    """A call whose result nobody reads leaves nothing in the graph, but counts."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        self.b(x)
        return self.a(torch.relu(self.b(x)))


class Descending(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, level: int = 0) -> Tensor:
        if level == self.depth:
            return torch.tanh(self.linear(x))
        return self.linear(torch.relu(self(x * 0.5, level + 1)))


class SelfCalling(OnVectors):
    """A module that runs itself: calls of one path inside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Descending(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + x


class CheckpointedReentrant(OnVectors):
    """Inside a re-entrant checkpoint torch.export loses sight of modules."""

    reentrant = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.inner, x, use_reentrant=self.reentrant))


class Checkpointed(CheckpointedReentrant):
    reentrant = False


class Hooked(OnVectors):
    """Hooks that compute: one changes what a child is given, another what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.first.register_forward_hook(lambda module, inputs, output: torch.tanh(output))  # noqa: ARG005
        self.second.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 3,))  # noqa: ARG005

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Compiled(OnVectors):
    """A child behind torch.compile: the wrapper is a module too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)), backend="eager")
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x))


class CompiledInPlace(OnVectors):
    """`module.compile()`: no wrapper, another way to be called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.inner.compile(backend="eager")
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x))
