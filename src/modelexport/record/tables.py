"""What the packed forms have in common: tables of distinct values, and text that is compressed."""

from __future__ import annotations

import base64
import bz2
import json
from typing import Any

# A record takes some dozen bytes a node. Whatever unfolds to more than this is an attack.
_LARGEST = 1 << 25


class Table:
    """Distinct values in the order of first use."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        key = json.dumps(value)
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def squeeze(document: Any) -> str:
    """A document as text that ONNX metadata can hold."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    return base64.b85encode(bz2.compress(text)).decode("ascii")


def unsqueeze(text: str, largest: int | None = None) -> Any:
    """Raises ValueError or OSError for what `squeeze` did not write, and for what unfolds to more than `largest`."""
    largest = largest or _LARGEST
    inflater = bz2.BZ2Decompressor()
    found = inflater.decompress(base64.b85decode(text), largest)
    if not inflater.eof:
        raise ValueError("it is cut short" if inflater.needs_input else f"it unfolds to more than {largest} bytes")
    return json.loads(found)
