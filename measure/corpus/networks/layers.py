"""Layers of torch that are made of several weights or take a shortcut past their submodules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from measure.corpus.networks.network import OnSequences


class LongShortTerm(OnSequences):
    """Two layers in two directions: one module, many weights."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, (last, _) = self.rnn(x)
        return self.out(states) + last[-1].mean(-1)[:, None, None]


class GatedRecurrent(OnSequences):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(8, 6, batch_first=True)
        self.decoder = nn.GRU(6, 6, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.encoder(x)
        return self.out(self.decoder(torch.relu(states), last)[0])


class PlainRecurrent(OnSequences):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(8, 6, batch_first=True, nonlinearity="relu")
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


class MultiHead(OnSequences):
    """Attention whose weights are one matrix, and whose output projection is a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.attention(x, x, x)[0] + x)


class TransformerStack(OnSequences):
    """torch's own layers, which run as one operator where they can."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


class EncoderDecoder(OnSequences):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.transformer(x, torch.flip(x, (1,)))
