"""optimum: `ORTModelForCausalLM`, `ORTModelForSeq2SeqLM` and their siblings load the folder by these file names.

    model.onnx                       decoder with cache, or one forward pass
    encoder_model.onnx               input ─► last_hidden_state
    decoder_model.onnx               first step: input_ids, encoder_hidden_states ─► logits, present.*
    decoder_with_past_model.onnx     later steps
    config.json, generation_config.json, files of the tokenizer

It makes the empty cache of a decoder from `config.json`, by rules of its own for each architecture, and allocates every
tensor of it with the length of the past. A graph whose cache has another shape cannot be run by it.

https://huggingface.co/docs/optimum-onnx/en/onnxruntime/package_reference/modeling
"""

from __future__ import annotations

from modelexport.errors import some_of
from modelexport.record.configuration import ModelConfiguration
from modelexport.targets.contract import (
    DECODER,
    ENCODER_DECODER,
    FIRST_CALL,
    MULTIMODAL,
    PIPELINE,
    SINGLE,
    Contract,
    ModelFacts,
    save_configuration,
    show_shape,
)

_FILES = {
    DECODER: {"decoder": "model.onnx"},
    ENCODER_DECODER: {
        "encoder": "encoder_model.onnx",
        "decoder": "decoder_model.onnx",
        "decoder_with_past": "decoder_with_past_model.onnx",
    },
    SINGLE: {"model": "model.onnx"},
    PIPELINE: {},
}
_MEDIA_FILES = {
    "vision_encoder": "vision_encoder.onnx",
    "audio_encoder": "audio_encoder.onnx",
    "embed_tokens": "embed_tokens.onnx",
    "embedding": "embedding.onnx",
}
_PLAIN_FILES = {
    **_FILES,
    MULTIMODAL: {**_MEDIA_FILES, "decoder": "decoder_model_merged.onnx"},
    FIRST_CALL: {**_FILES[ENCODER_DECODER], **_MEDIA_FILES},
}


# Architectures for which optimum-onnx 0.1.0 (onnxruntime/modeling_decoder.py) takes these from the configuration:
# the number of heads in the cache, their size. For all others it divides `hidden_size` by `num_attention_heads`.
_GROUPED = """
    arcee cohere deepseek_v3 gemma gemma3_text glm gpt_oss granite helium llama mistral nemotron qwen2 qwen3 qwen3_moe
    smollm3 stablelm
"""
_SIZED = "gemma gemma3_text gpt_oss nemotron"
# These it asks whether they have one head of keys and values for all.
_MULTI_QUERY = "falcon gpt_bigcode"


def _find_obstacle(facts: ModelFacts) -> str:
    decoder = facts.component("decoder")
    if facts.kind != DECODER or decoder is None:
        return ""
    states = [pair.past for pair in decoder.cache if not pair.past.endswith((".key", ".value"))]
    if states:
        return f"it hands on keys and values, and this model has {some_of(states)}"
    for name, shape in decoder.inputs.items():
        expected = _expect_heads(facts.configuration)
        if name.endswith((".key", ".value")) and expected and shape[1::2] != expected:
            made = " of size ".join(map(str, expected))
            return f"it makes an empty cache of {made}, heads and their size, and {name} is {show_shape(shape)}"
    return ""


def _expect_heads(configuration: ModelConfiguration) -> tuple[int, int] | None:
    """Heads in the cache and their size, as optimum makes them; None where this cannot be said."""
    text, name = configuration.decoder, configuration.model_type
    width, heads = text.get("hidden_size"), text.get("num_attention_heads")
    if name in _MULTI_QUERY.split() or not width or not heads:
        return None
    size = text.get("head_dim") if name in _SIZED.split() else width // heads
    return (text.get("num_key_value_heads") if name in _GROUPED.split() else heads) or heads, size or width // heads


OPTIMUM = Contract("optimum", "optimum", _FILES, save_configuration, _find_obstacle, data_suffix="_data", forgets=False)
# A folder for no consumer in particular, by the names that most programs know.
PLAIN = Contract("", "modelexport", _PLAIN_FILES, save_configuration)
