"""Recipes for sound: raw samples, mel spectrograms and other features per frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from modelexport.capture.inputs.axes import AUDIO_SAMPLES, DECODER_SEQUENCE
from modelexport.capture.inputs.recipe import Recipe, Shape, floats, ones
from modelexport.capture.inputs.scene import Scene

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
