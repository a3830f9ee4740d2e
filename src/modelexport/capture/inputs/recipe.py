"""A recipe: how to shape and how to fill an input of a given name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from modelexport.capture.inputs.scene import Sampler, Scene

Shape = tuple[int, ...]


def never(_scene: Scene) -> bool:
    return False


def floats(_scene: Scene, shape: Shape, sampler: Sampler) -> torch.Tensor:
    return sampler.normal(shape)


def ones(_scene: Scene, shape: Shape, _sampler: Sampler) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)


def zeros(_scene: Scene, shape: Shape, _sampler: Sampler) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@dataclass(frozen=True)
class Recipe:
    """`shape` gives None where the configuration says too little; `fill` takes any shape the user asks for.

    `wanted` says whether to make an input that forward does not require.
    """

    shape: Callable[[Scene], Shape | None]
    fill: Callable[[Scene, Shape, Sampler], torch.Tensor] = floats
    wanted: Callable[[Scene], bool] = never
