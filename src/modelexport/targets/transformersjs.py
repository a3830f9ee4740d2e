"""transformers.js: files in `onnx/`, read by name; the empty cache is made from the graph's own description of it.

    onnx/model.onnx                                                        decoder with cache, or one forward pass
    onnx/encoder_model.onnx, onnx/decoder_model_merged.onnx                encoder and decoder
    onnx/vision_encoder.onnx, embed_tokens.onnx, decoder_model_merged.onnx vision and language
    config.json, generation_config.json, files of the tokenizer

A merged decoder takes an empty cache for the first step. transformers.js reads the shape of it from the graph: the axis
`batch_size` is that of the batch, every other open axis is 0. It takes the length of the past from the first tensor of
the cache, so every layer must keep all tokens. A type of numbers other than float32 is in the file's name
(`model_q4.onnx`); `transformers.js_config` in `config.json` says where a file's weights are in a file of their own.

https://github.com/huggingface/transformers.js/blob/main/packages/transformers/src/models/session.js
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from modelexport.errors import propose_name, some_of
from modelexport.record.package import Axis
from modelexport.targets.contract import (
    CONFIG,
    DECODER,
    ENCODER_DECODER,
    MULTIMODAL,
    SINGLE,
    Contract,
    ModelFacts,
    save_configuration,
    write_json,
)

_MERGED = "onnx/decoder_model_merged.onnx"
_FILES = {
    DECODER: {"decoder": "onnx/model.onnx"},
    ENCODER_DECODER: {"encoder": "onnx/encoder_model.onnx", "decoder_merged": _MERGED},
    MULTIMODAL: {
        "vision_encoder": "onnx/vision_encoder.onnx",
        "audio_encoder": "onnx/audio_encoder.onnx",
        "embed_tokens": "onnx/embed_tokens.onnx",
        "decoder": _MERGED,
    },
    SINGLE: {"model": "onnx/model.onnx"},
}
# Architectures that transformers.js 4 has a class for: packages/transformers/src/models/registry.js.
_KNOWN = {
    DECODER: """
        afmoe apertus arcee bloom codegen cohere cohere2 deepseek_v3 ernie4_5 exaone falcon gemma gemma2 gemma3_text
        gemma4_text glm gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite granitemoehybrid helium hunyuan_v1_dense
        jais lfm2 lfm2_moe llama llama4_text ministral ministral3 mistral mistral4 mobilellm modernbert-decoder mpt
        nanochat nemotron_h falcon_h1 olmo olmo2 olmo3 olmo_hybrid openelm opt phi phi3 qwen2 qwen2_moe qwen3
        qwen3_5_text qwen3_moe qwen3_next smollm3 solar_open stablelm starcoder2 vaultgemma youtu zaya
    """,
    ENCODER_DECODER: """
        bart blenderbot blenderbot-small cohere_asr lite-whisper longt5 m2m_100 marian mbart moonshine mt5 speecht5 t5
        vision-encoder-decoder whisper
    """,
    MULTIMODAL: """
        florence2 gemma3 gemma3n gemma4 glm_ocr granite_speech idefics3 lfm2_vl lighton_ocr llava llava_onevision
        llava_qwen2 mistral3 moondream1 paligemma qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe smolvlm
        ultravox voxtral voxtral_realtime
    """,
}
_STATES = (
    (re.compile(r"past_key_values\.(\d+)\.conv_states"), r"past_conv.\1"),
    (re.compile(r"present\.(\d+)\.conv_states"), r"present_conv.\1"),
    (re.compile(r"past_key_values\.(\d+)\.recurrent_states"), r"past_recurrent.\1"),
    (re.compile(r"present\.(\d+)\.recurrent_states"), r"present_recurrent.\1"),
)
# What transformers.js appends to a file's name for each type of numbers: src/utils/dtypes.js.
VARIANTS = {
    "float32": "",
    "float16": "_fp16",
    "int8": "_int8",
    "uint8": "_uint8",
    "int4": "_q4",
    "int4-float16": "_q4f16",
}


_OWN, _EXTERNAL = "transformers.js_config", "use_external_data_format"


def name_variant(file: str, number_type: str) -> str:
    """The file of the same graph in another type of numbers: `onnx/model.onnx` in int4 is `onnx/model_q4.onnx`.

    Weights of four bits in a graph of half precision are a type of their own. One without a name leaves the file's.
    """
    stem, dot, ending = file.rpartition(".")
    suffixes = {suffix: name for name, suffix in VARIANTS.items() if suffix}
    suffix = next((suffix for suffix in suffixes if stem.endswith(suffix)), "")
    combined = f"{number_type}-{suffixes[suffix]}" if suffix else number_type
    wanted = combined if combined in VARIANTS else number_type
    return f"{stem.removesuffix(suffix)}{VARIANTS[wanted]}{dot}{ending}" if wanted in VARIANTS else file


def rename_state(name: str) -> str:
    """transformers.js' name of an input or output: `past_key_values.1.conv_states` is `past_conv.1`."""
    return next((re.sub(pattern, new, name) for pattern, new in _STATES if pattern.fullmatch(name)), name)


def _find_obstacle(facts: ModelFacts) -> str:
    model_type, known = facts.configuration.model_type, _KNOWN.get(facts.kind, "").split()
    if known and model_type not in known:
        return f"it has no class for {model_type!r}. {propose_name(model_type, known)}"
    windows = [
        name for component in facts.components for name, shape in component.inputs.items() if Axis.WINDOW in shape
    ]
    if windows:
        return f"it takes the length of the past from the cache, and {some_of(windows)} forgets tokens"
    return ""


def _configure(facts: ModelFacts) -> dict[str, str]:
    files = save_configuration(facts)
    files[CONFIG] = write_json(_list_external(facts.configuration.model, facts.external))
    return files


def _list_external(configuration: Mapping[str, Any], external: frozenset[str]) -> Mapping[str, Any]:
    """How many files the weights of a model are in, by the name of its file."""
    before = configuration.get(_OWN)
    # A folder from elsewhere may have anything there.
    own = {key: value for key, value in before.items() if key != _EXTERNAL} if isinstance(before, Mapping) else {}
    if external:
        own[_EXTERNAL] = {file.rpartition("/")[2]: 1 for file in sorted(external)}
    others = {key: value for key, value in configuration.items() if key != _OWN}
    return {**others, _OWN: own} if own else others


TRANSFORMERSJS = Contract(
    "transformersjs",
    "transformers.js",
    _FILES,
    _configure,
    _find_obstacle,
    data_suffix="_data",
    shares_data=False,
    forgets=False,
    axes={Axis.BATCH: "batch_size"},
    rename=rename_state,
    name_variant=name_variant,
    list_external=_list_external,
    unused=frozenset({"embedding"}),
)
