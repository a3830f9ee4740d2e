"""Making one tensor, from its recipe or from what the user specified."""

from __future__ import annotations

import torch

from modelexport.capture.inputs.recipes import RECIPES
from modelexport.capture.inputs.request import InputSpec
from modelexport.capture.inputs.scene import Sampler, Scene
from modelexport.capture.inputs.spec import dtype_named
from modelexport.errors import InputError

# Small enough for any embedding table, and still more than one value.
_SAFE_INTEGERS = (0, 1)


def fill_recipe(scene: Scene, name: str) -> torch.Tensor:
    recipe = RECIPES[name]
    shape = recipe.shape(scene)
    assert shape is not None, name
    return recipe.fill(scene, shape, scene.sampler(name))


def fill_spec(scene: Scene, spec: InputSpec) -> torch.Tensor:
    try:
        return _filled(scene, spec)
    except (RuntimeError, MemoryError) as error:
        # torch has no class of its own for this; on the CPU it is the one thing that can fail here.
        raise InputError(
            f"input {spec.name!r}: a tensor of shape {'x'.join(map(str, spec.shape))} does not fit into memory",
            "Give a smaller shape.",
        ) from error


def _filled(scene: Scene, spec: InputSpec) -> torch.Tensor:
    """The shape and dtype are the user's; the values are those of the recipe, if the name has one."""
    dtype = None if spec.dtype is None else dtype_named(spec.dtype, spec.name)
    sampler = scene.sampler(spec.name)
    recipe = RECIPES.get(spec.name)
    if spec.bounds is not None:
        return _between(spec, dtype or _usual_dtype(scene, spec), sampler)
    if recipe is None or scene.fields.config is None:
        return _plain(spec.shape, dtype or _usual_dtype(scene, spec), sampler)
    try:
        made = recipe.fill(scene, spec.shape, sampler)
    except (RuntimeError, IndexError) as error:
        raise InputError(f"input {spec.name!r} cannot have the shape {spec.shape}: {error}") from error
    if made.shape != spec.shape:
        raise InputError(f"input {spec.name!r} cannot have the shape {spec.shape}, only one like {tuple(made.shape)}")
    return made if dtype is None else made.to(dtype)


def _usual_dtype(scene: Scene, spec: InputSpec) -> torch.dtype:
    """Names of ids and masks hold integers wherever they occur; anything else is taken for numbers."""
    return torch.int64 if spec.name.endswith(("_ids", "_mask")) else scene.floating


def _between(spec: InputSpec, dtype: torch.dtype, sampler: Sampler) -> torch.Tensor:
    assert spec.bounds is not None
    low, high = spec.bounds
    if dtype.is_floating_point:
        return sampler.uniform(low, high, spec.shape).to(dtype)
    return sampler.integers(int(low), int(high) + 1, spec.shape).to(dtype)


def _plain(shape: tuple[int, ...], dtype: torch.dtype, sampler: Sampler) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.ones(shape, dtype=dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return sampler.normal(shape).to(dtype)
    low, high = _SAFE_INTEGERS
    return sampler.integers(low, high + 1, shape).to(dtype)
