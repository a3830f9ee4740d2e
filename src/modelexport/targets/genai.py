"""onnxruntime-genai: a decoder, encoders and embeddings, and `genai_config.json`, which names inputs and outputs.

    model.onnx, genai_config.json, files of the tokenizer
    vision_encoder.onnx, embedding.onnx        a language model with images (genai_sections.py)
    encoder.onnx                               sound

What its version 0.18 does with a decoder, as observed on exported files:

type        All names of decoders in `TYPES` run the same code; `decoder` is the one for a model that it has no name
            for. So the type is the model's own where it is known, and `decoder` otherwise.
cache       Keys and values of [batch, heads, tokens, size], of which heads and size may differ between layers but not
            between key and value. The caller allocates `present.*`, so the graph must return exactly the length that
            `sliding_window` describes: `min(total, window_size + cache_slack)` in the layers that are listed there, all
            tokens elsewhere. Beams are not possible with it.
padding     Rows of a batch are padded on the right: what follows the last token that is not padding is masked. Padding
            on the left is taken for text. Padding between tokens takes room in a sliding window.
inputs      `input_ids` or `inputs_embeds`, `attention_mask`, `position_ids`, the last two only if the graph has them.

https://onnxruntime.ai/docs/genai/reference/config.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from modelexport.errors import some_of
from modelexport.record.configuration import ModelConfiguration
from modelexport.record.package import Axis
from modelexport.targets import genai_sections
from modelexport.targets.contract import (
    DECODER,
    ENCODER_DECODER,
    MULTIMODAL,
    ComponentGraph,
    Contract,
    ModelFacts,
    Shape,
    save_configuration,
    show_shape,
    write_json,
)

FILE = "genai_config.json"
ANY_DECODER = "decoder"
# Names of decoders without states other than keys and values, which genai 0.18 treats alike.
TYPES = """
    chatglm decoder ernie4_5 gemma gemma2 gemma3_text gemma3_vl_text gemma4_text gptoss granite granitemoehybrid
    hunyuandensev1 internlm2 llama mistral mistral3_text nemotron olmo phi phi3 phi3small phimoe qwen2 qwen2_5_vl_text
    qwen3 qwen3_5_moe_text qwen3_5_text qwen3_vl_text smollm3
"""
_FED = {
    DECODER: ("input_ids", "attention_mask", "position_ids"),
    MULTIMODAL: ("inputs_embeds", "attention_mask", "position_ids"),
    ENCODER_DECODER: ("input_ids",),
}
_CACHED = re.compile(r"past_key_values\.(\d+)\.(?:decoder\.)?(key|value)")
_OF_ENCODER = ".encoder."
_KEY_AXES = 4
# The shortest window that can be described: window_size must be positive, and the slack is at least 1.
_SHORTEST_WINDOW = 3
# For models without limit, such as those with linear biases in place of positions.
_UNLIMITED_CONTEXT = 32768
# Fields of a generation configuration that genai's search has by the same name.
_SEARCH = (
    "do_sample",
    "early_stopping",
    "length_penalty",
    "min_length",
    "no_repeat_ngram_size",
    "num_beams",
    "num_return_sequences",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
)


def find_type(configuration: ModelConfiguration) -> str:
    """genai's name for the architecture of a decoder: `llama` is `llama`, `opt` is `decoder`."""
    names = (configuration.decoder.get("model_type"), configuration.model_type)
    return next((str(name) for name in names if name in TYPES.split()), ANY_DECODER)


def _find_obstacle(facts: ModelFacts) -> str:
    foreign = ""
    if facts.kind == MULTIMODAL:
        foreign = genai_sections.find_foreign_media(facts)
    elif facts.kind == ENCODER_DECODER:
        foreign = genai_sections.find_foreign_sound(facts)
    decoder = facts.component("decoder")
    if foreign or decoder is None:
        return foreign
    decoder = _without_cross_cache(decoder)
    return (
        _find_foreign_input(decoder, facts.kind) or _find_foreign_cache(decoder) or _find_foreign_window(facts, decoder)
    )


