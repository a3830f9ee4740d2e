"""The map in which torch keeps the names of modules while it traces: the one place that touches it.

`torch.jit._trace._trace_module_map` belongs to torch alone. It is None unless a trace runs; the TorchScript exporter
fills it with a scope for each module, class and name: `torch.nn.modules.linear.Linear::query`. A version of torch
without it, or with another one, is not an error: whoever asks is told that there is nothing to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

_NAME = "_trace_module_map"
_SEPARATOR = "::"


def scope_parts(model: torch.nn.Module) -> dict[str, str]:
    """While the exporter traces: module paths, mapped to the part of a scope that names them. Empty if unreadable."""
    known = getattr(_holder(), _NAME, None)
    if not isinstance(known, dict):
        return {}
    scopes = {path: known.get(part) for path, part in model.named_modules() if path}
    if not all(isinstance(scope, str) and _SEPARATOR in scope for scope in scopes.values()):
        return {}
    return {path: str(scope).partition(_SEPARATOR)[2] for path, scope in scopes.items()}


@contextmanager
def scopes_named(names: Mapping[torch.nn.Module, str]) -> Iterator[None]:
    """While this is open, a trace gives these names to its scopes."""
    holder = _holder()
    before = getattr(holder, _NAME, None)
    setattr(holder, _NAME, dict(names))
    try:
        yield
    finally:
        setattr(holder, _NAME, before)


def _holder() -> object:
    return getattr(torch.jit, "_trace", None)
