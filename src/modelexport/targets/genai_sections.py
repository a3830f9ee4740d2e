"""Sections of `genai_config.json` beside the decoder's: encoders of images and sound, embeddings.

    vision      vision_encoder.onnx      pixel_values, image_grid_thw, …           image_features
    embedding   embedding.onnx           input_ids, image_features                 inputs_embeds
    encoder     encoder.onnx             audio_features                            encoder_hidden_states, keys, values

What onnxruntime-genai 0.18 does with them, as observed on exported files:

images      The caller hands over what the vision encoder takes, and `num_image_tokens`, by `Generator.set_inputs`. The
            encoder runs once, the embedding in every step: with no features at all after the first one.
positions   Of one dimension, by `ANY_VISION`, which runs any such model. Of three (time, height, width), which it
            computes from `image_grid_thw` by a rule of its own: `GRID_TYPES` are models whose tokens were seen to be
            those of `generate`.
sound       Spectrograms of exactly 3000 frames. Keys and values of the encoder's states come from the encoder.

https://onnxruntime.ai/docs/genai/reference/config.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelexport.record.configuration import ModelConfiguration
from modelexport.targets.contract import ComponentGraph, ModelFacts, show_shape

VISION, EMBEDDING, ENCODER = "vision_encoder", "embedding", "encoder"
ANY_VISION = "gemma3"
# Models with positions in time, height and width, and the type whose code runs them.
GRID_TYPES = {"qwen2_vl": "qwen2_5_vl"}
SOUND_TYPES = ("whisper",)
# Ids of tokens that positions are computed from.
_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id")
_VISION_INPUTS = ("pixel_values", "image_grid_thw", "image_sizes")
_VISION_SIZES = ("spatial_merge_size", "tokens_per_second", "patch_size", "window_size")
_POSITIONS_OF_GRIDS = 3
FRAMES = 3000


def has_grid_positions(decoder: ComponentGraph) -> bool:
    """Whether positions of tokens are places in time, height and width."""
    return len(decoder.inputs.get("position_ids", ())) == _POSITIONS_OF_GRIDS


def find_vision_type(configuration: ModelConfiguration, decoder: ComponentGraph) -> str:
    """genai's name for a model with images: that of one whose code it runs for the model's kind of positions."""
    return GRID_TYPES[configuration.model_type] if has_grid_positions(decoder) else ANY_VISION


def find_foreign_media(facts: ModelFacts) -> str:
    """Media that genai does not read, or not by files like these."""
    others = [each.name for each in facts.components if each.name.endswith("_encoder") and each.name != VISION]
    if others:
        return f"it reads text and images, and this model also has {others[0]}"
    decoder = facts.component("decoder")
    positions = () if decoder is None else decoder.inputs.get("position_ids", ())
    if len(positions) == _POSITIONS_OF_GRIDS and positions[0] != _POSITIONS_OF_GRIDS:
        return f"it feeds position_ids of [3, batch, sequence], and the graph takes {show_shape(positions)}"
    model_type = facts.configuration.model_type
    if len(positions) == _POSITIONS_OF_GRIDS and model_type not in GRID_TYPES:
        return f"it computes places in time, height and width for {', '.join(GRID_TYPES)}, and this is {model_type}"
    return ""


def find_foreign_sound(facts: ModelFacts) -> str:
    """An encoder-decoder that genai has no code for, or an encoder that it cannot feed."""
    if facts.configuration.model_type not in SOUND_TYPES:
        return f"of encoder-decoders it runs {', '.join(SOUND_TYPES)}"
    encoder = facts.component(ENCODER)
    for name, shape in encoder.inputs.items() if encoder is not None else ():
        if len(shape) != 3 or shape[2] != FRAMES:
            return f"it feeds sound of [batch, mels, {FRAMES}], and the graph takes {name} of {show_shape(shape)}"
    return ""


def describe_images(facts: ModelFacts, files: Mapping[str, str]) -> dict[str, Any]:
    """Keys of `model` for a language model with images.

    files  of components
    """
    vision, model = facts.component(VISION), facts.configuration.model
    assert vision is not None, "a language model with images has a vision encoder"
    sizes = model.get("vision_config") or {}
    tokens = {name: model[name] for name in _TOKENS if isinstance(model.get(name), int)}
    return {
        **tokens,
        "vision": {
            "filename": files[VISION],
            **{name: sizes[name] for name in _VISION_SIZES if isinstance(sizes.get(name), int | float)},
            "inputs": {name: name for name in _VISION_INPUTS if name in vision.inputs},
            "outputs": {"image_features": "image_features"},
        },
        "embedding": {
            "filename": files[EMBEDDING],
            "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        },
    }


def describe_sound(facts: ModelFacts, files: Mapping[str, str]) -> dict[str, Any]:
    """Keys of `model` for an encoder of sound whose states the decoder reads."""
    encoder, text = facts.component(ENCODER), facts.configuration.decoder
    assert encoder is not None, "an encoder-decoder has an encoder"
    _, _, width = encoder.outputs["last_hidden_state"]
    heads, size = next(shape for name, shape in encoder.outputs.items() if name.endswith(".key"))[1::2]
    return {
        "encoder": {
            "filename": files[ENCODER],
            "hidden_size": width,
            "num_attention_heads": text.get("encoder_attention_heads", heads),
            "num_hidden_layers": text.get("encoder_layers"),
            "num_key_value_heads": heads,
            "head_size": size,
            "inputs": {"audio_features": next(iter(encoder.inputs))},
            "outputs": {
                "encoder_hidden_states": "last_hidden_state",
                "cross_present_key_names": "present.%d.encoder.key",
                "cross_present_value_names": "present.%d.encoder.value",
            },
        }
    }
