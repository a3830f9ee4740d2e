"""Recipes for time series: a past window, what is known of the future, and features of the series itself."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from modelexport.capture.inputs.recipe import Recipe, Shape, floats
from modelexport.capture.inputs.scene import Sampler, Scene


def _past_length(scene: Scene) -> int | None:
    """Lagged values reach further back than the window that the model attends to."""
    length = scene.fields.number("context_length")
    lags = scene.fields.find("lags_sequence")
    return length + max(lags) if length and lags else length


def _values(scene: Scene, length: int | None) -> Shape | None:
    if length is None:
        return None
    channels = scene.fields.number("num_input_channels") or scene.fields.number("input_size") or 1
    return (scene.batch, length, channels) if channels > 1 else (scene.batch, length)


def _past_values(scene: Scene) -> Shape | None:
    return _values(scene, _past_length(scene))


def _future_values(scene: Scene) -> Shape | None:
    return _values(scene, scene.fields.number("prediction_length"))


def _past_times(scene: Scene) -> Shape | None:
    length, count = _past_length(scene), scene.fields.number("num_time_features")
    return None if length is None or count is None else (scene.batch, length, count)


def _future_times(scene: Scene) -> Shape | None:
    length, count = scene.fields.number("prediction_length"), scene.fields.number("num_time_features")
    return None if length is None or count is None else (scene.batch, length, count)


def _observed(scene: Scene, shape: Shape, _sampler: Sampler) -> torch.Tensor:
    return torch.ones(shape, dtype=scene.floating)


def _has_lags(scene: Scene) -> bool:
    return bool(scene.fields.find("lags_sequence"))


def _categories(scene: Scene) -> Shape | None:
    count = scene.fields.number("num_static_categorical_features")
    return (scene.batch, count) if count else None


def _category_values(scene: Scene, shape: Shape, sampler: Sampler) -> torch.Tensor:
    cardinalities = scene.fields.find("cardinality") or [1]
    return sampler.integers(0, min(cardinalities), shape)


def _reals(scene: Scene) -> Shape | None:
    count = scene.fields.number("num_static_real_features")
    return (scene.batch, count) if count else None


SERIES_RECIPES: Mapping[str, Recipe] = {
    "past_values": Recipe(_past_values, floats),
    "past_time_features": Recipe(_past_times, floats),
    "past_observed_mask": Recipe(_past_values, _observed, _has_lags),
    "future_values": Recipe(_future_values, floats, _has_lags),
    "future_time_features": Recipe(_future_times, floats, _has_lags),
    "static_categorical_features": Recipe(_categories, _category_values, lambda scene: _categories(scene) is not None),
    "static_real_features": Recipe(_reals, floats, lambda scene: _reals(scene) is not None),
}
