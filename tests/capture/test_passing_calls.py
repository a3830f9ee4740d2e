"""Which calls return the very tensor that they are given."""

from __future__ import annotations

import torch
from torch import nn

from modelexport.capture.arguments import bind_arguments
from modelexport.capture.hierarchy import trace_run


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keyword, self.same, self.drop = Keyword(), nn.Identity(), nn.Dropout()
        self.linear, self.pair = nn.Linear(4, 4), Pair()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.linear(self.same(x)))
        result: torch.Tensor = self.keyword(value=h.reshape(-1)).sum() + self.pair(h)[0]
        return result


class Keyword(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x + 1


def test_the_axes_of_what_goes_through_a_call() -> None:
    net = Net().eval()
    for operators in (False, True):
        seen = trace_run(net, bind_arguments(net, (torch.randn(2, 3, 4),)), operators=operators)
        through = {site.call.path: site.through for site in seen.hierarchy.calls}
        assert through == {"": None, "same": 3, "linear": None, "drop": 3, "keyword": 1, "pair": None}
