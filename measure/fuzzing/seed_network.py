"""A network of two blocks, small enough to be mutated thousands of times, with shape arithmetic and a residual."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import modelexport as mx

WIDTH = 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixing = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(rows @ rows.transpose(-1, -2), dim=-1)
        mixed: torch.Tensor = self.mixing(scores @ self.norm(rows))
        return rows + mixed


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(tokens)
        for block in self.blocks:
            rows = block(rows)
        scores: torch.Tensor = self.head(rows)
        return scores.reshape(rows.shape[0], -1)


def export_network(path: Path, exporter: str) -> None:
    torch.manual_seed(0)
    mx.export(Network().eval(), path, inputs={"tokens": torch.arange(6).reshape(2, 3)}, exporter=exporter)
