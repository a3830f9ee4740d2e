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
        wide = tensor.detach().double().cpu()
        spread = wide.std(unbiased=False) if wide.numel() else wide.new_zeros(())
        drawn = torch.randn(wide.shape, generator=generator, dtype=wide.dtype) * (spread or 1.0) + wide.mean()
        return drawn.to(tensor.dtype).to(tensor.device)
    order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
    return tensor.reshape(-1)[order].reshape(tensor.shape)
