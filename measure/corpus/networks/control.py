"""Loops and branches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from measure.corpus.networks.network import OnSequences, OnVectors


class Branching(OnVectors):
    """Two branches of `torch.cond` with a module each."""

    def __init__(self) -> None:
        super().__init__()
        self.yes = nn.Linear(4, 4)
        self.no = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.cond(x.sum() > 0, lambda x: torch.relu(self.yes(x)), lambda x: torch.tanh(self.no(x)), (x,))
        return self.last(chosen)


class Unrolled(OnVectors):
    """A Python loop whose length is a setting: a graph without a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)
        self.gate = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for index in range(4):
            x = x + torch.tanh(self.step(x)) * torch.sigmoid(self.gate(x)) / (index + 1)
        return x


class StepByStep(OnSequences):
    """A cell run over time, one call for each step, and the steps stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 6)
        states = []
        for step in range(5):
            state = self.cell(x[:, step], state)
            states.append(state)
        return self.head(torch.stack(states, 1))


class EarlyExit(OnVectors):
    """Exits that depend on the mode and on the shape, not on values: one path is in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.exits = nn.ModuleList(nn.Linear(4, 2) for _ in range(4))
        self.last = 2

    def forward(self, x: Tensor) -> Tensor:
        for index, (stage, leave) in enumerate(zip(self.stages, self.exits, strict=True)):
            x = torch.relu(stage(x))
            if index == self.last and x.shape[-1] == 4:
                return leave(x)
        return x


class SoftExit(OnVectors):
    """Every exit is computed and the confident one is chosen by values."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.exits = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stages[0](x))
        early = self.exits[0](x)
        late = self.exits[1](torch.relu(self.stages[1](x)))
        sure = early.softmax(-1).amax(-1, keepdim=True) > 0.6
        return torch.where(sure, early, late)


class ValueDependent(OnVectors):
    """A Python `if` on a value: what an exporter sees is one run."""

    def __init__(self) -> None:
        super().__init__()
        self.yes = nn.Linear(4, 4)
        self.no = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.yes(x) if x.sum() > 0 else self.no(x)


class Scanned(OnSequences):
    """A scan over time with a module inside the body."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops.scan import scan

        def body(state: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
            state = torch.tanh(self.step(state) + item)
            return state, state.clone()

        _, states = scan(body, x.new_zeros(x.shape[0], 8), x.transpose(0, 1))
        return self.last(states.transpose(0, 1))
