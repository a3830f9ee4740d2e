"""Entry points of vision-language models: a chain of them computes what the model computes in `generate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.captures import empty_state, name_first_axis
from modelexport.capture.generation.entry_points import find_entry_points
from modelexport.capture.generation.generate_inputs import make_generate_inputs
from modelexport.capture.generation.steps import record_steps
from modelexport.capture.inputs.make import make_inputs
from modelexport.capture.inputs.specs import InputRequest
from modelexport.errors import ExportFailed

MODELS: Any = transformers
IMAGE = 98
TEXT: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 128,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
PATCHES: dict[str, Any] = {
    "depth": 2,
    "embed_dim": 32,
    "hidden_size": 32,
    "num_heads": 4,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "mlp_ratio": 2,
}
SECTIONS = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}}
MARKS: dict[str, Any] = {"video_token_id": 97, "vision_start_token_id": 96, "vision_end_token_id": 95}


def build_llava() -> nn.Module:
    config = MODELS.LlavaConfig(
        text_config={**TEXT, "model_type": "llama"},
        vision_config={**VISION, "model_type": "clip_vision_model"},
        image_token_id=IMAGE,
    )
    return MODELS.LlavaForConditionalGeneration(config)


def build_paligemma() -> nn.Module:
    config = MODELS.PaliGemmaConfig(
        text_config={**TEXT, "model_type": "gemma"},
        vision_config={**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
        image_token_id=IMAGE,
        projection_dim=32,
    )
    return MODELS.PaliGemmaForConditionalGeneration(config)


def build_idefics3() -> nn.Module:
    config = MODELS.Idefics3Config(
        text_config={**TEXT, "model_type": "llama"}, vision_config=VISION, image_token_id=IMAGE, pad_token_id=0
    )
    return MODELS.Idefics3ForConditionalGeneration(config)


def build_qwen2_vl() -> nn.Module:
    config = MODELS.Qwen2VLConfig(
        text_config={**TEXT, **SECTIONS}, vision_config=PATCHES, image_token_id=IMAGE, **MARKS
    )
    return MODELS.Qwen2VLForConditionalGeneration(config)


def build_qwen3_vl() -> nn.Module:
    vision = {**PATCHES, "intermediate_size": 32, "out_hidden_size": 32, "num_position_embeddings": 16}
    config = MODELS.Qwen3VLConfig(
        text_config={**TEXT, **SECTIONS},
        vision_config={**vision, "deepstack_visual_indexes": [0]},
        image_token_id=IMAGE,
        **MARKS,
    )
    return MODELS.Qwen3VLForConditionalGeneration(config)


def build_voxtral() -> nn.Module:
    audio = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MODELS.VoxtralConfig(
        text_config={**TEXT, "model_type": "llama"},
        audio_config={**audio, "num_mel_bins": 10, "max_source_positions": 20, "vocab_size": 99},
        audio_token_id=IMAGE,
    )
    return MODELS.VoxtralForConditionalGeneration(config)


def prepare(build: Callable[[], nn.Module]) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = build().eval()
    return model, make_generate_inputs(model, make_inputs(model, None, InputRequest()).values)


def call(entry: EntryPoint, *tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    known = {name: tensor for each in tensors for name, tensor in each.items()}
    with torch.no_grad():
        return entry.forward(**{name: known[name] for name in entry.inputs})


@pytest.mark.parametrize("build", [build_llava, build_paligemma, build_idefics3, build_qwen2_vl])
def test_chain_equals_generate(build: Callable[[], nn.Module]) -> None:
    model, inputs = prepare(build)
    entries = {entry.name: entry for entry in find_entry_points(model, inputs)}
    assert list(entries)[:4] == ["vision_encoder", "embed_tokens", "embedding", "decoder"]
    assert ("decoder_with_past" in entries) == (build is build_paligemma)
    assert build is not build_llava or entries["vision_encoder"].axes["pixel_values"] == {0: "batch"}
    expected = record_steps(model, inputs, 4)
    features = call(entries["vision_encoder"], inputs)
    embedded = call(entries["embedding"], inputs, features)
    decoder, later = entries["decoder"], entries.get("decoder_with_past", entries["decoder"])
    past = {pair.past: empty_state(later.inputs[pair.past], later.axes[pair.past]) for pair in later.cache}
    for step, recorded in enumerate(expected.calls):
        if step:
            embedded, decoder = call(entries["embed_tokens"], recorded.arguments), later
        positions = recorded.arguments["position_ids"]
        places = {"position_ids": positions[-3:] if positions.dim() > 2 else positions}
        results = call(decoder, recorded.arguments, places, embedded, past)
        logits = results["logits"][:, -1]
        torch.testing.assert_close(logits, recorded.outputs["logits"][:, -1], atol=1e-4, rtol=1e-3)
        past = {pair.past: results[pair.present] for pair in decoder.cache}


def test_first_call_of_its_own_where_tokens_see_those_behind_them() -> None:
    """A prefix that is seen in both directions: the cache of one decoder for all calls would be a causal one."""
    model, inputs = prepare(build_paligemma)
    assert inputs["token_type_ids"].tolist()[1] == [0] * 6 + [1] * 4 + [0] * 7
    *_, first, later = find_entry_points(model, inputs)
    assert "token_type_ids" in first.inputs
    assert "token_type_ids" not in later.inputs
    assert not [name for name in first.inputs if name.startswith("past_")]
    causal = {**first.inputs, "token_type_ids": torch.ones_like(first.inputs["token_type_ids"])}
    assert not torch.allclose(call(first, first.inputs)["logits"], call(first, causal)["logits"])
    assert first.axes["token_type_ids"] == {0: "batch", 1: "sequence"}


@pytest.mark.parametrize("grid", [[[1, 4, 4]], [[1, 4, 8], [1, 8, 4], [1, 4, 4]], [[2, 4, 4], [1, 4, 4]]])
def test_images_of_any_number_and_size(grid: list[list[int]]) -> None:
    model, inputs = prepare(build_qwen2_vl)
    encoder = find_entry_points(model, inputs)[0]
    sizes = torch.tensor(grid)
    images = {"pixel_values": torch.randn(int(sizes.prod(-1).sum()), 96), "image_grid_thw": sizes}
    with torch.no_grad():
        expected = model.base_model.get_image_features(**images, return_dict=True).pooler_output  # type: ignore[operator, union-attr]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "tolist", None)  # what a graph cannot do
        features = call(encoder, images)["image_features"]
    torch.testing.assert_close(features, torch.cat(list(expected)), atol=1e-4, rtol=1e-3)


def test_sound_that_forward_itself_encodes() -> None:
    """Features are what the model's method would have returned, so its code has to take them from there."""
    model, inputs = prepare(build_voxtral)
    encoder, _, embedding, _ = find_entry_points(model, inputs)
    assert (encoder.name, list(embedding.inputs)) == ("audio_encoder", ["input_ids", "audio_features"])
    features = call(encoder, inputs)
    embedded = call(embedding, inputs, features)["inputs_embeds"]
    torch.testing.assert_close(embedded[inputs["input_ids"] == IMAGE], features["audio_features"])
    assert "get_audio_features" not in vars(model)


