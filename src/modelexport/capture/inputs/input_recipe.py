"""A recipe: how to shape and how to fill an input of a given name.

What a recipe may look at while it makes one input, and the random numbers it makes it from.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from modelexport.capture.inputs.specs import AUDIO_SAMPLES, BATCH, DECODER_SEQUENCE, SEQUENCE, ConfigFields

# All different, so that torch never takes two of these axes for one.
DEFAULT_SIZES: Mapping[str, int] = {
    BATCH: 2,
    SEQUENCE: 8,
    DECODER_SEQUENCE: 6,
    AUDIO_SAMPLES: 0,
    "frames": 40,
}


@dataclass(frozen=True)
class RecipeContext:
    """The surroundings of one input.

    `accepted` is what forward takes, `chosen` what is being made or given. `sizes` holds the sizes that the
    user fixed, by axis name; `tokens_shape` is the shape of input_ids if given. `image_size` is that of the
    preprocessor, for a configuration that names none.
    """

    fields: ConfigFields
    accepted: frozenset[str]
    chosen: frozenset[str]
    sizes: Mapping[str, int]
    floating: torch.dtype
    seed: int
    tokens_shape: tuple[int, ...] | None = None
    image_size: tuple[int, int] | None = None

    def size(self, axis: str) -> int:
        if axis in self.sizes:
            return self.sizes[axis]
        limit = self.fields.number("max_position_embeddings") if axis == SEQUENCE else None
        default = DEFAULT_SIZES.get(axis, DEFAULT_SIZES[SEQUENCE] + 1)
        return min(default, limit) if limit and limit > 1 else default

    @property
    def batch(self) -> int:
        return self.size(BATCH)

    def sampler(self, name: str) -> RandomSource:
        """Random numbers for one input, independent of which other inputs are made."""
        generator = torch.Generator().manual_seed(self.seed + zlib.crc32(name.encode()))
        return RandomSource(generator, self.floating)


@dataclass(frozen=True)
class RandomSource:
    """Random tensors that never touch the global random state."""

    generator: torch.Generator
    floating: torch.dtype

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.floating)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Integers from `low` up to and without `high`."""
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    def choice(self, allowed: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return allowed[self.integers(0, len(allowed), shape)]

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> torch.Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.generator)


Shape = tuple[int, ...]


def never(_context: RecipeContext) -> bool:
    return False


def floats(_context: RecipeContext, shape: Shape, sampler: RandomSource) -> torch.Tensor:
    return sampler.normal(shape)


def ones(_context: RecipeContext, shape: Shape, _sampler: RandomSource) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)


def zeros(_context: RecipeContext, shape: Shape, _sampler: RandomSource) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@dataclass(frozen=True)
class InputRecipe:
    """`shape` gives None where the configuration says too little; `fill` takes any shape the user asks for.

    `wanted` says whether to make an input that forward does not require.
    """

    shape: Callable[[RecipeContext], Shape | None]
    fill: Callable[[RecipeContext, Shape, RandomSource], torch.Tensor] = floats
    wanted: Callable[[RecipeContext], bool] = never
