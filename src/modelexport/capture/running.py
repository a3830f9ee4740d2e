"""Running a file as anybody would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_SILENT = 4


def open_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_session(session: Any, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What the file returns. Of the feed, what it takes; tools may drop inputs that nobody reads."""
    wanted = {value.name for value in session.get_inputs()}
    found: list[np.ndarray] = session.run(None, {name: array for name, array in feed.items() if name in wanted})
    return found


def run_file(path: Path, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return run_session(open_session(path), feed)
