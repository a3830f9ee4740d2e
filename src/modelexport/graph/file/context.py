"""Context of a model: how many tokens it has positions for, and sizes of its cache, as the configuration beside says.

    find_context(Path("qwen3"))                                  Context(length=32768, is_shared=True)
    find_cache_sizes(Path("qwen3"), ["past_key_values.0.key"])   {"past_key_values.0.key": {1: 8, 3: 128}}

The keys are those of transformers' config.json and of onnxruntime-genai's genai_config.json.
https://huggingface.co/docs/transformers/main_classes/configuration
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelexport.record.json_reading import read_json_object

_CONFIG, _GENAI_CONFIG = "config.json", "genai_config.json"
# Inputs of onnxruntime-genai's decoders that are [batch, heads, tokens, head size].
_CACHE_NAMES = ("past_key_names", "past_value_names")
_CACHE_AXES = {1: "num_key_value_heads", 3: "head_size"}


@dataclass(frozen=True)
class Context:
    """
    length     tokens
    is_shared  whether prompt and new tokens are one text; an encoder has positions of its own
    """

    length: int
    is_shared: bool = True


def find_context(folder: Path) -> Context | None:
    """None if no configuration says it: positions may be without end."""
    config = _read(folder / _CONFIG)
    length = next(_lengths(folder, config), None)
    return None if length is None else Context(length, not config.get("is_encoder_decoder", False))


def _lengths(folder: Path, config: dict[str, Any]) -> Iterator[int]:
    generating, text = _read(folder / _GENAI_CONFIG).get("model"), config.get("text_config")
    # The consumer's own limit first, then that of the part which generates, then that of the whole model.
    sections = (generating, "context_length"), (text, "max_position_embeddings"), (config, "max_position_embeddings")
    for section, key in sections:
        length = section.get(key) if isinstance(section, dict) else None
        if isinstance(length, int) and length > 0:
            yield length


def find_cache_sizes(folder: Path, inputs: Sequence[str]) -> dict[str, dict[int, int]]:
    """Sizes of axes of those inputs that genai_config.json calls a cache; none where there is no such file."""
    model = _read(folder / _GENAI_CONFIG).get("model")
    decoder = model.get("decoder") if isinstance(model, dict) else None
    names = decoder.get("inputs") if isinstance(decoder, dict) else None
    if not isinstance(decoder, dict) or not isinstance(names, dict):
        return {}
    sizes = {axis: decoder.get(key) for axis, key in _CACHE_AXES.items()}
    known = {axis: size for axis, size in sizes.items() if isinstance(size, int) and size > 0}
    patterns = [re.escape(str(names[key])).replace("%d", r"\d+") for key in _CACHE_NAMES if key in names]
    return {name: known for name in inputs if known and any(re.fullmatch(pattern, name) for pattern in patterns)}


def _read(path: Path) -> dict[str, Any]:
    """A damaged configuration is the consumer's business: nothing is learned from it here."""
    return read_json_object(path)
