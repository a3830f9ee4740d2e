"""Watching models that do what a test tells them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modelexport.capture.arguments import bind_arguments
from modelexport.capture.eager import WatchedRun, watch_run
from modelexport.capture.tensor_spill import TensorSpill
from modelexport.graph.sample import alike, sample
from modelexport.record.signals import CallTensors, IssuedOp

X = torch.linspace(-1, 1, 8).reshape(2, 4)
Action = Callable[[Any, Tensor], object]


class Doing(nn.Module):
    """Does what it is told, with a Linear at hand and a part that does something else."""

    def __init__(self, action: Action, part: Action | None = None) -> None:
        super().__init__()
        self.action = action
        self.lin = nn.Linear(4, 4)
        self.part = None if part is None else Doing(part)

    def forward(self, x: Tensor) -> object:
        return self.action(self, x)


class Seen:
    """A watched run, easy to ask. `spooled` is what went to disk, by number."""

    def __init__(self, watched: WatchedRun, spool: TensorSpill) -> None:
        self.run, self.samples = watched.run, watched.samples
        self.spooled = {number: spool.get(number) for number in range(len(self.samples)) if number in spool}

    def issued(self) -> list[tuple[str, str]]:
        """Operators with the call that issued them; the root is `.`"""
        return [(op.name.split(".")[1], str(op.call) or ".") for op in self.run.ops]

    def issuers(self, name: str) -> list[str]:
        return [call for found, call in self.issued() if found == name]

    def op(self, name: str, place: int = 0) -> IssuedOp:
        return [op for op in self.run.ops if op.name.split(".")[1] == name][place]

    def call(self, text: str) -> CallTensors:
        (found,) = [item for item in self.run.calls if (str(item.call) or ".") == text]
        return found

    def holds(self, number: int, tensor: Tensor) -> bool:
        return alike(self.samples[number], sample(tensor.detach().numpy()))

    def kept(self, numbers: Sequence[int]) -> list[np.ndarray]:
        return [self.spooled[number] for number in numbers]


def watched(model: nn.Module, inputs: object = X, seed: int = 0, wanted: Collection[int] = ()) -> Seen:
    with TensorSpill() as spool:
        return Seen(watch_run(model, bind_arguments(model, inputs), spool, seed, wanted=wanted), spool)
