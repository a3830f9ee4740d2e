"""Repeated blocks: networks whose weights do not tell one layer from another.

The rows of the corpus get other numbers in every weight, so that values tell who made them. Here they do not: what is
left is the order in which weights are read.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

import modelexport as mx

_SEED = 0
_SIZE, _LENGTH, _TIMES = 16, 6, 4


class _Block(nn.Module):
    """Attention of one head and a feed-forward network, both with a residual connection and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(_SIZE, _SIZE) for _ in range(4))
        self.up, self.down = nn.Linear(_SIZE, 2 * _SIZE), nn.Linear(2 * _SIZE, _SIZE)
        self.activation = nn.GELU()
        self.first_norm, self.last_norm = nn.LayerNorm(_SIZE), nn.LayerNorm(_SIZE)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) / _SIZE**0.5, dim=-1)
        x = self.first_norm(x + self.dense(scores @ self.value(x)))
        last: Tensor = self.last_norm(x + self.down(self.activation(self.up(x))))
        return last


class CalledFourTimes(nn.Module):
    """One block, called four times, as ALBERT does."""

    def __init__(self) -> None:
        super().__init__()
        self.block = _Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(_TIMES):
            x = self.block(x)
        return x


class EqualLayers(nn.Module):
    """Four blocks that are copies of one, with biases of zero: as they are before any training."""

    def __init__(self) -> None:
        super().__init__()
        block = _Block()
        for name, parameter in block.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        self.layers = nn.ModuleList(copy.deepcopy(block) for _ in range(_TIMES))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


REPEATED: Mapping[str, Callable[[], nn.Module]] = {"called-four-times": CalledFourTimes, "equal-layers": EqualLayers}


def export_repeated(name: str, exporter: str, path: Path) -> mx.ExportResult:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(_SEED)
        model = REPEATED[name]().eval()
        inputs = (torch.randn(2, _LENGTH, _SIZE),)
        return mx.export(model, path, inputs=inputs, exporter=exporter, no_check=True)
