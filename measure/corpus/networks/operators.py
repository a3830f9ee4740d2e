"""Operators that exporters take apart, put together or have no word for."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from measure.corpus.networks.network import Network, OnImages, OnSequences, OnVectors, floats, integers


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class ResidualOfResidual(OnVectors):
    """Sums of sums: each Add belongs to another module."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = Residual(nn.Sequential(Residual(nn.Linear(4, 4)), nn.Tanh(), Residual(Residual(nn.Linear(4, 4)))))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x)


class Convolutions(OnImages):
    """Grouped, depthwise, dilated and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, groups=4, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, dilation=2, padding=2)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(torch.relu(self.depthwise(torch.relu(self.grouped(self.stem(x))))))


class SamePadding(OnImages):
    """A dilated convolution that pads as much as it needs: there is an attribute for it, but not with dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, dilation=2, padding="same")
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.conv(x)))


class Pooling(OnImages):
    """Pooling, padding, resizing, shuffling of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)
        self.conv = nn.Conv2d(3, 8, 3)
        self.pool = nn.MaxPool2d(2)
        self.shuffle = nn.PixelShuffle(2)
        self.resize = nn.Upsample(scale_factor=2, mode="bilinear")
        self.last = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.resize(self.shuffle(self.pool(self.conv(self.pad(x)))))))


class Bilinear(Network):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(4, 3, 5)
        self.last = nn.Linear(5, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.last(torch.relu(self.bilinear(x, y)))

    def example(self) -> tuple[Tensor, ...]:
        return floats(16, 4), floats(16, 3, seed=1)


class EmbeddingBag(Network):
    """Rows of a table, looked up and averaged at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4, mode="mean")
        self.last = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(torch.relu(self.bag(ids)))

    def example(self) -> tuple[Tensor, ...]:
        return (integers(10, 16, 5),)


class Fourier(OnSequences):
    """A Fourier transform without complex numbers: products with tables of sines and cosines."""

    cosines: Tensor
    sines: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = 2 * math.pi * torch.outer(torch.arange(8.0), torch.arange(8.0)) / 8
        self.register_buffer("cosines", torch.cos(angles))
        self.register_buffer("sines", torch.sin(angles))
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        real, imaginary = x @ self.cosines, x @ -self.sines
        return self.mix(torch.sqrt(real.square() + imaginary.square() + 1e-6))


class Einsum(OnSequences):
    """Attention written in Einstein's notation."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(8, 2, 4))
        self.key = nn.Parameter(torch.randn(8, 2, 4))
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        query = torch.einsum("bsd,dhk->bhsk", x, self.query)
        key = torch.einsum("bsd,dhk->bhsk", x, self.key)
        weights = torch.einsum("bhsk,bhtk->bhst", query, key).softmax(-1)
        return self.out(torch.einsum("bhst,btd->bsd", weights, x))


class Scattered(Network):
    """Values written to places that are computed: scatter, gather, index_put."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        hidden = torch.tanh(self.linear(x))
        places = hidden.new_zeros(x.shape[0], 6).scatter(1, index, hidden)
        places = places.scatter_add(1, index, hidden.gather(1, index.remainder(4)))
        rows = torch.arange(2)
        places = torch.index_put(places, (rows, index[:2, 0]), hidden[:2, 0].exp())
        return self.last(places)

    def example(self) -> tuple[Tensor, ...]:
        return floats(3, 4), torch.tensor([[0, 2, 5, 1], [3, 1, 0, 4], [5, 4, 2, 0]])


class Strided(OnSequences):
    """Overlapping windows cut from memory, where the tensor does not lie in order."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).transpose(0, 1)
        step, row, item = hidden.stride()
        return self.last(hidden.as_strided((4, 2, 4, 8), (step, step, row, item)))


class NegativeAxis(OnSequences):
    """Windows along an axis that is counted from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).unfold(-2, 3, 1))


class Cumulative(OnSequences):
    """Sums up to each place, and a triangular mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype).view(1, -1, 1)
        means = hidden.cumsum(1) / counts
        scores = (hidden @ means.transpose(1, 2)).masked_fill(
            torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -1e4
        )
        return self.last(scores.softmax(-1) @ means)


class TopKRouting(OnSequences):
    """Two of four experts for each token, all of them computed and two weighed."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 6), nn.SiLU(), nn.Linear(6, 8)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        values, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        weights = torch.zeros_like(x[..., :4]).scatter(-1, chosen, values)
        answers = torch.stack([expert(x) for expert in self.experts], -1)
        return (answers * weights.unsqueeze(-2)).sum(-1)


class Clipped(torch.autograd.Function):
    """Rounds on the way forward and is invisible on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0]


class CustomFunction(OnVectors):
    """An autograd function of one's own between two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Clipped.apply(self.first(x)))  # type: ignore[no-untyped-call]


class Fused(OnVectors):
    """Operators that one exporter has a function for and the other takes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 8)
        self.unit = nn.GLU()
        self.activations = nn.ModuleList([nn.Hardswish(), nn.Mish(), nn.SELU(), nn.LogSoftmax(-1)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.unit(self.gate(x))
        for activation in self.activations:
            x = activation(x + 0.5)
        return x


class Complex(OnSequences):
    """A real Fourier transform with complex numbers between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.fft(self.first(x), dim=1)
        return self.last(spectrum.real)
