"""Where text goes: standard output, or a file that appears complete or not at all."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from modelexport.graph.atomic import ensure_writable, write_atomically


def emit(text: str, path: Path | None = None) -> None:
    if path is None:
        sys.stdout.write(text)
    else:
        write_atomically(path, text)


def ensure_targets(paths: Iterable[Path]) -> None:
    """Fail now if text cannot be written to all of these, each of them a file of its own."""
    ensure_writable(*paths)
