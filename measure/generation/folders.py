"""Folders of tiny models, as a hub would give them: configuration, weights, tokenizer, and what reads images or sound.

save_folder(find_family("llava"), folder)
folder/   config.json  generation_config.json  model.safetensors  tokenizer.json  preprocessor_config.json
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure.generation.families import Family
from measure.generation.models import FIRST_WORD, VOCABULARY, build_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>", "<image>", "<image_start>", "<image_end>", "<video>")
_SPACE = "Ġ"  # what byte-level tokenizers write for a blank
_CHARACTERS = (*string.ascii_letters, *string.digits, *string.punctuation, _SPACE)
_MERGES = (
    *(("t", "h"), ("h", "e"), ("i", "n"), ("e", "r"), ("a", "n"), ("r", "e"), ("o", "n"), ("a", "t"), ("e", "n")),
    *(("n", "d"), ("t", "i"), ("e", "s"), ("o", "r"), ("t", "e"), ("o", "f"), ("e", "d"), ("i", "s"), ("i", "t")),
    *(("a", "l"), ("a", "r"), ("s", "t"), ("t", "o"), ("n", "t"), ("th", "e"), ("an", "d")),
)


def save_folder(family: Family, folder: Path) -> None:
    """The family's model, with everything that a command line needs to export it without a network."""
    model: Any = build_model(family)
    model.save_pretrained(folder)
    make_tokenizer(padding_side="right" if family.kind == "encoder-decoder" else "left").save_pretrained(folder)
    processor = make_processor(family)
    if processor is not None:
        processor.save_pretrained(folder)


def make_tokenizer(padding_side: str = "left") -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of as many tokens as the models know, for texts of plain characters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = (*SPECIAL_TOKENS, *_CHARACTERS, *(left + right for left, right in _MERGES))
    assert len(tokens) == VOCABULARY and len(SPECIAL_TOKENS) == FIRST_WORD  # noqa: PT018  # one claim: ids fit models
    pieces = models.BPE(
        vocab={token: number for number, token in enumerate(tokens)}, merges=list(_MERGES), unk_token="<unk>"
    )
    tokenizer = Tokenizer(pieces)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=list(SPECIAL_TOKENS[4:]),
        padding_side=padding_side,
    )


def make_processor(family: Family) -> Any:
    """What makes pixels or sound into the family's inputs; None where it takes text alone."""
    import transformers

    if not family.processor:
        return None
    return getattr(transformers, family.processor)(**family.processing)
