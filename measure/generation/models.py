"""Tiny models that generate, with the inputs of `generate`: seeded, the same in every process.

example = make_example(find_family("llama"))
example.model.generate(**example.inputs, **GREEDY)      32 tokens for each of two prompts
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from measure.generation.families import Family

PAD, BOS, EOS, UNKNOWN, IMAGE, IMAGE_START, IMAGE_END, VIDEO = range(8)
# Tokens from here on are text.
FIRST_WORD = 8
VOCABULARY = 128
NEW_TOKENS = 32
GREEDY: Mapping[str, Any] = MappingProxyType({"max_new_tokens": NEW_TOKENS, "do_sample": False})
# Tokens of the two prompts. They differ, so that one is padded.
PROMPTS = (9, 6)

# With the spread that a configuration gives, a tiny model repeats its last token for ever: what the layers add is small
# beside the embedding, and the head is often the embedding again. So layers add more, and embeddings are small.
_LAYER_SPREAD = 4.0
_EMBEDDING_SPREAD = 0.05
_SHIFT = 0.2
_INPUT_SEED = 1
# Above this a matrix is no plain random weight: it holds decay rates or positions, which have to stay.
_RANDOM_WEIGHT = 0.3


@dataclass(frozen=True)
class Example:
    """A model in evaluation mode, and keywords of its `generate`."""

    model: nn.Module
    inputs: Mapping[str, torch.Tensor]

    def generate(self, **settings: Any) -> Any:
        """What `generate` returns, greedy unless settings say otherwise. Inputs stay as they are."""
        inputs = {name: tensor.clone() for name, tensor in self.inputs.items()}
        return self.model.generate(**inputs, **{**GREEDY, **settings})  # type: ignore[operator]  # of a Module


def make_example(family: Family) -> Example:
    """The family's model with a batch of two; the global random state is left as it was."""
    return Example(build_model(family), make_generate_inputs(family))


def build_model(family: Family) -> nn.Module:
    """The family's model with random weights under which greedy decoding says something."""
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(family.seed)
        config = getattr(transformers, family.config_class)(**family.config)
        model: Any = getattr(transformers, family.model_class)._from_config(config).eval()
    spread_weights(model, family.seed, family.mixing)
    silence_tokens(model, FIRST_WORD)
    # Some configurations end every text with a token that the model did not choose.
    model.generation_config.forced_eos_token_id = None
    built: nn.Module = model
    return built


@torch.no_grad()
def spread_weights(model: nn.Module, seed: int, mixing: float) -> None:
    """Draw weights again, by their shape: small embeddings, large layers. Vectors are moved: none is all ones."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    # Computed ones are frozen, and not saved with the model.
    embeddings = [embedding for embedding in embeddings if embedding.weight.requires_grad]
    for embedding in embeddings:
        embedding.weight.normal_(0, _EMBEDDING_SPREAD, generator=generator)
        if embedding.padding_idx is not None:
            embedding.weight[embedding.padding_idx] = 0
    drawn = {id(embedding.weight) for embedding in embeddings}
    for parameter in model.parameters():
        if id(parameter) in drawn or not parameter.requires_grad:
            continue
        if parameter.ndim == 1:
            parameter.add_((torch.rand(parameter.shape, generator=generator) - 0.5) * _SHIFT)
        elif parameter.ndim >= 2 and parameter.std() < _RANDOM_WEIGHT:
            spread = mixing if parameter.shape[-1] == parameter.shape[-2] else _LAYER_SPREAD
            parameter.normal_(0, spread / math.sqrt(parameter.shape[-1]), generator=generator)


@torch.no_grad()
def silence_tokens(model: Any, count: int) -> None:
    """Logits of the first tokens become 0, never the greatest: no end of text, nothing that stands for images."""
    head = model.get_output_embeddings()
    head.weight[:count] = 0
    if getattr(head, "bias", None) is not None:
        head.bias[:count] = 0


def make_generate_inputs(family: Family) -> dict[str, torch.Tensor]:
    """A batch of two prompts of different lengths, or the longer one alone.

    Decoders are padded on the left, encoders on the right.
    """
    generator = torch.Generator().manual_seed(_INPUT_SEED)
    inputs = make_prompts(family, generator) if family.takes_text else {}
    if family.lengths:
        inputs["attention_mask"] = _mask_right(family.lengths)
    for name, shape in family.floats.items():
        inputs[name] = torch.randn(shape, generator=generator)
    image = family.image
    if image is not None and image.grid:
        inputs["image_grid_thw"] = torch.tensor([image.grid] * len(PROMPTS))
    if image is not None and image.marks:
        inputs[image.marks] = torch.where(inputs["input_ids"] == IMAGE, *image.values[:2])
    return inputs


def make_prompts(family: Family, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask` of random words, behind the place of an image if there is one."""
    opening = _open_prompt(family)
    counts = PROMPTS[:1] if family.one_row else PROMPTS
    length = len(opening) + max(counts)
    input_ids = torch.full((len(counts), length), PAD)
    attention_mask = torch.zeros((len(counts), length), dtype=torch.long)
    for row, count in enumerate(counts):
        words = torch.randint(FIRST_WORD, VOCABULARY, (count,), generator=generator)
        used = len(opening) + count
        where = slice(0, used) if family.kind == "encoder-decoder" else slice(length - used, length)
        input_ids[row, where] = torch.cat([torch.tensor(opening, dtype=torch.long), words])
        attention_mask[row, where] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def _open_prompt(family: Family) -> list[int]:
    if family.image is None:
        return []
    images = [IMAGE] * family.image.tokens
    return [IMAGE_START, *images, IMAGE_END] if family.image.framed else images


def _mask_right(lengths: tuple[int, ...]) -> torch.Tensor:
    return (torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]).long()
