"""Running a model without leaving a trace on it."""

from __future__ import annotations

import io
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr

import torch

# torch's exporters and dispatch modes keep state in globals: one of them at a time in a process.
EXPORT_LOCK = threading.RLock()

_CHATTY_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir", "torch.fx")


@contextmanager
def undisturbed(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; training flags, buffers and random state are put back afterwards."""
    modes = {part: part.training for part in module.modules()}
    buffers = _Buffers(module)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _modules_all_the_way():
        try:
            module.eval()
            yield
        finally:
            for part, training in modes.items():
                part.training = training
            buffers.put_back()


class _Buffers:
    """What a module's buffers hold now: a run may write into them, or put others in their place."""

    def __init__(self, module: torch.nn.Module) -> None:
        # Buffers of a compiled module cannot be exchanged.
        own = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
        self._held = {part: dict(part._buffers) for part in own}
        self._saved = [(buffer, buffer._version, buffer.detach().clone()) for buffer in module.buffers()]

    def put_back(self) -> None:
        for part, held in self._held.items():
            part._buffers.update(held)
        for buffer, version, saved in self._saved:
            if buffer._version != version:
                buffer.copy_(saved)


@contextmanager
def _modules_all_the_way() -> Iterator[None]:
    """Without gradients torch runs attention layers in one fused operator that calls no submodule and has no ONNX."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def quiet(verbose: bool = False) -> Iterator[None]:
    """Keep the exporters' own warnings and log lines off the terminal."""
    if verbose:
        yield
        return
    with ExitStack() as stack:
        # torch.export prints the graph so far when it fails.
        stack.enter_context(redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for name in _CHATTY_LOGGERS:
            stack.enter_context(_silenced(logging.getLogger(name)))
        yield


@contextmanager
def _silenced(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