def _without_cross_cache(decoder: ComponentGraph) -> ComponentGraph:
    """The decoder without keys and values of an encoder's states, which come from the encoder."""
    inputs = {name: shape for name, shape in decoder.inputs.items() if _OF_ENCODER not in name}
    return replace(decoder, inputs=inputs, cache=tuple(pair for pair in decoder.cache if _OF_ENCODER not in pair.past))


def _find_foreign_input(decoder: ComponentGraph, kind: str) -> str:
    """An input that genai does not feed, or not in this shape."""
    fed = _FED[kind]
    past = {pair.past for pair in decoder.cache}
    foreign = [name for name in decoder.inputs if name not in fed and name not in past]
    if foreign:
        return f"it feeds {', '.join(fed)} and the cache, and the graph also takes {some_of(foreign)}"
    for name in fed:
        shape = tokens = decoder.inputs.get(name, ("", ""))
        if name == "inputs_embeds":  # a vector for each token
            tokens = shape[:2]
        elif name == "position_ids" and kind == MULTIMODAL and genai_sections.has_grid_positions(decoder):
            tokens = shape[1:]
        if len(tokens) != 2 or isinstance(tokens[1], int):
            return f"it feeds {name} of [batch, sequence], and the graph takes {show_shape(shape)}"
    return ""


def _find_foreign_cache(decoder: ComponentGraph) -> str:
    """A state of generation that genai does not hand on."""
    states = [pair.past for pair in decoder.cache if not _CACHED.fullmatch(pair.past)]
    if states or not decoder.cache:
        return f"it hands on keys and values, and this model has {some_of(states) if states else 'no cache'}"
    for name in decoder.inputs:
        value = re.sub(r"\.key$", ".value", name)
        key_shape, value_shape = decoder.inputs[name], decoder.inputs.get(value, ())
        if _CACHED.fullmatch(name) and (len(key_shape) != _KEY_AXES or key_shape[1::2] != value_shape[1::2]):
            return (
                f"keys and values of a layer must have the same shape, and {name} is {show_shape(key_shape)}, "
                f"{value} {show_shape(value_shape)}"
            )
    return ""


def _find_foreign_window(facts: ModelFacts, decoder: ComponentGraph) -> str:
    window = facts.configuration.window
    if _find_windows(decoder) and (window is None or window < _SHORTEST_WINDOW):
        return f"it needs a sliding window of at least {_SHORTEST_WINDOW} tokens, and this one is {window or 'unknown'}"
    return ""


def _find_layers(decoder: ComponentGraph) -> dict[int, Shape]:
    """Layers that have keys in the cache, and the shape of the keys."""
    matches = {name: _CACHED.fullmatch(name) for name in decoder.inputs}
    keys = {int(match[1]): decoder.inputs[name] for name, match in matches.items() if match and match[2] == "key"}
    return dict(sorted(keys.items()))


def _find_windows(decoder: ComponentGraph) -> list[int]:
    """Layers whose cache drops tokens that are out of the window."""
    return [layer for layer, shape in _find_layers(decoder).items() if Axis.WINDOW in shape]


def _configure(facts: ModelFacts) -> dict[str, str]:
    decoder = facts.component("decoder")
    assert decoder is not None, "a package for genai has a decoder"
    configuration = facts.configuration
    text, generation = configuration.decoder, configuration.generation
    lengths = (text.get(name) for name in ("max_target_positions", "max_position_embeddings", "seq_length"))
    context = int(next(filter(None, lengths), _UNLIMITED_CONTEXT))
    content = {
        "model": {
            "type": _find_type_of_kind(facts, decoder),
            **_find_tokens(text, generation),
            "context_length": context,
            "vocab_size": _last_axis(decoder.outputs["logits"], text.get("vocab_size")),
            "decoder": _describe_decoder(facts, decoder),
            **_describe_others(facts),
        },
        "search": {
            **{name: generation[name] for name in _SEARCH if generation.get(name) is not None},
            "max_length": context,
            # Only graphs with GroupQueryAttention can write into the buffer that they read from.
            "past_present_share_buffer": False,
        },
    }
    return {FILE: write_json(content), **save_configuration(facts)}


