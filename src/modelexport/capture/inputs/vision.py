"""Recipes for images and videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from modelexport.capture.inputs.input_recipe import InputRecipe, RandomSource, RecipeContext, Shape, floats, never, ones

_VISION = ("vision", "image", "visual")
_SIZE_FIELDS = ("image_size", "img_size", "crop_size", "input_size")
_USUAL_SIZE = (224, 224)
_GRID_CELLS = 2
_PLACE = 2


def image_size(context: RecipeContext) -> tuple[int, int]:
    """Height and width: the configuration's, else the preprocessor's, else what most models are used with."""
    found = context.fields.find(*_SIZE_FIELDS, within=_VISION)
    return size_pair(found) or context.image_size or _USUAL_SIZE


def size_pair(size: object) -> tuple[int, int] | None:
    """Configurations write a size as a number, a pair or a dictionary."""
    match size:
        case bool():
            return None
        case int():
            return size, size
        case {"height": int(height), "width": int(width)}:
            return height, width
        case {"shortest_edge": int(edge)}:
            return edge, edge
        case [int(height), int(width)]:
            return height, width
    return None


def _channels(context: RecipeContext) -> int:
    return context.fields.number("num_channels", "in_channels", "in_chans", within=_VISION) or 3


def _sees(context: RecipeContext) -> bool:
    return context.fields.find(*_SIZE_FIELDS, "patch_size", within=_VISION) is not None


def _image(context: RecipeContext) -> Shape | None:
    if context.fields.config is None:
        return None
    if "image_grid_thw" in context.chosen:
        return _flattened_patches(context)
    picture = (_channels(context), *image_size(context))
    frames = context.fields.number("num_frames", within=_VISION)
    if frames is not None:
        return (context.batch, frames, *picture)
    # Models that mask pixels take several images per text.
    return (context.batch, 1, *picture) if "pixel_attention_mask" in context.accepted else (context.batch, *picture)


def _video(context: RecipeContext) -> Shape | None:
    frames = context.fields.number("frames_per_clip", "num_frames", within=_VISION)
    return None if frames is None else (context.batch, frames, _channels(context), *image_size(context))


def _grid_side(context: RecipeContext) -> int:
    return _GRID_CELLS * (context.fields.number("spatial_merge_size", within=_VISION) or 1)


def _flattened_patches(context: RecipeContext) -> Shape:
    """All patches of all images in one list, each flattened over channels, frames and pixels."""
    patch = context.fields.number("patch_size", within=_VISION) or 1
    frames = context.fields.number("temporal_patch_size", within=_VISION) or 1
    return (context.batch * _grid_side(context) ** 2, _channels(context) * frames * patch**2)


def _grid(context: RecipeContext, shape: Shape, _sampler: RandomSource) -> torch.Tensor:
    side = _grid_side(context)
    return torch.tensor([1, side, side]).expand(shape).clone()


def _sizes(context: RecipeContext, shape: Shape, _sampler: RandomSource) -> torch.Tensor:
    return torch.tensor(image_size(context)).expand(shape).clone()


def _patches(context: RecipeContext) -> Shape | None:
    patch = size_pair(context.fields.find("patch_size", within=_VISION))
    if patch is None:
        return None
    height, width = image_size(context)
    return (context.batch, (height // patch[0]) * (width // patch[1]))


def _unmasked(_context: RecipeContext, shape: Shape, _sampler: RandomSource) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def _pixel_mask(context: RecipeContext) -> Shape:
    return (context.batch, *image_size(context))


def _document_patches(context: RecipeContext) -> Shape | None:
    width = context.fields.number("patch_embed_hidden_size", within=_VISION)
    return None if width is None else (context.batch, _GRID_CELLS**2, _PLACE + width)


def _placed_patches(_context: RecipeContext, shape: Shape, sampler: RandomSource) -> torch.Tensor:
    """Each patch starts with its place: row and column, counted from 1."""
    patches = sampler.normal(shape)
    index = torch.arange(shape[1])
    places: Sequence[torch.Tensor] = (index // _GRID_CELLS + 1, index % _GRID_CELLS + 1)
    patches[..., 0], patches[..., 1] = (place.to(patches.dtype) for place in places)
    return patches


VISION_RECIPES: Mapping[str, InputRecipe] = {
    "pixel_values": InputRecipe(_image, floats, _sees),
    "pixel_values_videos": InputRecipe(_video, floats, never),
    "pixel_mask": InputRecipe(_pixel_mask, ones),
    "image_grid_thw": InputRecipe(lambda context: (context.batch, 3), _grid, _sees),
    "image_sizes": InputRecipe(lambda context: (context.batch, 2), _sizes),
    "bool_masked_pos": InputRecipe(_patches, _unmasked),
    "flattened_patches": InputRecipe(_document_patches, _placed_patches),
}
