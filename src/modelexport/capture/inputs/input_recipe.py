"""Input recipe: how to shape and how to fill an input of a given name, and what a recipe may look at.

A recipe is three functions of a `RecipeContext`: the model's configuration, the inputs that `forward` accepts, those
that are chosen already, and the sizes that the user fixed.

    "attention_mask": InputRecipe(shape=tokens_shape, fill=ones, wanted=wanted_with("input_ids"))
        shape(context)                  (2, 8), or None where the configuration says too little
        fill(context, (2, 8), source)   a tensor of ones; the shape may also be one that the user gave
        wanted(context)                 whether to make it although `forward` does not require it

Tables of recipes: text_recipes.py, media_recipes.py. Who asks them, and in what order: make.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from modelexport.capture.inputs.specs import AUDIO_SAMPLES, BATCH, DECODER_SEQUENCE, SEQUENCE, ConfigFields

Shape = tuple[int, ...]

# All different, so that torch never takes two of these axes for one.
DEFAULT_SIZES: Mapping[str, int] = {BATCH: 2, SEQUENCE: 8, DECODER_SEQUENCE: 6, AUDIO_SAMPLES: 0, "frames": 40}


@dataclass(frozen=True)
class RecipeContext:
    """The surroundings of one input.

    accepted      what forward takes
    chosen        what is being made or given
    sizes         those that the user fixed, by axis name
    floating      the type of the model's own weights
    tokens_shape  the shape of input_ids if given
    image_size    that of the preprocessor, for a configuration that names none
    convolutions  kernel and stride of those that read a waveform, one after the other, likewise
    """

    fields: ConfigFields
    accepted: frozenset[str]
    chosen: frozenset[str]
    sizes: Mapping[str, int]
    floating: torch.dtype
    seed: int
    tokens_shape: Shape | None = None
    image_size: tuple[int, int] | None = None
    convolutions: tuple[tuple[int, int], ...] = ()

    def size(self, axis: str) -> int:
        """The size of an axis by its name, the user's first; a sequence is never longer than the model's positions."""
        if axis in self.sizes:
            return self.sizes[axis]
        limit = self.fields.number("max_position_embeddings") if axis == SEQUENCE else None
        default = DEFAULT_SIZES.get(axis, DEFAULT_SIZES[SEQUENCE] + 1)
        return min(default, limit) if limit and limit > 1 else default

    @property
    def batch(self) -> int:
        return self.size(BATCH)

    def per_sample(self, *sizes: int | None) -> Shape | None:
        """A batch of tensors of these sizes; None if one of them is not known."""
        known = tuple(size for size in sizes if size is not None)
        return (self.batch, *known) if len(known) == len(sizes) else None

    def random_source(self, name: str) -> RandomSource:
        """Random numbers for one input, independent of which other inputs are made."""
        return RandomSource(torch.Generator().manual_seed(self.seed + zlib.crc32(name.encode())), self.floating)


@dataclass(frozen=True)
class RandomSource:
    """Random tensors that never touch the global random state."""

    generator: torch.Generator
    floating: torch.dtype

    def normal(self, shape: Shape) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.floating)

    def integers(self, low: int, high: int, shape: Shape) -> torch.Tensor:
        """Integers from `low` up to and without `high`, which torch takes up to the largest of 64 bits."""
        largest = torch.iinfo(torch.int64).max
        low = min(low, largest - 1)
        return torch.randint(low, min(max(high, low + 1), largest), shape, generator=self.generator)

    def uniform(self, low: float, high: float, shape: Shape) -> torch.Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.generator)


def wanted_with(name: str) -> Callable[[RecipeContext], bool]:
    """For an input that goes with another one, as a mask goes with what it masks."""
    return lambda context: name in context.chosen


def floats(_context: RecipeContext, shape: Shape, source: RandomSource) -> torch.Tensor:
    return source.normal(shape)


def ones(_context: RecipeContext, shape: Shape, _source: RandomSource) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)


@dataclass(frozen=True)
class InputRecipe:
    shape: Callable[[RecipeContext], Shape | None]
    fill: Callable[[RecipeContext, Shape, RandomSource], torch.Tensor] = floats
    wanted: Callable[[RecipeContext], bool] = lambda _context: False
