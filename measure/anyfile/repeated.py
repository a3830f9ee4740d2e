"""Repeated networks: architectures with enough layers that their number says something, and what their layers are.

bert    five layers of class BertLayer
swin    stages of one, two and three layers of class SwinLayer
unet    blocks on the way down, blocks on the way up
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import modelexport as mx
from measure.corpus.models import build, inputs_of, perturbed, rows_by_name
from measure.corpus.rows import Setting


@dataclass(frozen=True)
class Repeated:
    """A row of the corpus, or a network below, with other settings.

    layers  the classes whose calls are the layers
    config  goes over the settings of the row, at every depth
    """

    name: str
    layers: tuple[str, ...]
    config: Mapping[str, Setting] = field(default_factory=dict)


_FIVE: Mapping[str, Setting] = {"num_hidden_layers": 5}
_SIX: Mapping[str, Setting] = {"num_hidden_layers": 6}
_SEQ2SEQ: Mapping[str, Setting] = {"encoder_layers": 4, "decoder_layers": 3}
_BACKBONE: Mapping[str, Setting] = {"depths": [1, 2, 3, 2], "hidden_sizes": [8, 16, 24, 32]}

ROWS = (
    Repeated("bert", ("BertLayer",), _FIVE),
    Repeated("roberta", ("RobertaLayer",), _SIX),
    Repeated("distilbert", ("TransformerBlock",), {"n_layers": 5}),
    Repeated("albert", ("AlbertLayer",), _FIVE),
    Repeated("deberta-v2", ("DebertaV2Layer",), _FIVE),
    Repeated("modernbert", ("ModernBertEncoderLayer",), _SIX),
    Repeated("mpnet", ("MPNetLayer",), _FIVE),
    Repeated("roformer", ("RoFormerLayer",), _FIVE),
    Repeated("xlnet", ("XLNetLayer",), {"n_layer": 4}),
    Repeated("convbert", ("ConvBertLayer",), _FIVE),
    Repeated("squeezebert", ("SqueezeBertModule",), _FIVE),
    Repeated("mobilebert", ("MobileBertLayer",), _FIVE),
    Repeated("fnet", ("FNetLayer",), _FIVE),
    Repeated("gpt2", ("GPT2Block",), {"n_layer": 5}),
    Repeated("gpt-neo", ("GPTNeoBlock",), {"num_layers": 6, "attention_types": [[["global", "local"], 3]]}),
    Repeated("gpt-neox", ("GPTNeoXLayer",), _FIVE),
    Repeated("gptj", ("GPTJBlock",), {"n_layer": 5}),
    Repeated("opt", ("OPTDecoderLayer",), _FIVE),
    Repeated("bloom", ("BloomBlock",), {"n_layer": 5}),
    Repeated("llama", ("LlamaDecoderLayer",), _SIX),
    Repeated("qwen3", ("Qwen3DecoderLayer",), _FIVE),
    Repeated("gemma2", ("Gemma2DecoderLayer",), _SIX),
    Repeated("phi3", ("Phi3DecoderLayer",), _FIVE),
    Repeated("falcon", ("FalconDecoderLayer",), _FIVE),
    Repeated("olmo2", ("Olmo2DecoderLayer",), _FIVE),
    Repeated("mixtral", ("MixtralDecoderLayer",), {"num_hidden_layers": 4}),
    Repeated("mamba", ("MambaBlock",), {"num_hidden_layers": 4}),
    Repeated("t5", ("T5Block",), {"num_layers": 4, "num_decoder_layers": 3}),
    Repeated("bart", ("BartEncoderLayer", "BartDecoderLayer"), _SEQ2SEQ),
    Repeated("marian", ("MarianEncoderLayer", "MarianDecoderLayer"), _SEQ2SEQ),
    Repeated("whisper", ("WhisperEncoderLayer", "WhisperDecoderLayer"), _SEQ2SEQ),
    Repeated("vit", ("ViTLayer",), _FIVE),
    Repeated("beit", ("BeitLayer",), _FIVE),
    Repeated("dinov2", ("Dinov2Layer",), _SIX),
    Repeated("swin", ("SwinLayer",), {"depths": [2, 2, 4], "num_heads": [2, 2, 4]}),
    Repeated("convnext", ("ConvNextLayer",), {"hidden_sizes": [8, 16, 32], "depths": [2, 2, 4], "num_stages": 3}),
    Repeated("resnet", ("ResNetBottleNeckLayer",), {"hidden_sizes": [8, 16, 32], "depths": [2, 3, 4]}),
    Repeated("regnet", ("RegNetYLayer",), {"hidden_sizes": [8, 16, 32], "depths": [2, 3, 4]}),
    Repeated("mobilenet-v2", ("MobileNetV2InvertedResidual",)),
    Repeated("pvt", ("PvtLayer",), {"depths": [2, 2, 3, 2]}),
    Repeated("segformer", ("SegformerLayer",), {"depths": [2, 2, 3, 2], "hidden_sizes": [8, 8, 16, 16]}),
    Repeated("poolformer", ("PoolFormerLayer",), {"depths": [2, 2, 4, 2]}),
    Repeated(
        "detr",
        ("ResNetBottleNeckLayer", "DetrEncoderLayer", "DetrDecoderLayer"),
        {**_SEQ2SEQ, "backbone_config": _BACKBONE},
    ),
    Repeated("wav2vec2", ("Wav2Vec2EncoderLayer",), _FIVE),
    Repeated("ast", ("ASTLayer",), _FIVE),
    Repeated(
        "clip",
        ("CLIPEncoderLayer",),
        {"text_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 5}},
    ),
    Repeated(
        "llava",
        ("CLIPEncoderLayer", "LlamaDecoderLayer"),
        {"text_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 5}},
    ),
    Repeated("unet", ("DoubleConvolution",)),
    Repeated("residual-unet", ("ResidualBlock",)),
    Repeated("mixer", ("MixerLayer",)),
)


def export_repeated(row: Repeated, exporter: str, path: Path) -> None:
    """The network as a tagged file, without the check of outputs."""
    model, inputs = _build(row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mx.export(model, path, inputs=inputs, exporter=exporter, no_check=True)


def _build(row: Repeated) -> tuple[nn.Module, object]:
    if row.name in _NETWORKS:
        network, shape = _NETWORKS[row.name]
        return perturbed(network()).eval(), (torch.randn(shape),)
    stored = rows_by_name()[row.name]
    changed = replace(stored, config=_merge(stored.config, row.config))
    model = build(changed)
    return model, inputs_of(changed, model)


def _merge(settings: Mapping[str, Setting], changes: Mapping[str, Setting]) -> Mapping[str, Setting]:
    merged = dict(settings)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


class DoubleConvolution(nn.Module):
    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(made) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip((self.first, self.second), self.norms, strict=True):
            x = torch.relu(norm(convolution(x)))
        return x


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, every level joined with the same level of the way down."""

    def __init__(self) -> None:
        super().__init__()
        widths = (8, 16, 32, 64)
        self.down = nn.ModuleList(DoubleConvolution(*pair) for pair in zip((3, *widths), widths, strict=False))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, 2) for narrow, wide in _pairs(widths))
        self.up = nn.ModuleList(DoubleConvolution(wide, narrow) for narrow, wide in _pairs(widths))
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for skip, grow, block in zip(skips[-2::-1], self.grow, self.up, strict=True):
            x = block(torch.cat([skip, grow(x)], 1))
        head: Tensor = self.head(x)
        return head


