"""Mixture-of-experts layers in the one form that exporters understand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# transformers has several ways to run experts; only this one is free of operators that ONNX lacks.
_EXPORTABLE = "batched_mm"
_PLAIN = "eager"


@contextmanager
def exportable_experts(model: torch.nn.Module) -> Iterator[None]:
    """While this is open, experts run as batched matrix products; afterwards as they did before."""
    before = _implementations(model)
    if all(name == _PLAIN for name in before.values()):
        # Models without experts say so too.
        yield
        return
    setter: Any = model.set_experts_implementation
    setter(_EXPORTABLE)
    try:
        yield
    finally:
        setter(before)


def _implementations(model: torch.nn.Module) -> dict[str, str | None]:
    getter = getattr(model, "get_experts_implementation", None)
    return getter() if callable(getter) and hasattr(model, "set_experts_implementation") else {}
