"""What a comparison of an ONNX file with PyTorch found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """One run of the written file, compared with PyTorch. `message` says what is wrong where `ok` is False."""

    ok: bool
    max_abs_diff: float
    max_rel_diff: float
    message: str = ""
