"""Networks without repetition: whoever finds layers in them has invented these."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """One value through several branches of convolutions, put beside each other."""

    def __init__(self, given: int) -> None:
        super().__init__()
        self.point = nn.Conv2d(given, 8, 1)
        self.small = nn.Sequential(nn.Conv2d(given, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1))
        self.large = nn.Sequential(nn.Conv2d(given, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 5, padding=2))
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(given, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.point(x), self.small(x), self.large(x), self.pooled(x)], 1)


class Siamese(nn.Module):
    """The same branch on two inputs: twice beside each other is not twice in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 49, 24)
        )
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        distance: Tensor = self.head((self.branch(x) - self.branch(x.flip(3))).abs())
        return distance


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm, self.head = nn.Embedding(50, 16), nn.LSTM(16, 24, 2, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        head: Tensor = self.head(self.lstm(self.table(x))[0][:, -1])
        return head


class OneResidual(nn.Module):
    """A single block with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        head: Tensor = self.head(torch.relu(x + self.block(x)).mean((2, 3)))
        return head


class OneAttention(nn.Module):
    """A transformer of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 5)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        head: Tensor = self.head(self.layer(self.table(x)).mean(1))
        return head


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 1)
        self.deep = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.wide(x) + self.deep(x))


def _plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 36, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def _deepening() -> nn.Module:
    """Two or three convolutions of one width, then a pool, again and again."""
    widths, members = ((8, 2), (16, 2), (32, 3), (32, 3)), list[nn.Module]()
    given = 3
    for width, count in widths:
        for _ in range(count):
            members += [nn.Conv2d(given, width, 3, padding=1), nn.ReLU()]
            given = width
        members.append(nn.MaxPool2d(2))
    return nn.Sequential(*members, nn.Flatten(), nn.Linear(32 * 4, 64), nn.ReLU(), nn.Linear(64, 10))


def _perceptron() -> nn.Module:
    hidden = [layer for _ in range(5) for layer in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *hidden, nn.Linear(32, 4))


def _autoencoder() -> nn.Module:
    down = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1)]
    up = [nn.ConvTranspose2d(32, 16, 2, 2), nn.ReLU(), nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU()]
    return nn.Sequential(*down, nn.ReLU(), *up, nn.ConvTranspose2d(8, 3, 2, 2), nn.Sigmoid())


def _branching() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        Branches(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


def _image() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def _tokens() -> Tensor:
    return torch.arange(12).reshape(2, 6)


PLAIN: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "convolutions and pools": (_plain, _image),
    "convolutions that widen": (_deepening, _image),
    "perceptron": (_perceptron, lambda: torch.randn(2, 16)),
    "recurrent": (Recurrent, _tokens),
    "autoencoder": (_autoencoder, _image),
    "siamese": (Siamese, _image),
    "branches": (_branching, _image),
    "one residual": (OneResidual, _image),
    "one attention": (OneAttention, _tokens),
    "wide and deep": (WideAndDeep, lambda: torch.randn(2, 16)),
}
