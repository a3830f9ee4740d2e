"""Running a model without leaving a trace on it."""

from __future__ import annotations

import io
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr

import torch

# torch's exporters keep their state in globals: one export at a time in a process.
EXPORT_LOCK = threading.RLock()

_CHATTY_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir", "torch.fx")


@contextmanager
def undisturbed(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; training flags, buffers and random state are put back afterwards."""
    modes = {part: part.training for part in module.modules()}
    buffers = [(buffer, buffer._version, buffer.detach().clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            module.eval()
            yield
        finally:
            for part, training in modes.items():
                part.training = training
            for buffer, version, saved in buffers:
                if buffer._version != version:
                    buffer.copy_(saved)


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
