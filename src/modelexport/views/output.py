"""Where text goes: standard output, or a file that appears complete or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

from modelexport.graph.atomic import write_atomically


def emit(text: str, path: Path | None = None) -> None:
    if path is None:
        sys.stdout.write(text)
    else:
        write_atomically(path, text)
