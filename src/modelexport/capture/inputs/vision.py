"""Recipes for images and videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from modelexport.capture.inputs.recipe import Recipe, Sampler, Scene, Shape, floats, never, ones

_VISION = ("vision", "image", "visual")
_SIZE_FIELDS = ("image_size", "img_size", "crop_size", "input_size")
_USUAL_SIZE = (224, 224)
_GRID_CELLS = 2
_PLACE = 2


def image_size(scene: Scene) -> tuple[int, int]:
    """Height and width: the configuration's, else the preprocessor's, else what most models are used with."""
    found = scene.fields.find(*_SIZE_FIELDS, within=_VISION)
    return size_pair(found) or scene.image_size or _USUAL_SIZE


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


def _channels(scene: Scene) -> int:
    return scene.fields.number("num_channels", "in_channels", "in_chans", within=_VISION) or 3


def _sees(scene: Scene) -> bool:
    return scene.fields.find(*_SIZE_FIELDS, "patch_size", within=_VISION) is not None


def _image(scene: Scene) -> Shape | None:
    if scene.fields.config is None:
        return None
    if "image_grid_thw" in scene.chosen:
        return _flattened_patches(scene)
    picture = (_channels(scene), *image_size(scene))
    frames = scene.fields.number("num_frames", within=_VISION)
    if frames is not None:
        return (scene.batch, frames, *picture)
    # Models that mask pixels take several images per text.
    return (scene.batch, 1, *picture) if "pixel_attention_mask" in scene.accepted else (scene.batch, *picture)


def _video(scene: Scene) -> Shape | None:
    frames = scene.fields.number("frames_per_clip", "num_frames", within=_VISION)
    return None if frames is None else (scene.batch, frames, _channels(scene), *image_size(scene))


def _grid_side(scene: Scene) -> int:
    return _GRID_CELLS * (scene.fields.number("spatial_merge_size", within=_VISION) or 1)


def _flattened_patches(scene: Scene) -> Shape:
    """All patches of all images in one list, each flattened over channels, frames and pixels."""
    patch = scene.fields.number("patch_size", within=_VISION) or 1
    frames = scene.fields.number("temporal_patch_size", within=_VISION) or 1
    return (scene.batch * _grid_side(scene) ** 2, _channels(scene) * frames * patch**2)


def _grid(scene: Scene, shape: Shape, _sampler: Sampler) -> torch.Tensor:
    side = _grid_side(scene)
    return torch.tensor([1, side, side]).expand(shape).clone()


def _sizes(scene: Scene, shape: Shape, _sampler: Sampler) -> torch.Tensor:
    return torch.tensor(image_size(scene)).expand(shape).clone()


def _patches(scene: Scene) -> Shape | None:
    patch = size_pair(scene.fields.find("patch_size", within=_VISION))
    if patch is None:
        return None
    height, width = image_size(scene)
    return (scene.batch, (height // patch[0]) * (width // patch[1]))


def _unmasked(_scene: Scene, shape: Shape, _sampler: Sampler) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def _pixel_mask(scene: Scene) -> Shape:
    return (scene.batch, *image_size(scene))


def _document_patches(scene: Scene) -> Shape | None:
    width = scene.fields.number("patch_embed_hidden_size", within=_VISION)
    return None if width is None else (scene.batch, _GRID_CELLS**2, _PLACE + width)


def _placed_patches(_scene: Scene, shape: Shape, sampler: Sampler) -> torch.Tensor:
    """Each patch starts with its place: row and column, counted from 1."""
    patches = sampler.normal(shape)
    index = torch.arange(shape[1])
    places: Sequence[torch.Tensor] = (index // _GRID_CELLS + 1, index % _GRID_CELLS + 1)
    patches[..., 0], patches[..., 1] = (place.to(patches.dtype) for place in places)
    return patches


VISION_RECIPES: Mapping[str, Recipe] = {
    "pixel_values": Recipe(_image, floats, _sees),
    "pixel_values_videos": Recipe(_video, floats, never),
    "pixel_mask": Recipe(_pixel_mask, ones),
    "image_grid_thw": Recipe(lambda scene: (scene.batch, 3), _grid, _sees),
    "image_sizes": Recipe(lambda scene: (scene.batch, 2), _sizes),
    "bool_masked_pos": Recipe(_patches, _unmasked),
    "flattened_patches": Recipe(_document_patches, _placed_patches),
}
