"""Monte Carlo arithmetic: how much of what a model returns is rounding, measured by rounding differently.

A result may be the small rest of large numbers that cancel. Two correct programs then differ by all of it, and the
numbers alone do not say so. A run in which what every operator reads is changed in its last bits shows it:

    (x + 1e4) - 1e4     x = 1e-3    returns 0.0009766; with other last bits 0.0, 0.0019531    noise 1e-3
    x * 1e-9            x = 1e-3    returns 1e-12;     with other last bits 1.0000001e-12      noise 1e-19

Such runs are made only where a difference could be either, so that they cost nothing elsewhere.
https://en.wikipedia.org/wiki/Monte_Carlo_arithmetic (D. S. Parker, 1997)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.capture.arguments import CallArguments, output_tensors, storage_pointer, to_array
from modelexport.capture.hierarchy import run_model
from modelexport.capture.silence import quiet

# Last bits that change: kernels for the same function differ by one to four of them.
LAST_BITS = 8.0
_RUNS = 2
# What only moves or compares values rounds nothing: `torch.equal(h, h.flip(0))` is true of one row, whoever computes h.
_EXACT = frozenset(
    f"aten::{name}"
    for name in (
        *("equal", "eq", "ne", "flip", "roll", "repeat", "clone", "cat", "stack", "constant_pad_nd"),
        *("index", "index_select", "gather", "take", "masked_select"),
    )
)


class RoundedDifferently(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is open, floats that operators read are off by some last bits, others in each run.

    Weights are left as they are: what they are multiplied with is off already, and copies of them take time.
    """

    supports_higher_order_operators = True

    def __init__(self, model: torch.nn.Module, seed: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Random numbers of its own: the model is to draw those that it drew before.
        self._generator = torch.Generator().manual_seed(seed)
        self._weights = {storage_pointer(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        # A write must go into the tensor itself, and a view must be one of the tensor itself.
        if schema is None or schema.is_mutable or any(item.alias_info for item in schema.returns):
            return func(*args, **kwargs)
        if schema.name in _EXACT:
            return func(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._disturb, (args, kwargs))
        return func(*args, **kwargs)

    def _disturb(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.layout is torch.strided and tensor.is_floating_point() and tensor.device.type == "cpu"
        if not plain or storage_pointer(tensor) in self._weights:
            return tensor
        bits = torch.rand(tensor.shape, generator=self._generator).mul_(2).sub_(1)
        factor = bits.mul_(LAST_BITS * torch.finfo(tensor.dtype).eps).to(torch.float64).add_(1)
        return (tensor.to(torch.float64) * factor).to(tensor.dtype)


def measure_output_noise(
    model: torch.nn.Module, arguments: CallArguments, outputs: Mapping[str, torch.Tensor]
) -> dict[str, float]:
    """By output: the largest change that other last bits make. Infinite where they change what is returned at all."""
    noise = dict.fromkeys(outputs, 0.0)
    for seed in range(_RUNS):
        with quiet(), RoundedDifferently(model, seed):
            again = output_tensors(run_model(model, arguments))
        for name, tensor in outputs.items():
            noise[name] = max(noise[name], largest_change(tensor, again.get(name)))
    return noise


def largest_change(tensor: torch.Tensor, other: torch.Tensor | None) -> float:
    if other is None or tensor.shape != other.shape:
        return float("inf")
    return largest_array_change(to_array(tensor), to_array(other))


def largest_array_change(array: np.ndarray, other: np.ndarray) -> float:
    """What is not finite in both says nothing; what is not in one of them is infinitely far away."""
    if array.shape != other.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        apart = np.abs(array.astype(np.float64) - other.astype(np.float64))
    finite = np.isfinite(array.astype(np.float64)), np.isfinite(other.astype(np.float64))
    if (finite[0] != finite[1]).any():
        return float("inf")
    return float(np.max(apart, where=finite[0], initial=0.0))