def _find_type_of_kind(facts: ModelFacts, decoder: ComponentGraph) -> str:
    if facts.kind == MULTIMODAL:
        return genai_sections.find_vision_type(facts.configuration, decoder)
    return facts.configuration.model_type if facts.kind == ENCODER_DECODER else find_type(facts.configuration)


def _describe_others(facts: ModelFacts) -> dict[str, Any]:
    """Sections beside that of the decoder."""
    files = {each.name: GENAI.file_of(facts.kind, each.name) for each in facts.components}
    if facts.kind == MULTIMODAL:
        return genai_sections.describe_images(facts, files)
    return genai_sections.describe_sound(facts, files) if facts.kind == ENCODER_DECODER else {}


def _last_axis(shape: Shape, otherwise: object) -> object:
    return shape[-1] if shape and isinstance(shape[-1], int) else otherwise


def _find_tokens(text: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    """Ids of special tokens. What a model pads with is its end where it says nothing else, as in `generate`."""

    def find(name: str) -> Any:
        return generation.get(name) if generation.get(name) is not None else text.get(name)

    end = find("eos_token_id")
    ends: Sequence[int] = end if isinstance(end, list) else [] if end is None else [end]
    first = ends[0] if ends else 0
    start, padding = find("bos_token_id"), find("pad_token_id")
    return {
        "bos_token_id": first if start is None else start,
        "eos_token_id": list(ends),
        "pad_token_id": first if padding is None else padding,
    }


def _describe_decoder(facts: ModelFacts, decoder: ComponentGraph) -> dict[str, Any]:
    text, layers = facts.configuration.decoder, _find_layers(decoder)
    _, heads, _, head_size = next(iter(layers.values()))
    described = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": GENAI.file_of(facts.kind, decoder.name),
        "head_size": head_size,
        "hidden_size": text.get("hidden_size"),
        "num_attention_heads": text.get("num_attention_heads"),
        "num_key_value_heads": heads,
        "num_hidden_layers": len(layers),
        "inputs": {name: name for name in _FED[facts.kind] if name in decoder.inputs} | _name_cache(facts.kind, "past"),
        "outputs": {"logits": "logits", **_name_cache(facts.kind, "present")},
    }
    windows, window = _find_windows(decoder), facts.configuration.window
    if windows and window is not None:
        # The cache of such a layer holds the window without the token itself: window_size + cache_slack.
        described["sliding_window"] = {
            "window_size": window - 2,
            "cache_slack": 1,
            "slide_key_value_cache": False,
            "slide_inputs": False,
            "layers": windows,
        }
    return {name: value for name, value in described.items() if value is not None}


def _name_cache(kind: str, when: str) -> dict[str, str]:
    """Names of keys and values, before or after a step; `%d` is the number of the layer."""
    prefix = "past_key_values.%d" if when == "past" else "present.%d"
    own = ".decoder" if kind == ENCODER_DECODER else ""
    names = {f"{when}_{part}_names": f"{prefix}{own}.{part}" for part in ("key", "value")}
    if own and when == "past":
        names |= {f"cross_past_{part}_names": f"{prefix}{_OF_ENCODER}{part}" for part in ("key", "value")}
    return names


_FILES = {
    DECODER: {"decoder": "model.onnx"},
    MULTIMODAL: {"decoder": "model.onnx", "vision_encoder": "vision_encoder.onnx", "embedding": "embedding.onnx"},
    ENCODER_DECODER: {"encoder": "encoder.onnx", "decoder": "decoder.onnx"},
}
GENAI = Contract(
    "genai",
    "onnxruntime-genai",
    _FILES,
    _configure,
    _find_obstacle,
    unused=frozenset({"embed_tokens"}),
    encodes_keys=True,
)
