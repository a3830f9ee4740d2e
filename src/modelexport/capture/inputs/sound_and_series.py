"""Recipes for sound: raw samples, mel spectrograms and other features per frame.

Recipes for time series: a past window, what is known of the future, and features of the series itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from modelexport.capture.inputs.input_recipe import InputRecipe, RandomSource, RecipeContext, Shape, floats, ones
from modelexport.capture.inputs.specs import AUDIO_SAMPLES, DECODER_SEQUENCE

_AUDIO = ("audio", "speech")
_FRAMES_OUT = 12
# Encoders that embed the position of each frame have halved the number of frames by a convolution before.
_POSITION_STRIDE = 2


def _frames(context: RecipeContext) -> int:
    return context.size("frames")


def _samples(context: RecipeContext) -> Shape | None:
    """Spectrogram patches, codec channels, or a waveform long enough for the convolutions that read it."""
    fields = context.fields
    bins, length = fields.number("num_mel_bins", within=_AUDIO), fields.number("max_length", within=_AUDIO)
    if bins and length and fields.find("frequency_stride", within=_AUDIO):
        return (context.batch, length, bins)
    channels = fields.number("audio_channels", within=_AUDIO)
    if channels:
        return (context.batch, channels, _codec_length(context))
    waveform = context.sizes.get(AUDIO_SAMPLES) or _waveform_length(context)
    return None if waveform is None else (context.batch, waveform)


def _codec_length(context: RecipeContext) -> int:
    ratios = context.fields.find("upsampling_ratios", "downsampling_ratios", within=_AUDIO)
    hop = prod(ratios) if ratios else context.fields.number("hop_length", within=_AUDIO) or 1
    return int(hop) * _FRAMES_OUT


def _waveform_length(context: RecipeContext) -> int | None:
    """The samples that a stack of convolutions turns into `_FRAMES_OUT` frames, computed from its end."""
    kernels = context.fields.find("conv_kernel", within=_AUDIO)
    strides = context.fields.find("conv_stride", within=_AUDIO)
    if not isinstance(kernels, Sequence) or not isinstance(strides, Sequence):
        return None
    length = _FRAMES_OUT
    for kernel, stride in reversed(list(zip(kernels, strides, strict=False))):
        length = (length - 1) * stride + kernel
    return length


def _features(context: RecipeContext) -> Shape | None:
    fields = context.fields
    per_frame = fields.number("input_feat_per_channel", "feature_projection_input_dim", within=_AUDIO)
    if per_frame:
        return (context.batch, _frames(context), per_frame)
    bins = fields.number("num_mel_bins", within=_AUDIO)
    if bins is None:
        return None
    positions = fields.number("max_source_positions", within=_AUDIO)
    if positions:
        return (context.batch, bins, _POSITION_STRIDE * positions)
    side = fields.number("spec_size", within=_AUDIO)
    return (context.batch, 1, side * (side // bins), bins) if side else (context.batch, _frames(context), bins)


def _features_mask(context: RecipeContext) -> Shape | None:
    shape = _features(context)
    if shape is None:
        return None
    frames = shape[2] if context.fields.number("max_source_positions", within=_AUDIO) else shape[1]
    return (context.batch, frames)


def _listens(context: RecipeContext) -> bool:
    encoded = [name for name in context.chosen if not name.startswith("decoder_")]
    return not encoded and _waveform_length(context) is not None


def _hears(context: RecipeContext) -> bool:
    return _features(context) is not None


def _decoder_spectrogram(context: RecipeContext) -> Shape | None:
    bins = context.fields.number("num_mel_bins")
    return None if bins is None else (context.batch, context.size(DECODER_SEQUENCE), bins)


def _speaks(context: RecipeContext) -> bool:
    return bool(context.fields.own("is_encoder_decoder")) and context.fields.number("num_mel_bins") is not None


def _speaker(context: RecipeContext) -> Shape | None:
    width = context.fields.number("speaker_embedding_dim")
    return None if width is None else (context.batch, width)


AUDIO_RECIPES: Mapping[str, InputRecipe] = {
    "input_values": InputRecipe(_samples, floats, _listens),
    "input_features": InputRecipe(_features, floats, _hears),
    "input_features_mask": InputRecipe(_features_mask, ones),
    "feature_attention_mask": InputRecipe(_features_mask, ones, lambda context: "input_features" in context.chosen),
    "decoder_input_values": InputRecipe(_decoder_spectrogram, floats, _speaks),
    "speaker_embeddings": InputRecipe(_speaker, floats, _speaks),
}


def _past_length(context: RecipeContext) -> int | None:
    """Lagged values reach further back than the window that the model attends to."""
    length = context.fields.number("context_length")
    lags = context.fields.find("lags_sequence")
    return length + max(lags) if length and lags else length


def _values(context: RecipeContext, length: int | None) -> Shape | None:
    if length is None:
        return None
    channels = context.fields.number("num_input_channels") or context.fields.number("input_size") or 1
    return (context.batch, length, channels) if channels > 1 else (context.batch, length)


def _past_values(context: RecipeContext) -> Shape | None:
    return _values(context, _past_length(context))


def _future_values(context: RecipeContext) -> Shape | None:
    return _values(context, context.fields.number("prediction_length"))


def _past_times(context: RecipeContext) -> Shape | None:
    length, count = _past_length(context), context.fields.number("num_time_features")
    return None if length is None or count is None else (context.batch, length, count)


def _future_times(context: RecipeContext) -> Shape | None:
    length, count = context.fields.number("prediction_length"), context.fields.number("num_time_features")
    return None if length is None or count is None else (context.batch, length, count)


def _observed(context: RecipeContext, shape: Shape, _sampler: RandomSource) -> torch.Tensor:
    return torch.ones(shape, dtype=context.floating)


def _has_lags(context: RecipeContext) -> bool:
    return bool(context.fields.find("lags_sequence"))


def _categories(context: RecipeContext) -> Shape | None:
    count = context.fields.number("num_static_categorical_features")
    return (context.batch, count) if count else None


def _category_values(context: RecipeContext, shape: Shape, sampler: RandomSource) -> torch.Tensor:
    cardinalities = context.fields.find("cardinality") or [1]
    return sampler.integers(0, min(cardinalities), shape)


def _reals(context: RecipeContext) -> Shape | None:
    count = context.fields.number("num_static_real_features")
    return (context.batch, count) if count else None


SERIES_RECIPES: Mapping[str, InputRecipe] = {
    "past_values": InputRecipe(_past_values, floats),
    "past_time_features": InputRecipe(_past_times, floats),
    "past_observed_mask": InputRecipe(_past_values, _observed, _has_lags),
    "future_values": InputRecipe(_future_values, floats, _has_lags),
    "future_time_features": InputRecipe(_future_times, floats, _has_lags),
    "static_categorical_features": InputRecipe(
        _categories, _category_values, lambda context: _categories(context) is not None
    ),
    "static_real_features": InputRecipe(_reals, floats, lambda context: _reals(context) is not None),
}
