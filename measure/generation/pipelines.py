"""Folders of several models: an encoder of sentences, and pipelines that make images.

save_sentence_encoder(folder)     modules.json: transformer, pooling, normalization
save_unet_pipeline(folder)        model_index.json: text_encoder, tokenizer, unet, vae, scheduler
save_transformer_pipeline(folder) the same with a transformer in place of the unet
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from measure.generation.folders import make_tokenizer
from measure.generation.models import BOS, EOS, PAD, VOCABULARY

_HIDDEN = 32
# Latents are half as wide as images.
_CHANNELS = (32, 64)
_LATENT_CHANNELS = 4
_LATENT_SIZE = 8
_TEXT_LENGTH = 16


def save_sentence_encoder(folder: Path) -> None:
    """A folder of sentence-transformers: mean of the last hidden states, normalized."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        pad_token_id=PAD,
    )
    with TemporaryDirectory() as plain, _seeded():
        encoder: Any = BertModel(config)
        encoder.save_pretrained(plain)
        make_tokenizer(padding_side="right").save_pretrained(plain)
        transformer: Any = Transformer(plain, max_seq_length=32)
        pooling = Pooling(_HIDDEN, pooling_mode="mean")
        SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu").save(str(folder))


def save_unet_pipeline(folder: Path) -> None:
    """A folder of diffusers whose noise is removed by a UNet."""
    from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    with _seeded():
        unet = UNet2DConditionModel(
            sample_size=_LATENT_SIZE,
            in_channels=_LATENT_CHANNELS,
            out_channels=_LATENT_CHANNELS,
            block_out_channels=_CHANNELS,
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=_HIDDEN,
            attention_head_dim=4,
            norm_num_groups=8,
        )
        pipeline: Any = StableDiffusionPipeline(
            vae=_make_vae(),
            text_encoder=_make_text_encoder(),
            tokenizer=_make_text_tokenizer(),
            unet=unet,
            scheduler=DDIMScheduler(),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    pipeline.save_pretrained(folder)


def save_transformer_pipeline(folder: Path) -> None:
    """A folder of diffusers whose noise is removed by a transformer."""
    from diffusers import DDIMScheduler, PixArtAlphaPipeline, PixArtTransformer2DModel
    from transformers import T5Config, T5EncoderModel

    with _seeded():
        transformer = PixArtTransformer2DModel(
            sample_size=_LATENT_SIZE,
            num_layers=2,
            patch_size=2,
            attention_head_dim=8,
            num_attention_heads=4,
            in_channels=_LATENT_CHANNELS,
            out_channels=2 * _LATENT_CHANNELS,
            cross_attention_dim=_HIDDEN,
            caption_channels=_HIDDEN,
            norm_type="ada_norm_single",
            use_additional_conditions=False,
        )
        text_config = T5Config(
            vocab_size=VOCABULARY, d_model=_HIDDEN, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=PAD
        )
        pipeline: Any = PixArtAlphaPipeline(
            tokenizer=_make_text_tokenizer(),
            text_encoder=T5EncoderModel(text_config).eval(),
            vae=_make_vae(),
            transformer=transformer,
            scheduler=DDIMScheduler(),
        )
    pipeline.save_pretrained(folder)


def _make_vae() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        block_out_channels=_CHANNELS,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=_LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=2 * _LATENT_SIZE,
    )


def _make_text_encoder() -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=_TEXT_LENGTH,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    return CLIPTextModel(config).eval()


def _make_text_tokenizer() -> Any:
    tokenizer = make_tokenizer(padding_side="right")
    tokenizer.model_max_length = _TEXT_LENGTH
    return tokenizer


@contextmanager
def _seeded() -> Iterator[None]:
    """Random weights are the same each time; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
