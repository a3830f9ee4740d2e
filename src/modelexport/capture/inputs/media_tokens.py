"""Placeholder tokens: text in which an image or a sound stands must hold one token for each of its features.

How many that are depends on the model's own pooling, cropping and merging, so the model is asked: it computes
the features of the sample once, and they are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from modelexport.capture.inputs.fields import Fields
from modelexport.capture.loading.third_party import quiet


@dataclass(frozen=True)
class Medium:
    """A kind of medium: its inputs, the fields that name its token, the method that computes its features."""

    inputs: tuple[str, ...]
    token_fields: tuple[str, ...]
    method: str
    kind: int


_MARKED = ("input_ids", "mm_token_type_ids")

MEDIA = (
    Medium(
        ("pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask"),
        ("image_token_id", "image_token_index"),
        "get_image_features",
        1,
    ),
    Medium(
        ("input_features", "feature_attention_mask", "input_features_mask"),
        ("audio_token_id", "audio_token_index"),
        "get_audio_features",
        3,
    ),
)


@dataclass(frozen=True)
class Placeholders:
    """`count` tokens with this id in every row of the sample text; `kind` is their mm_token_type_id."""

    token: int
    count: int
    kind: int


def media_inputs() -> frozenset[str]:
    return frozenset(name for medium in MEDIA for name in medium.inputs)


def token_of(medium: Medium, fields: Fields) -> int | None:
    return fields.number(*medium.token_fields)


def absent_media(fields: Fields, tokens: torch.Tensor | None) -> frozenset[str]:
    """Inputs of media that the given text has no placeholder for."""
    if tokens is None:
        return frozenset()
    absent: set[str] = set()
    for medium in MEDIA:
        token = token_of(medium, fields)
        if token is not None and not bool((tokens == token).any()):
            absent.update(medium.inputs)
    return frozenset(absent)


def count_placeholders(
    module: torch.nn.Module, fields: Fields, values: Mapping[str, torch.Tensor], batch: int
) -> tuple[Placeholders | None, ...]:
    """For each medium: its placeholders, or None if it has none or the model cannot be asked."""
    return tuple(_count(module, medium, token_of(medium, fields), values, batch) for medium in MEDIA)


def _count(
    module: torch.nn.Module, medium: Medium, token: int | None, values: Mapping[str, torch.Tensor], batch: int
) -> Placeholders | None:
    given = {name: values[name] for name in medium.inputs if name in values}
    method = getattr(module, medium.method, None)
    if token is None or method is None or medium.inputs[0] not in given:
        return None
    try:
        with quiet(), torch.no_grad():
            features = method(**given)
    except Exception:  # noqa: BLE001 - a model that cannot be asked is run on text alone, and the caller says so
        return None
    rows = _rows(getattr(features, "pooler_output", features))
    return Placeholders(token, rows // batch, medium.kind) if rows else None


def _rows(features: object) -> int:
    """Feature vectors in a tensor, or in the list of them that models with several image sizes give."""
    if isinstance(features, torch.Tensor):
        return features.numel() // features.shape[-1]
    return sum(_rows(each) for each in features) if isinstance(features, (list, tuple)) else 0


def place(values: Mapping[str, torch.Tensor], media: Collection[Placeholders]) -> Mapping[str, torch.Tensor]:
    """Write the placeholders after the first token, one medium after the other, and mark their kind."""
    placed, start = {name: values[name].clone() for name in _MARKED if name in values}, 1
    for medium in media:
        for name, tensor in placed.items():
            tensor[:, start : start + medium.count] = medium.token if name == "input_ids" else medium.kind
        start += medium.count
    return {**values, **placed}