def _pairs(widths: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(widths[-2::-1], widths[:0:-1], strict=True))


class ResidualBlock(nn.Module):
    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(4, given), nn.GroupNorm(4, made)))
        self.convolutions = nn.ModuleList((nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)))
        self.time = nn.Linear(16, made)
        self.shortcut = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.convolutions[0](nn.functional.silu(self.norms[0](x))) + self.time(time)[:, :, None, None]
        made: Tensor = self.shortcut(x) + self.convolutions[1](nn.functional.silu(self.norms[1](y)))
        return made


class ResidualUNet(nn.Module):
    """As in diffusion: two residual blocks on each level, told the time; skips from every block."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.ModuleList(
            ResidualBlock(*sizes) for sizes in ((8, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32))
        )
        self.shrink = nn.ModuleList(nn.Conv2d(width, width, 3, 2, 1) for width in (8, 16))
        self.middle = nn.Conv2d(32, 32, 3, padding=1)
        self.up = nn.ModuleList(
            ResidualBlock(*sizes) for sizes in ((64, 32), (64, 32), (48, 16), (32, 16), (24, 8), (16, 8))
        )
        self.grow = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in (32, 16))
        self.norm, self.head = nn.GroupNorm(4, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        time = self.time(x.mean((2, 3)).repeat(1, 3)[:, :8])
        x = self.stem(x)
        skips = []
        for number, block in enumerate(self.down):
            if number in (2, 4):
                x = self.shrink[number // 2 - 1](x)
            x = block(x, time)
            skips.append(x)
        x = torch.relu(self.middle(x))
        for number, block in enumerate(self.up):
            if number in (2, 4):
                x = self.grow[number // 2 - 1](nn.functional.interpolate(x, scale_factor=2.0))
            x = block(torch.cat([x, skips.pop()], 1), time)
        head: Tensor = self.head(nn.functional.silu(self.norm(x)))
        return head


class MixerLayer(nn.Module):
    """Without attention: products over the tokens, then over the channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(tokens, 24), nn.GELU(), nn.Linear(24, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        channels: Tensor = self.channels(self.norms[1](x))
        return x + channels


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 8, 8)
        self.layers = nn.ModuleList(MixerLayer(16, 32) for _ in range(5))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        head: Tensor = self.head(self.norm(x).mean(1))
        return head


_NETWORKS: Mapping[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "unet": (UNet, (2, 3, 32, 32)),
    "residual-unet": (ResidualUNet, (2, 3, 32, 32)),
    "mixer": (Mixer, (2, 3, 32, 32)),
}
