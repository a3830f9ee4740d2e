"""Small networks, each with one thing that exporters find hard."""

from __future__ import annotations

import torch
from measure.corpus.networks import calls, layers, signatures
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# What the corpus has as well.
Block = calls.Block
TwoNames = calls.TwoNames
DirectForward = calls.DirectForward
Silent = calls.Unused
Attending = layers.TransformerStack
Mixing = signatures.Mixing


class CalledThrice(nn.Module):
    """One Linear, three calls."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(torch.relu(self.lin(torch.sigmoid(self.lin(x)))))


class Repeated(nn.Module):
    """A block called three times whose own child is called twice; Sequential and ModuleDict inside."""

    def __init__(self) -> None:
        super().__init__()
        self.blk = Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.blk(x)
        return x


class FoldedNorm(nn.Module):
    """Convolutions that the exporters fuse with the batch normalization behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.wide = nn.Conv2d(8, 32, 3)
        self.norm = nn.BatchNorm2d(32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.wide(torch.relu(self.bn(self.conv(x))))))


class Twins(nn.Module):
    """Two siblings that compute the same thing: one node remains."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.ReLU()
        self.right = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * 2 + self.right(x)


class Checkpointed(nn.Module):
    """A block inside a re-entrant checkpoint, where dynamo loses sight of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.inner, x, use_reentrant=True))


class Branching(nn.Module):
    """Two branches of `torch.cond` with a module each."""

    def __init__(self) -> None:
        super().__init__()
        self.yes = nn.Linear(4, 4)
        self.no = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.yes(x) + 1, self.no, (x,))


class Gated(nn.Module):
    """Works itself between two calls of modules that have no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.gate = nn.Sequential(nn.Sigmoid(), nn.Tanh())

    def forward(self, state: Tensor, item: Tensor) -> Tensor:
        return self.gate(self.linear(state) + item) * 2.0 + item


class GatedScan(nn.Module):
    """A scan whose body calls a module that calls modules."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Gated()

    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops.scan import scan

        def step(state: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
            state = self.cell(state, item)
            return state, state * 3.0

        return scan(step, x[0] * 0.5, x)[1]


class GatedBranch(nn.Module):
    """A branch that calls a module that calls modules, run twice; the other one calls what never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"choice": _Choice()})

    def forward(self, x: Tensor) -> Tensor:
        return self.inner["choice"](torch.tanh(self.inner["choice"](x)))


class _Choice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Gated()
        self.never = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > -1e9, lambda x: self.cell(x, x) - 1.0, self.never, (x,))


class EqualWeights(nn.Module):
    """Norms that are all alike at initialization: TorchScript keeps one copy of their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = torch.tanh(norm(x))
        return x


class Functional(nn.Module):
    """A parameter of a child used by its parent, without calling the child."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.scale = nn.Parameter(torch.full((4,), 1.5))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids) * self.scale
        return nn.functional.linear(hidden, self.table.weight)


class ConstantTable(nn.Module):
    """A module whose whole work is folded into a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Embedding(6, 4)
        self.register_buffer("ids", torch.arange(5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.position(self.ids)


class Recurrent(nn.Module):
    """An LSTM and a weight-normalized Linear (its parametrization is a module of its own)."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


class Nested(nn.Module):
    """A list and a dictionary as inputs, a dictionary as output."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, xs: list[Tensor], extra: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"first": self.lin(xs[0]) + extra["bias"], "second": self.lin(xs[1])}


class Odd(nn.Module):
    """Names that mean something in paths and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a/b": nn.Linear(4, 4), "c#1": nn.Linear(4, 4), "[bold]": nn.Linear(4, 4)})

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts.values():
            x = torch.relu(part(x))
        return x


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.lin(x).chunk(3, dim=-1)


class Divided(nn.Module):
    """One module divides, another uses the parts: dynamo's optimizer makes one Split of it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = Parts()
        self.att = Mixing()

    def forward(self, x: Tensor) -> Tensor:
        return self.att(*self.qkv(x))


class Bottleneck(nn.Module):
    """Two convolutions with their norms and nothing in between; the second has no bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 4, 1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.expand = nn.Conv2d(4, 6, 1, bias=False)
        self.last = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(self.expand(self.norm(self.project(x)))))


class Writing(nn.Module):
    """It writes into its input and puts another buffer in the place of its own."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return self.lin(x.mul_(2)) + self.count


class Starred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        return self.lin(first) + sum(others)


def perturbed(module: nn.Module) -> nn.Module:
    """Random weights everywhere: equal initial weights hide errors."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.add_((torch.rand(tensor.shape, generator=generator) - 0.5) * 0.1)
    return module.eval()
