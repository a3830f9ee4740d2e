"""Modules that change nothing are told from those that are lost."""

from __future__ import annotations

import torch
from measure.generation.unread import find_unread
from torch import nn


class _Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.unread = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        self.unread(tensor)
        return self.read(tensor)


def test_only_what_changes_nothing_is_unread() -> None:
    model = _Half()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert find_unread(model, ("read", "unread"), lambda: model(torch.ones(1, 2)).detach()) == ("unread",)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
