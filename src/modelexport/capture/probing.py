"""Other inputs that are as valid as the given ones, to see what a model does beyond the one sample."""

from __future__ import annotations

from collections.abc import Collection

import torch

from modelexport.capture.arguments import CallArguments


def other_values(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers of the other sign, and a mask that hides the last place."""
    return -tensor if tensor.is_floating_point() else _last_hidden(tensor)


def with_work_to_do(arguments: CallArguments, free: Collection[str]) -> CallArguments | None:
    """The same arguments with one place masked; None where there is no mask that hides nothing.

    Models leave out the work of a mask that hides nothing, and exporters, who do not look at values, keep it.
    `free` are the arguments that may be changed.
    """
    idle = {name: tensor for name, tensor in arguments.tensors.items() if name in free and _is_idle_mask(tensor)}
    return arguments.with_tensors({name: _last_hidden(tensor) for name, tensor in idle.items()}) if idle else None


def _is_idle_mask(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dim() >= 2 and tensor.shape[-1] > 1 and bool((tensor == 1).all())


def _last_hidden(tensor: torch.Tensor) -> torch.Tensor:
    if not _is_idle_mask(tensor):
        return tensor
    masked = tensor.clone()
    masked[..., -1] = 0
    return masked
