"""Networks that branch on values: sign, size and sparsity of numbers, tokens, masks and flags.

Every network is one class with `example()`, the inputs that it is exported with. The docstring says what its path
depends on. A file that follows the path of the example is wrong for other inputs, and only for these.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class SignOfSum(nn.Module):
    """The sum of the inputs is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.first(x)
        return self.second(x)

    def example(self) -> Inputs:
        return {"x": _normal(2, 6).abs()}


class _Gate(nn.Module):
    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.project, self.threshold = nn.Linear(8, 8), threshold

    def forward(self, hidden: Tensor) -> Tensor:
        projected = torch.relu(self.project(hidden))
        return projected * 2 if projected.mean() < self.threshold else projected - 1


class GateInside(nn.Module):
    """Two modules down, a mean after a Linear and a ReLU is below a threshold that is near."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 8)
        self.blocks = nn.ModuleList([_Gate(0.9), _Gate(2.5)])

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def example(self) -> Inputs:
        return {"x": _normal(3, 5)}


class FarOutlier(nn.Module):
    """Some element is below -40: far from anything that is drawn at random."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.project(x)
        return projected.clamp(min=-1) if bool((x < -40).any()) else projected

    def example(self) -> Inputs:
        return {"x": _normal(2, 7)}


class AllPositive(nn.Module):
    """All elements are positive."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).sqrt() if (x > 0).all() else x * self.scale

    def example(self) -> Inputs:
        return {"x": _normal(2, 4)}


class FirstElement(nn.Module):
    """One single element decides."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(10, 2), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) if x[0, 3] > 1.5 else self.right(x)

    def example(self) -> Inputs:
        return {"x": _normal(2, 10) * 0.3}


class ItemAsScale(nn.Module):
    """The largest element is taken out as a number, and divides."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().max().item()
        return self.project(x / (scale + 1e-3))

    def example(self) -> Inputs:
        return {"x": _normal(2, 6)}


class ExpertByArgmax(nn.Module):
    """A router chooses one of four experts for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = int(self.router(x).mean(0).argmax())
        return self.experts[chosen](x)

    def example(self) -> Inputs:
        return {"x": _normal(2, 6)}


class EarlyExit(nn.Module):
    """A classifier that is confident enough ends early."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.early, self.late = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        scores = self.early(hidden).softmax(-1)
        if scores.max(-1).values.min() > 0.55:
            return scores
        return self.late(torch.tanh(self.second(hidden))).softmax(-1)

    def example(self) -> Inputs:
        return {"x": _normal(2, 8)}


class HalvedUntilSmall(nn.Module):
    """A loop that ends when the norm is small: the number of turns depends on the size of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        while x.norm() > 4:
            x = x / 2
        return self.project(x)

    def example(self) -> Inputs:
        return {"x": _normal(2, 6)}


class HaltingLayers(nn.Module):
    """Layers are left out once the change is below a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            change = torch.tanh(layer(x)) * 0.5
            x = x + change
            if change.abs().mean() < 0.12:
                break
        return x

    def example(self) -> Inputs:
        return {"x": _normal(2, 5)}


class NormalizedIfLarge(nn.Module):
    """The standard deviation is above 5."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if x.std() > 5:
            x = (x - x.mean()) / x.std()
        return self.mix(x)

    def example(self) -> Inputs:
        return {"x": _normal(2, 3, 9)}


class SilentInput(nn.Module):
    """The energy is below 1e-4: there is nothing to hear."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Conv1d(1, 4, 5)
        self.silence = nn.Parameter(torch.randn(1, 4, 1))

    def forward(self, samples: Tensor) -> Tensor:
        energy = float((samples**2).mean())
        if energy < 1e-4:
            return self.silence.expand(samples.shape[0], 4, 12)
        return self.filter(samples.unsqueeze(1))

    def example(self) -> Inputs:
        return {"samples": _normal(2, 16)}


class MeanAsNumber(nn.Module):
    """A mean becomes a Python number first, and is compared in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.low(x).mean().item()
        return self.high(x) if mean > 3.25 else self.low(x)

    def example(self) -> Inputs:
        return {"x": _normal(2, 4)}


class ListOfNumbers(nn.Module):
    """A row becomes a list, and Python looks for the position of its largest number."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        row = x[0].tolist()
        position = row.index(max(row))
        return self.project(x)[:, position]

    def example(self) -> Inputs:
        return {"x": _normal(3, 5)}


class TwoConditions(nn.Module):
    """Two conditions must hold at once: a mean above one threshold and a deviation below another."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.special = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 0.8 and x.std() < 0.4:
            return self.special(x)
        return self.usual(x)

    def example(self) -> Inputs:
        return {"x": _normal(2, 6)}


class MostlyZeros(nn.Module):
    """More than half of the elements are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.sparse = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        share = (x == 0).float().mean()
        return self.sparse(x) if share > 0.5 else self.dense(x)

    def example(self) -> Inputs:
        return {"x": _normal(2, 12)}


class FewActive(nn.Module):
    """After a ReLU, less than a quarter of the features are active."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 16), nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.encode(x))
        if torch.count_nonzero(features) < features.numel() // 4:
            return self.decode(features) * 4
        return self.decode(features)

    def example(self) -> Inputs:
        return {"x": _normal(2, 6)}


class EmptyRows(nn.Module):
    """Rows of zeros are left out of a mean: how many there are becomes a number."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        count = int((x.abs().sum(-1) > 0).sum())
        return self.project(x.sum(1)) / max(count, 1)

    def example(self) -> Inputs:
        return {"x": _normal(2, 5, 4)}


class NothingThere(nn.Module):
    """There is not one element that is not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(2, 3, 3)

    def forward(self, image: Tensor) -> Tensor:
        out = self.project(image)
        return out if image.any() else torch.zeros_like(out)

    def example(self) -> Inputs:
        return {"image": _normal(1, 2, 6, 6)}


class BrightImage(nn.Module):
    """The mean of an image between 0 and 1 is above 0.8."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, pixels: Tensor) -> Tensor:
        if pixels.mean() > 0.8:
            pixels = 1 - pixels
        return self.head(torch.relu(self.stem(pixels)).mean((2, 3)))

    def example(self) -> Inputs:
        return {"pixels": torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))}


class OrderOfTwo(nn.Module):
    """Which of two inputs is larger on the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.join = nn.Linear(8, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        pair = (a, b) if a.norm() >= b.norm() else (b, a)
        return self.join(torch.cat(pair, -1))

    def example(self) -> Inputs:
        return {"a": _normal(2, 4) * 2, "b": _normal(2, 4, seed=1)}


class FlagGiven(nn.Module):
    """A truth value is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)

    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        return self.project(x).flip(-1) if flag else self.project(x)

    def example(self) -> Inputs:
        return {"x": _normal(2, 4), "flag": torch.tensor(False)}


class StepsGiven(nn.Module):
    """The number of steps is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        for _ in range(int(steps)):
            x = x + torch.tanh(self.step(x))
        return x

    def example(self) -> Inputs:
        return {"x": _normal(2, 4), "steps": torch.tensor(3)}
