"""Sections of genai_config.json for images and sound, and what is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from modelexport.errors import TargetUnsuitable
from modelexport.record.configuration import ModelConfiguration
from modelexport.record.package import CachePair
from modelexport.targets.contract import ENCODER_DECODER, FIRST_CALL, MULTIMODAL, ComponentGraph, ModelFacts, Shape
from modelexport.targets.genai import GENAI

TEXT = {"hidden_size": 32, "num_attention_heads": 4, "vocab_size": 99, "max_position_embeddings": 64}
KEYS: Shape = ("batch", 2, "past_sequence", 8)


def make_cache(part: str = "") -> tuple[CachePair, ...]:
    return tuple(CachePair(f"past_key_values.0{part}.{each}", f"present.0{part}.{each}") for each in ("key", "value"))


def make_decoder(*positions: int | str) -> ComponentGraph:
    cache = make_cache()
    inputs: dict[str, Shape] = {
        "inputs_embeds": ("batch", "sequence", 32),
        "attention_mask": ("batch", "total_sequence"),
    }
    inputs["position_ids"] = (*positions, "batch", "sequence")
    outputs: dict[str, Shape] = {"logits": ("batch", "sequence", 99)}
    return ComponentGraph("decoder", {**inputs, **{pair.past: KEYS for pair in cache}}, outputs, cache)


def make_vision(*positions: int | str, model_type: str = "seer", **inputs: Shape) -> ModelFacts:
    vision = ComponentGraph("vision_encoder", inputs, {"image_features": ("n", 32)})
    embedding = ComponentGraph("embedding", {"input_ids": ("batch", "sequence"), "image_features": ("n", 32)}, {})
    model = {
        "model_type": model_type,
        "image_token_id": 5,
        "vision_config": {"spatial_merge_size": 2, "patch_size": [4, 4]},
    }
    return ModelFacts(ModelConfiguration(model, TEXT), MULTIMODAL, (vision, embedding, make_decoder(*positions)))


def make_sound(frames: int = 3000, model_type: str = "whisper") -> ModelFacts:
    cross, own = make_cache(".encoder"), make_cache(".decoder")
    states: dict[str, Shape] = {pair.present: ("batch", 2, "encoder_sequence", 8) for pair in cross}
    outputs: dict[str, Shape] = {"last_hidden_state": ("batch", 1500, 32), **states}
    encoder = ComponentGraph("encoder", {"input_features": ("batch", 10, frames)}, outputs)
    pasts = {pair.past: KEYS for pair in (*own, *cross)}
    decoder = ComponentGraph(
        "decoder", {"input_ids": ("batch", "sequence"), **pasts}, {"logits": ("batch", "sequence", 99)}, (*own, *cross)
    )
    return ModelFacts(ModelConfiguration({"model_type": model_type}, TEXT), ENCODER_DECODER, (encoder, decoder))


def configure(facts: ModelFacts) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(GENAI.write_configuration(facts)["genai_config.json"])["model"]
    return content


def test_images() -> None:
    model = configure(make_vision(pixel_values=("images", 3, 8, 8)))
    assert model["type"] == "gemma3"
    assert model["image_token_id"] == 5
    assert model["vision"] == {
        "filename": "vision_encoder.onnx",
        "spatial_merge_size": 2,
        "inputs": {"pixel_values": "pixel_values"},
        "outputs": {"image_features": "image_features"},
    }
    assert model["embedding"]["filename"] == "embedding.onnx"
    assert "inputs_embeds" in model["decoder"]["inputs"]
    assert "input_ids" not in model["decoder"]["inputs"]


def test_images_with_places_in_time_height_and_width() -> None:
    facts = make_vision(3, model_type="qwen2_vl", pixel_values=("patches", 96), image_grid_thw=("images", 3))
    GENAI.refuse(facts)
    model = configure(facts)
    assert model["type"] == "qwen2_5_vl"
    assert list(model["vision"]["inputs"]) == ["pixel_values", "image_grid_thw"]
    with pytest.raises(TargetUnsuitable, match=r"\[4, batch, sequence\]"):
        GENAI.refuse(make_vision(4, pixel_values=("patches", 96)))


def test_sound() -> None:
    model = configure(make_sound())
    assert model["type"] == "whisper"
    assert model["encoder"]["outputs"]["cross_present_key_names"] == "present.%d.encoder.key"
    assert model["encoder"]["inputs"] == {"audio_features": "input_features"}
    assert (model["encoder"]["hidden_size"], model["encoder"]["head_size"]) == (32, 8)
    assert model["decoder"]["inputs"]["past_key_names"] == "past_key_values.%d.decoder.key"
    assert model["decoder"]["inputs"]["cross_past_value_names"] == "past_key_values.%d.encoder.value"
    assert model["decoder"]["num_hidden_layers"] == 1


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (make_sound(frames=60), r"sound of \[batch, mels, 3000\]"),
        (make_sound(model_type="speech"), "of encoder-decoders it runs whisper"),
        (make_vision(3), "for qwen2_vl, and this is seer"),
        (replace(make_vision(), kind=FIRST_CALL), "something else in the first call"),
        (
            replace(make_vision(), components=(ComponentGraph("audio_encoder", {}, {}), make_decoder())),
            "also has audio_encoder",
        ),
    ],
)
def test_what_it_cannot_run_is_refused_with_the_reason(facts: ModelFacts, words: str) -> None:
    with pytest.raises(TargetUnsuitable, match=words):
        GENAI.refuse(facts)
