"""Unread modules: those whose weights change nothing, such as a norm behind features that are taken before it.

A module that is in no file is lost, unless the model itself does not read it. It does not if what it computes is the
same with NaN in the place of the module's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn


def find_unread(model: nn.Module, paths: Iterable[str], run: Callable[[], Any]) -> tuple[str, ...]:
    """
    paths  of modules, each tried alone; weights are as they were afterwards
    run    gives numbers of the model
    """
    candidates = tuple(paths)
    if not candidates:
        return ()
    expected = np.asarray(run())
    return tuple(path for path in candidates if _is_same(model.get_submodule(path), run, expected))


@torch.no_grad()
def _is_same(module: nn.Module, run: Callable[[], Any], expected: np.ndarray) -> bool:
    kept = [parameter.clone() for parameter in module.parameters()]
    try:
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
        return np.array_equal(np.asarray(run()), expected)
    finally:
        for parameter, before in zip(module.parameters(), kept, strict=True):
            parameter.copy_(before)
