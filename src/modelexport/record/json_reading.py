"""JSON from strangers: sidecars, overlays, packages and configurations, read within limits.

    read_json(Path("input-specs.json"))         {"input_ids": {"shape": [2, 16]}}
    parse_json("[" * 50_000)                    ValueError: it is nested more than 64 levels deep

Python's own parser recurses into lists of lists until its stack ends, which is a RecursionError in whatever happens to
read the file, and memory has no limit at all. Here both are a ValueError, which every reader of JSON expects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelexport.record.regular_files import open_regular

# The deepest documents that are read are profiles and configurations of models: 5 and 7 levels.
_DEEPEST = 64
# The smallest values take three bytes in a file (`{},`) and 64 in Python: 64 MB of them are 1.5 GB. A sidecar has some
# hundred bytes for each node, and takes a tenth of what Python makes of it.
_LARGEST = 1 << 26

# Half of a surrogate pair, written as an escape or as bytes: no file, no name in ONNX and no terminal can hold one.
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_ENCODED_HALF = re.compile(rb"\xed[\xa0-\xbf]")

Pairs = Callable[[list[tuple[str, Any]]], Any]


def read_json(path: Path, object_pairs_hook: Pairs | None = None) -> Any:
    """The content of a file. Raises OSError, and ValueError for what is no JSON, or too much of it."""
    with open_regular(path) as file:
        text = file.read(_LARGEST + 1)
    return parse_json(text, object_pairs_hook)


def read_json_object(path: Path) -> dict[str, Any]:
    """The content of a file that is nobody's fault here: nothing, for one that is missing, damaged or no object."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def parse_json(text: str | bytes, object_pairs_hook: Pairs | None = None) -> Any:
    """A document. Raises ValueError for what is no JSON or no Unicode, is nested too deeply, or is too large."""
    if len(text) > _LARGEST:
        raise ValueError(f"it is larger than {_LARGEST >> 20} MB")
    try:
        document = json.loads(text, object_pairs_hook=object_pairs_hook)
    except (RecursionError, MemoryError) as error:
        raise ValueError(_describe_depth()) from error
    _ensure_shallow(document)
    if _may_have_halves(text):
        _ensure_unicode(document)
    return document


def _may_have_halves(text: str | bytes) -> bool:
    """Quickly; a whole pair looks like two halves."""
    if isinstance(text, str):
        return bool(_ESCAPED_HALF.search(text)) or not text.isascii()
    # Other encodings than UTF-8 are read as well, which have a NUL in them.
    return bool(_ENCODED_HALF.search(text)) or b"\0" in text or bool(_ESCAPED_HALF.search(text.decode("latin-1")))


def _ensure_unicode(document: Any) -> None:
    waiting = [document]
    while waiting:
        match waiting.pop():
            case str(text) if not text.isascii():
                text.encode()
            case dict(section):
                waiting += [*section, *section.values()]
            case list(items) | tuple(items):
                waiting += items


def _ensure_shallow(document: Any) -> None:
    """Level by level, without recursion: what is read here may be printed, copied and written recursively later."""
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ())
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise ValueError(_describe_depth())


def _describe_depth() -> str:
    return f"it is nested more than {_DEEPEST} levels deep"
