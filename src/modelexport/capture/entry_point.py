"""Entry point: one way to call a model, as a function of named tensors.

A model that generates is called in several ways: the encoder alone, the decoder with an empty cache, the decoder with a
cache. Each of them becomes one ONNX file. All are calls of the *whole* model, so that module paths, which exporters and
hooks count from the root, mean the same module in every file:

    with entered(model, EntryPoint("encoder", lambda input_ids: {"last_hidden_state": …})):
        trace_model(model, …); export_traced(…)          encoder.block.0, not block.0
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from modelexport.record.package import CachePair


@dataclass(frozen=True)
class EntryPoint:
    """
    forward  takes the tensors of `inputs` by keyword, returns tensors by the names that the graph's outputs get
    inputs   a sample, in the order of the graph's inputs
    axes     dynamic axes of the inputs, by name
    cache    inputs that the next call gets from outputs of this one
    """

    name: str
    forward: Callable[..., Mapping[str, torch.Tensor]]
    inputs: Mapping[str, torch.Tensor]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    cache: tuple[CachePair, ...] = ()


@contextmanager
def entered(model: torch.nn.Module, entry: EntryPoint) -> Iterator[None]:
    """While this is open, calling the model calls the entry point; afterwards its own `forward` again."""
    before = vars(model).get("forward")

    def forward(**tensors: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return entry.forward(**tensors)

    # Exporters bind inputs by the signature, and have no use for `**tensors`.
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(_argument(name), inspect.Parameter.KEYWORD_ONLY) for name in entry.inputs]
    )
    model.forward = forward
    try:
        yield
    finally:
        if before is None:
            del model.forward
        else:
            model.forward = before


def _argument(name: str) -> str:
    return name
