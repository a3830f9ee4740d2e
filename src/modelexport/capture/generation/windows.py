"""Sliding windows: caches that forget, in a form that one graph can hold.

A layer with a window keeps the last `sliding_window - 1` tokens. transformers asks in Python whether the window is full
and cuts with a negative index, which an exporter answers once, for the sample. Here the same is said with lengths:

    keys kept       full[:, :, -(window - 1):]        full[:, :, max(length - (window - 1), 0):]
    mask length     window - 1 + query if full …      length of the keys + query
    mask offset     seen - window + 1 if full …       seen - length of the keys

https://github.com/huggingface/transformers/blob/main/src/transformers/cache_utils.py (DynamicSlidingWindowLayer)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from modelexport.capture.loading.third_party import library


@contextmanager
def exportable_windows(*, forget: bool = True) -> Iterator[None]:
    """While this is open, layers with a window work for lengths that are symbols; afterwards as before.

    forget  False: they keep every token, and the mask alone hides what is out of the window, for consumers whose caches
            are all as long as the past
    Inside of another one it does nothing: who called first has chosen.
    """
    caches = library("transformers.cache_utils")
    layer = getattr(caches, "DynamicSlidingWindowLayer", None)
    if layer is None or vars(layer)["update"] in (_update, caches.DynamicLayer.update):
        yield
        return
    growing = vars(caches.DynamicLayer)
    replaced: dict[str, Any] = {"update": _update, "get_mask_sizes": _get_mask_sizes}
    if not forget:
        kept = ("update", "get_mask_sizes", "get_seq_length", "get_max_length", "is_sliding")
        replaced = {name: growing[name] for name in kept}
    before = {name: vars(layer)[name] for name in replaced}
    for name, member in replaced.items():
        setattr(layer, name, member)
    try:
        yield
    finally:
        for name, member in before.items():
            setattr(layer, name, member)


def _update(self: Any, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
    if not self.is_initialized:
        self.lazy_initialization(key_states, value_states)
    self.cumulative_length += key_states.shape[-2]
    keys = torch.cat([self.keys, key_states], dim=-2)
    values = torch.cat([self.values, value_states], dim=-2)
    start: int = torch.sym_max(keys.shape[-2] - (self.sliding_window - 1), 0)  # type: ignore[no-untyped-call]
    self.keys, self.values = keys[:, :, start:, :], values[:, :, start:, :]
    return keys, values


def _get_mask_sizes(self: Any, query_length: int) -> tuple[int, int]:
    kept = self.keys.shape[-2] if self.is_initialized and self.keys.dim() > 1 else 0
    return kept + query_length, self.cumulative_length - kept
