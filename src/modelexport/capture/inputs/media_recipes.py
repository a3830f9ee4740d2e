"""Input recipes for images, sound and time series: shapes from configuration fields, values that a model can take.

Each table maps the name of an argument of `forward` to a recipe (input_recipe.py). Sizes are read from the field that
the model's own layers were built from:

    pixel_values   (batch, num_channels, image_size, image_size)            ViT: 2x3x224x224
    input_values   (batch, samples), long enough for the convolutions       wav2vec 2.0: 2x3920, which is 12 frames
    input_features (batch, num_mel_bins, 2 * max_source_positions)          Whisper: 2x80x3000
    past_values    (batch, context_length + the longest lag)                a time series transformer

A new kind of image, sound or series input is one entry in a table below, and a function for its shape if
`context.per_sample` does not say it already. Fields: https://huggingface.co/docs/transformers/main_classes/configuration
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from modelexport.capture.inputs.input_recipe import InputRecipe, RandomSource, RecipeContext, Shape, ones, wanted_with
from modelexport.capture.inputs.specs import AUDIO_SAMPLES, DECODER_SEQUENCE

_VISION = ("vision", "image", "visual")
_SIZE_FIELDS = ("image_size", "img_size", "crop_size", "input_size")
USUAL_SIZE = (224, 224)
# Patches along each side of a sample image, before neighbours are merged.
_GRID_CELLS = 2


def image_size(context: RecipeContext) -> tuple[int, int]:
    """Height and width: the configuration's, else the preprocessor's, else what most models are used with."""
    return size_pair(context.fields.find(*_SIZE_FIELDS, within=_VISION)) or context.image_size or USUAL_SIZE


def size_pair(size: object) -> tuple[int, int] | None:
    """Configurations write a size as a number, a pair or a dictionary."""
    match size:
        case bool():
            return None
        case {"height": int(height), "width": int(width)} | [int(height), int(width)]:
            return height, width
        case int(edge) | {"shortest_edge": int(edge)}:
            return edge, edge
    return None


def _channels(context: RecipeContext) -> int:
    return context.fields.number("num_channels", "in_channels", "in_chans", within=_VISION) or 3


def _takes_images(context: RecipeContext) -> bool:
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
    return (context.batch, *((1, *picture) if "pixel_attention_mask" in context.accepted else picture))


def _video(context: RecipeContext) -> Shape | None:
    frames = context.fields.number("frames_per_clip", "num_frames", within=_VISION)
    return context.per_sample(frames, _channels(context), *image_size(context))


def _grid_side(context: RecipeContext) -> int:
    return _GRID_CELLS * (context.fields.number("spatial_merge_size", within=_VISION) or 1)


def _flattened_patches(context: RecipeContext) -> Shape:
    """All patches of all images in one list, each flattened over channels, frames and pixels."""
    patch = context.fields.number("patch_size", within=_VISION) or 1
    frames = context.fields.number("temporal_patch_size", within=_VISION) or 1
    return (context.batch * _grid_side(context) ** 2, _channels(context) * frames * patch**2)


def _grid(context: RecipeContext, shape: Shape, _source: RandomSource) -> torch.Tensor:
    """One frame, and as many patches down as across."""
    side = _grid_side(context)
    return torch.tensor([1, side, side]).expand(shape).clone()


def _patches(context: RecipeContext) -> Shape | None:
    patch = size_pair(context.fields.find("patch_size", within=_VISION))
    height, width = image_size(context)
    return None if patch is None else (context.batch, (height // patch[0]) * (width // patch[1]))


def _document_patches(context: RecipeContext) -> Shape | None:
    width = context.fields.number("patch_embed_hidden_size", within=_VISION)
    return context.per_sample(_GRID_CELLS**2, None if width is None else 2 + width)  # row, column, then the pixels


def _positioned_patches(_context: RecipeContext, shape: Shape, source: RandomSource) -> torch.Tensor:
    """Each patch starts with its row and column, counted from 1."""
    patches = source.normal(shape)
    index = torch.arange(shape[1])
    patches[..., 0] = (index // _GRID_CELLS + 1).to(patches.dtype)
    patches[..., 1] = (index % _GRID_CELLS + 1).to(patches.dtype)
    return patches


VISION_RECIPES: Mapping[str, InputRecipe] = {
    "pixel_values": InputRecipe(_image, wanted=_takes_images),
    "pixel_values_videos": InputRecipe(_video),
    "pixel_mask": InputRecipe(lambda context: (context.batch, *image_size(context)), ones),
    "image_grid_thw": InputRecipe(lambda context: (context.batch, 3), _grid, _takes_images),
    "image_sizes": InputRecipe(
        lambda context: (context.batch, 2),
        lambda context, shape, _source: torch.tensor(image_size(context)).expand(shape).clone(),
    ),
    # Nothing is masked: a mask is what pretraining adds.
    "bool_masked_pos": InputRecipe(_patches, lambda _context, shape, _source: torch.zeros(shape, dtype=torch.bool)),
    "flattened_patches": InputRecipe(_document_patches, _positioned_patches),
}

_AUDIO = ("audio", "speech")
# Frames that an encoder makes of a sample sound.
_FRAMES_OUT = 12
# Encoders that embed the position of each frame have halved the number of frames by a convolution before.
_POSITION_STRIDE = 2


def _samples(context: RecipeContext) -> Shape | None:
    """Spectrogram patches, codec channels, or a waveform long enough for the convolutions that read it."""
    fields = context.fields
    bins, length = fields.number("num_mel_bins", within=_AUDIO), fields.number("max_length", within=_AUDIO)
    if bins and length and fields.find("frequency_stride", within=_AUDIO):
        return (context.batch, length, bins)
    channels = fields.number("audio_channels", within=_AUDIO)
    if channels:
        return (context.batch, channels, _codec_length(context))
    return context.per_sample(context.sizes.get(AUDIO_SAMPLES) or _waveform_length(context))


def _codec_length(context: RecipeContext) -> int:
    ratios = context.fields.find("upsampling_ratios", "downsampling_ratios", within=_AUDIO)
    hop = prod(ratios) if ratios else context.fields.number("hop_length", within=_AUDIO) or 1
    return int(hop) * _FRAMES_OUT


def _waveform_length(context: RecipeContext) -> int | None:
    """The samples that a stack of convolutions turns into `_FRAMES_OUT` frames, computed from its end.

    length before a convolution = (length after - 1) * stride + kernel
    """
    kernels = context.fields.find("conv_kernel", within=_AUDIO)
    strides = context.fields.find("conv_stride", within=_AUDIO)
    listed = isinstance(kernels, Sequence) and isinstance(strides, Sequence)
    convolutions = tuple(zip(kernels, strides, strict=False)) if listed else context.convolutions
    if not convolutions:
        return None
    length = _FRAMES_OUT
    for kernel, stride in reversed(convolutions):
        length = (length - 1) * stride + kernel
    return length


def list_waveform_convolutions(module: torch.nn.Module) -> tuple[tuple[int, int], ...]:
    """Kernel and stride of the convolutions that read a waveform: from the first one of a single channel, as a chain.

    Conv1d(1, 32, 127, stride=64), Conv1d(32, 64, 7, stride=3), …      ((127, 64), (7, 3), …)
    """
    chain: list[torch.nn.Conv1d] = []
    for part in module.modules():
        if isinstance(part, torch.nn.Conv1d) and part.in_channels == (chain[-1].out_channels if chain else 1):
            chain.append(part)
    return tuple((part.kernel_size[0], part.stride[0]) for part in chain)


def _features(context: RecipeContext) -> Shape | None:
    fields, frames = context.fields, context.size("frames")
    per_frame = fields.number("input_feat_per_channel", "feature_projection_input_dim", within=_AUDIO)
    if per_frame:
        return (context.batch, frames, per_frame)
    bins = fields.number("num_mel_bins", within=_AUDIO)
    if bins is None:
        return None
    positions = fields.number("max_source_positions", within=_AUDIO)
    if positions:
        return (context.batch, bins, _POSITION_STRIDE * positions)
    side = fields.number("spec_size", within=_AUDIO)  # a spectrogram folded into a square image
    return (context.batch, 1, side * (side // bins), bins) if side else (context.batch, frames, bins)


def _features_mask(context: RecipeContext) -> Shape | None:
    shape = _features(context)
    # Frames come last where mel bins come first: see _features.
    frames_axis = 2 if context.fields.number("max_source_positions", within=_AUDIO) else 1
    return None if shape is None else (context.batch, shape[frames_axis])


def _needs_waveform(context: RecipeContext) -> bool:
    encoded = [name for name in context.chosen if not name.startswith("decoder_")]
    return not encoded and _waveform_length(context) is not None


def _generates_speech(context: RecipeContext) -> bool:
    return bool(context.fields.own("is_encoder_decoder")) and context.fields.number("num_mel_bins") is not None


AUDIO_RECIPES: Mapping[str, InputRecipe] = {
    "input_values": InputRecipe(_samples, wanted=_needs_waveform),
    "input_features": InputRecipe(_features, wanted=lambda context: _features(context) is not None),
    "input_features_mask": InputRecipe(_features_mask, ones),
    "feature_attention_mask": InputRecipe(_features_mask, ones, wanted_with("input_features")),
    "decoder_input_values": InputRecipe(
        lambda context: context.per_sample(context.size(DECODER_SEQUENCE), context.fields.number("num_mel_bins")),
        wanted=_generates_speech,
    ),
    "speaker_embeddings": InputRecipe(
        lambda context: context.per_sample(context.fields.number("speaker_embedding_dim")), wanted=_generates_speech
    ),
}


def _past_length(context: RecipeContext) -> int | None:
    """Lagged values reach further back than the window that the model attends to."""
    length = context.fields.number("context_length")
    lags = context.fields.find("lags_sequence")
    return length + max(lags) if length and lags else length


def _values(context: RecipeContext, length: int | None) -> Shape | None:
    channels = context.fields.number("num_input_channels") or context.fields.number("input_size") or 1
    return context.per_sample(length, channels) if channels > 1 else context.per_sample(length)


def _times(context: RecipeContext, length: int | None) -> Shape | None:
    return context.per_sample(length, context.fields.number("num_time_features"))


def _future_length(context: RecipeContext) -> int | None:
    return context.fields.number("prediction_length")


def _has_lags(context: RecipeContext) -> bool:
    return bool(context.fields.find("lags_sequence"))


def _categories(context: RecipeContext) -> Shape | None:
    return context.per_sample(context.fields.number("num_static_categorical_features") or None)


def _reals(context: RecipeContext) -> Shape | None:
    return context.per_sample(context.fields.number("num_static_real_features") or None)


SERIES_RECIPES: Mapping[str, InputRecipe] = {
    "past_values": InputRecipe(lambda context: _values(context, _past_length(context))),
    "past_time_features": InputRecipe(lambda context: _times(context, _past_length(context))),
    "past_observed_mask": InputRecipe(
        lambda context: _values(context, _past_length(context)),
        # A mask of floats: the model multiplies with it.
        lambda context, shape, _source: torch.ones(shape, dtype=context.floating),
        _has_lags,
    ),
    "future_values": InputRecipe(lambda context: _values(context, _future_length(context)), wanted=_has_lags),
    "future_time_features": InputRecipe(lambda context: _times(context, _future_length(context)), wanted=_has_lags),
    "static_categorical_features": InputRecipe(
        _categories,
        # Each feature has a table of its own; what the smallest holds is valid in all.
        lambda context, shape, source: source.integers(0, min(context.fields.find("cardinality") or [1]), shape),
        lambda context: _categories(context) is not None,
    ),
    "static_real_features": InputRecipe(_reals, wanted=lambda context: _reals(context) is not None),
}