def test_text_without_images_can_be_embedded_with_no_features() -> None:
    model, inputs = prepare(build_llava)
    _, tokens, embedding, _ = find_entry_points(model, inputs)
    text = {"input_ids": torch.tensor([[5, 6, 7]])}
    embedded = call(embedding, text, {"image_features": torch.zeros(0, 32)})
    torch.testing.assert_close(embedded["inputs_embeds"], call(tokens, text)["inputs_embeds"])


@pytest.mark.parametrize("build", [build_llava, build_qwen2_vl])
def test_every_module_with_parameters_is_called_by_an_entry_point(build: Callable[[], nn.Module]) -> None:
    model, inputs = prepare(build)
    called: set[nn.Module] = set()
    entries = find_entry_points(model, inputs)
    for module in model.modules():
        module.register_forward_hook(lambda each, *_: called.add(each))
    for entry in entries:
        call(entry, entry.inputs)
    own = [path for path, each in model.named_modules() if list(each.parameters(recurse=False)) and each not in called]
    # Towers keep what a picture's features are not made of: the layers after the chosen one, the pooled output.
    assert [path for path in own if not path.startswith(("model.vision_tower", "model.visual"))] == []


def test_consumers_may_put_features_in_the_place_of_tokens_themselves() -> None:
    model, inputs = prepare(build_llava)
    encoder, tokens, embedding, _ = find_entry_points(model, inputs)
    features = call(encoder, inputs)
    merged = call(tokens, inputs)["inputs_embeds"].clone()
    merged[inputs["input_ids"] == IMAGE] = features["image_features"]
    torch.testing.assert_close(call(embedding, inputs, features)["inputs_embeds"], merged)


def test_names_and_axes() -> None:
    encoder, _, embedding, decoder = find_entry_points(*prepare(build_qwen2_vl))
    assert list(encoder.inputs) == ["pixel_values", "image_grid_thw"]
    assert list(embedding.inputs) == ["input_ids", "image_features"]
    assert list(decoder.inputs)[:3] == ["inputs_embeds", "attention_mask", "position_ids"]
    assert decoder.axes["inputs_embeds"] == {0: "batch", 1: "sequence"}
    assert decoder.axes["position_ids"] == {1: "batch", 2: "sequence"}
    assert call(decoder, decoder.inputs).keys() >= {"logits", "present.0.key"}
    assert "rope_deltas" not in call(decoder, decoder.inputs)


def test_features_are_taken_before_they_become_a_list() -> None:
    """A list as long as the batch would fix the number of pictures in a graph."""
    model, inputs = prepare(build_llava)
    encoder = find_entry_points(model, inputs)[0]
    three = {"pixel_values": torch.cat([inputs["pixel_values"], inputs["pixel_values"][:1]])}
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(torch.Tensor, "__iter__")
        features = call(encoder, three)["image_features"]
    assert features.shape == (12, 32)


def test_model_that_adds_features_inside_of_layers_is_refused() -> None:
    with pytest.raises(ExportFailed):
        find_entry_points(*prepare(build_qwen3_vl))


def test_model_is_left_as_it_was() -> None:
    model, inputs = prepare(build_llava)
    record_steps(model, inputs, 1)  # transformers adds hooks of its own in the first run
    hooks = [len(each._forward_pre_hooks) + len(each._forward_hooks) for each in model.modules()]
    find_entry_points(model, inputs)
    assert hooks == [len(each._forward_pre_hooks) + len(each._forward_hooks) for each in model.modules()]
    assert not [each for each in model.modules() if "forward" in vars(each)]


def test_the_first_axis_is_the_batch_where_inputs_agree_on_it() -> None:
    small, large = torch.zeros(4, 4, 8), torch.zeros(6, 4, 16)
    assert name_first_axis({"sample": small, "step": torch.zeros(())}, {"sample": large, "step": torch.zeros(())}) == {
        (4, 6): "batch"
    }
    patches = {"pixel_values": torch.zeros(64, 48), "image_grid_thw": torch.zeros(1, 3)}
    more = {"pixel_values": torch.zeros(128, 48), "image_grid_thw": torch.zeros(2, 3)}
    assert name_first_axis(patches, more) == {}
