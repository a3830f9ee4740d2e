"""Networks that the rules for roles are tried on and were not written for, and one that they were: DeBERTa."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from tests.support.architectures import SPECIAL, TEXT
from tests.support.nets import perturbed
from torch import nn

from modelexport.graph.index import Graph
from modelexport.record.provenance import Provenance

Assigned = Callable[[str, str], tuple[Graph, Provenance]]

_DECODER = TEXT | {"num_key_value_heads": 2}
_SEQ2SEQ = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def _deberta(t: Any, **options: Any) -> nn.Module:
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "type_vocab_size": 0}
    return t.DebertaV2Model(t.DebertaV2Config(**TEXT, **relative, **options))


def _distilbert(t: Any) -> nn.Module:
    return t.DistilBertModel(t.DistilBertConfig(vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64))


def _opt(t: Any) -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "vocab_size": 100}
    return t.OPTForCausalLM(t.OPTConfig(**sizes, word_embed_proj_dim=32, max_position_embeddings=64, pad_token_id=1))


def _swin(t: Any) -> nn.Module:
    return t.SwinModel(
        t.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    )


class Softmaxes(nn.Module):
    """A mixture of two experts by a softmax gate, and a softmax over classes: no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 2)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.classes = nn.Linear(8, 5)
        self.after = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.gate(x).softmax(-1)
        mixed = share[..., :1] * self.first(x) + share[..., 1:] * self.second(x)
        return self.after(self.classes(mixed).softmax(-1))


class Memory(nn.Module):
    """Looks up a learned table by a softmax over products with it: keys and values that nothing projects."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.keys = nn.Parameter(torch.randn(6, 8))
        self.values = nn.Parameter(torch.randn(6, 8))
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out((self.query(x) @ self.keys.T).softmax(-1) @ self.values)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


_PRETRAINED: dict[str, Callable[[Any], nn.Module]] = {
    "deberta": _deberta,
    "deberta-shared": lambda t: _deberta(t, share_att_key=True),
    "distilbert": _distilbert,
    "electra": lambda t: t.ElectraModel(t.ElectraConfig(**TEXT, embedding_size=16)),
    "qwen2": lambda t: t.Qwen2ForCausalLM(t.Qwen2Config(**_DECODER)),
    "gemma": lambda t: t.GemmaForCausalLM(t.GemmaConfig(**_DECODER, head_dim=8)),
    "opt": _opt,
    "bart": lambda t: t.BartForConditionalGeneration(t.BartConfig(**_SEQ2SEQ, **SPECIAL)),
    "swin": _swin,
    "mamba": lambda t: t.MambaForCausalLM(
        t.MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, state_size=4)
    ),
    "phi3": lambda t: t.Phi3ForCausalLM(t.Phi3Config(**_DECODER)),
    "bloom": lambda t: t.BloomForCausalLM(t.BloomConfig(vocab_size=100, hidden_size=32, n_layer=2, n_head=4)),
    "convnext": lambda t: t.ConvNextModel(t.ConvNextConfig(hidden_sizes=[8, 16], depths=[2, 2], num_stages=2)),
}
_HAND_WRITTEN: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "softmaxes": lambda: (Softmaxes(), (torch.randn(2, 3, 8),)),
    "memory": lambda: (Memory(), (torch.randn(2, 3, 8),)),
    "encoder": lambda: (_encoder(), (torch.randn(2, 5, 16),)),
}

NAMES = (*_PRETRAINED, *_HAND_WRITTEN)


def build(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...] | None]:
    """A network, and what to feed it where that cannot be found out."""
    import transformers

    with torch.random.fork_rng(), warnings.catch_warnings():
        # transformers compiles functions of some models by what torch has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.manual_seed(0)
        if name in _HAND_WRITTEN:
            net, inputs = _HAND_WRITTEN[name]()
            return perturbed(net), inputs
        return perturbed(_PRETRAINED[name](transformers)), None
