"""Turning an exporter's exception into one message that keeps torch's reason."""

from __future__ import annotations

import torch

from modelexport.errors import ExportFailed

_LINES_KEPT = 6


def export_failed(model: torch.nn.Module, exporter: str, error: BaseException, next_step: str) -> ExportFailed:
    return ExportFailed(
        f"torch cannot export {type(model).__name__} with the {exporter} exporter: {reason(error)}", next_step
    )


def reason(error: BaseException, lines: int = _LINES_KEPT) -> str:
    """The innermost cause, in its own words."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(text[:lines])
