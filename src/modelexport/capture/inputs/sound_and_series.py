"""Recipes for sound: raw samples, mel spectrograms and other features per frame.

Recipes for time series: a past window, what is known of the future, and features of the series itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from modelexport.capture.inputs.recipe import Recipe, Sampler, Scene, Shape, floats, ones
from modelexport.capture.inputs.specs import AUDIO_SAMPLES, DECODER_SEQUENCE

_AUDIO = ("audio", "speech")
_FRAMES_OUT = 12
# Encoders that embed the position of each frame have halved the number of frames by a convolution before.
_POSITION_STRIDE = 2


def _frames(scene: Scene) -> int:
    return scene.size("frames")


def _samples(scene: Scene) -> Shape | None:
    """Spectrogram patches, codec channels, or a waveform long enough for the convolutions that read it."""
    fields = scene.fields
    bins, length = fields.number("num_mel_bins", within=_AUDIO), fields.number("max_length", within=_AUDIO)
    if bins and length and fields.find("frequency_stride", within=_AUDIO):
        return (scene.batch, length, bins)
    channels = fields.number("audio_channels", within=_AUDIO)
    if channels:
        return (scene.batch, channels, _codec_length(scene))
    waveform = scene.sizes.get(AUDIO_SAMPLES) or _waveform_length(scene)
    return None if waveform is None else (scene.batch, waveform)


def _codec_length(scene: Scene) -> int:
    ratios = scene.fields.find("upsampling_ratios", "downsampling_ratios", within=_AUDIO)
    hop = prod(ratios) if ratios else scene.fields.number("hop_length", within=_AUDIO) or 1
    return int(hop) * _FRAMES_OUT


def _waveform_length(scene: Scene) -> int | None:
    """The samples that a stack of convolutions turns into `_FRAMES_OUT` frames, computed from its end."""
    kernels = scene.fields.find("conv_kernel", within=_AUDIO)
    strides = scene.fields.find("conv_stride", within=_AUDIO)
    if not isinstance(kernels, Sequence) or not isinstance(strides, Sequence):
        return None
    length = _FRAMES_OUT
    for kernel, stride in reversed(list(zip(kernels, strides, strict=False))):
        length = (length - 1) * stride + kernel
    return length


def _features(scene: Scene) -> Shape | None:
    fields = scene.fields
    per_frame = fields.number("input_feat_per_channel", "feature_projection_input_dim", within=_AUDIO)
    if per_frame:
        return (scene.batch, _frames(scene), per_frame)
    bins = fields.number("num_mel_bins", within=_AUDIO)
    if bins is None:
        return None
    positions = fields.number("max_source_positions", within=_AUDIO)
    if positions:
        return (scene.batch, bins, _POSITION_STRIDE * positions)
    side = fields.number("spec_size", within=_AUDIO)
    return (scene.batch, 1, side * (side // bins), bins) if side else (scene.batch, _frames(scene), bins)


def _features_mask(scene: Scene) -> Shape | None:
    shape = _features(scene)
    if shape is None:
        return None
    frames = shape[2] if scene.fields.number("max_source_positions", within=_AUDIO) else shape[1]
    return (scene.batch, frames)


def _listens(scene: Scene) -> bool:
    encoded = [name for name in scene.chosen if not name.startswith("decoder_")]
    return not encoded and _waveform_length(scene) is not None


def _hears(scene: Scene) -> bool:
    return _features(scene) is not None


def _decoder_spectrogram(scene: Scene) -> Shape | None:
    bins = scene.fields.number("num_mel_bins")
    return None if bins is None else (scene.batch, scene.size(DECODER_SEQUENCE), bins)


def _speaks(scene: Scene) -> bool:
    return bool(scene.fields.own("is_encoder_decoder")) and scene.fields.number("num_mel_bins") is not None


def _speaker(scene: Scene) -> Shape | None:
    width = scene.fields.number("speaker_embedding_dim")
    return None if width is None else (scene.batch, width)


AUDIO_RECIPES: Mapping[str, Recipe] = {
    "input_values": Recipe(_samples, floats, _listens),
    "input_features": Recipe(_features, floats, _hears),
    "input_features_mask": Recipe(_features_mask, ones),
    "feature_attention_mask": Recipe(_features_mask, ones, lambda scene: "input_features" in scene.chosen),
    "decoder_input_values": Recipe(_decoder_spectrogram, floats, _speaks),
    "speaker_embeddings": Recipe(_speaker, floats, _speaks),
}


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
