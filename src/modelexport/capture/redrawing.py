"""Further inputs like the given ones: same names, shapes, types and range."""

from __future__ import annotations

import torch

from modelexport.capture.arguments import CallArguments


def redrawn(arguments: CallArguments, seed: int) -> CallArguments:
    """Floats are drawn anew from the same spread; integers, which may be indices, change places among themselves."""
    generator = torch.Generator().manual_seed(seed)
    return arguments.with_tensors({name: _redrawn(tensor, generator) for name, tensor in arguments.tensors.items()})


def _redrawn(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.is_floating_point():
        return _drawn(tensor.detach().double().cpu(), generator).to(tensor.dtype).to(tensor.device)
    order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
    return tensor.reshape(-1)[order].reshape(tensor.shape)


def _drawn(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """What is not finite, as in a mask that is added, stays where it is."""
    finite = tensor.isfinite()
    if not finite.any():
        return tensor
    spread, middle = tensor[finite].std(unbiased=False), tensor[finite].mean()
    drawn = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * (spread or 1.0) + middle
    return torch.where(finite, drawn, tensor)
