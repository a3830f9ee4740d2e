"""optimum: `ORTModelForCausalLM`, `ORTModelForSeq2SeqLM` and their siblings load the folder by these file names.

    model.onnx                       decoder with cache, or one forward pass
    encoder_model.onnx               input ─► last_hidden_state
    decoder_model.onnx               first step: input_ids, encoder_hidden_states ─► logits, present.*
    decoder_with_past_model.onnx     later steps
    config.json, generation_config.json, files of the tokenizer

https://huggingface.co/docs/optimum-onnx/en/onnxruntime/package_reference/modeling
"""

from __future__ import annotations

from modelexport.targets.contract import (
    DECODER,
    ENCODER_DECODER,
    MULTIMODAL,
    PIPELINE,
    SINGLE,
    Contract,
    save_configuration,
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
_PLAIN_FILES = {
    **_FILES,
    MULTIMODAL: {
        "vision_encoder": "vision_encoder.onnx",
        "audio_encoder": "audio_encoder.onnx",
        "embed_tokens": "embed_tokens.onnx",
        "decoder": "decoder_model_merged.onnx",
    },
}


# optimum allocates every tensor of the cache with the length of the past, and reads that length from the first one.
OPTIMUM = Contract("optimum", "optimum", _FILES, save_configuration, data_suffix="_data", forgets=False)
# A folder for no consumer in particular, by the names that most programs know.
PLAIN = Contract("", "modelexport", _PLAIN_FILES, save_configuration)
