"""What is different about a model that was left in training mode."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd


def random_layers_in_training(model: nn.Module) -> tuple[str, ...]:
    """Paths of the modules that draw random numbers because they are in training mode.

    These are torch's own layers. A function that a module calls by itself leaves no trace in it.
    """
    return _in_training(model, _draws)


def running_norms_in_training(model: nn.Module) -> tuple[str, ...]:
    """Paths of the norms that use the statistics of the input, because they are in training mode, not the stored ones.

    Nothing is random about them, but their numbers are other ones than those of an exported file.
    """
    return _in_training(model, lambda module: isinstance(module, _NormBase) and module.track_running_stats)


def _in_training(model: nn.Module, concerns: Callable[[nn.Module], bool]) -> tuple[str, ...]:
    return tuple(path for path, module in model.named_modules() if module.training and concerns(module))


def _draws(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RReLU):
        return module.lower < module.upper
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1  # between layers, of which there must be two
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0
