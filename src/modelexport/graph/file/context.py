"""Context of a model: how many tokens it has positions for, as the configuration beside its files says.

    find_context(Path("qwen3"))     Context(length=32768, is_shared=True)

The keys are those of transformers' config.json and of onnxruntime-genai's genai_config.json.
https://huggingface.co/docs/transformers/main_classes/configuration
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONFIG, _GENAI_CONFIG = "config.json", "genai_config.json"


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


def _read(path: Path) -> dict[str, Any]:
    """A damaged configuration is the consumer's business: nothing is learned from it here."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
