"""Running a file once, as anybody would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

_SILENT = 4


def run_file(path: Path, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What the file returns. Of the feed, what it takes; tools may drop inputs that nobody reads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    taken = {one.name: feed[one.name] for one in session.get_inputs() if one.name in feed}
    found: list[np.ndarray] = session.run(None, taken)
    return found
