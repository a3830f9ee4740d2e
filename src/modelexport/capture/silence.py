"""Silence: what exporters, loaders and tools say on the way is kept off the terminal, from several threads at once.

    with quiet():                          no warnings, no log lines, nothing on standard error
        torch.onnx.export(…)
                                           afterwards levels, filters and streams are what they were

All of these settings are global to the process, so that they are counted: see `SharedSetting`.
"""

from __future__ import annotations

import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial

_CHATTY_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir", "torch.fx", "transformers")


class SharedSetting:
    """A reference-counted change of global state: the first thread that enters makes it, the last one undoes it.

    Saved and put back by each thread for itself, a level that another thread has changed is taken for the one before:

        thread 1   saves WARNING, sets CRITICAL                                puts WARNING back
        thread 2                                saves CRITICAL, sets CRITICAL                    puts CRITICAL back

    change  makes the change, and returns what undoes it
    """

    def __init__(self, change: Callable[[], Callable[[], object]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._holders = 0
        self._undo: Callable[[], object] = lambda: None

    @contextmanager
    def hold(self) -> Iterator[None]:
        with self._lock:
            if not self._holders:
                self._undo = self._change()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._undo()


def _ignore_warnings() -> Callable[[], object]:
    stack = ExitStack()
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")
    return stack.close


def _discard_stderr() -> Callable[[], object]:
    stack = ExitStack()
    stack.enter_context(redirect_stderr(io.StringIO()))
    return stack.close


def _discard_stdout() -> Callable[[], object]:
    stack = ExitStack()
    stack.enter_context(redirect_stdout(io.StringIO()))
    return stack.close


def _disable_logging() -> Callable[[], object]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    return lambda: logging.disable(before)


def _silence(logger: logging.Logger) -> Callable[[], object]:
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    return lambda: logger.setLevel(level)


_NO_WARNINGS, _NO_LOGGING = SharedSetting(_ignore_warnings), SharedSetting(_disable_logging)
_NO_STDOUT, _NO_STDERR = SharedSetting(_discard_stdout), SharedSetting(_discard_stderr)
_SILENT_LOGGERS: dict[str, SharedSetting] = {}


@contextmanager
def quiet(verbose: bool = False) -> Iterator[None]:
    """Keep the exporters' own warnings and log lines off the terminal."""
    if verbose:
        yield
        return
    # torch.export prints the graph so far when it fails.
    with _NO_STDERR.hold(), silence_loggers(*_CHATTY_LOGGERS):
        yield


@contextmanager
def silence_loggers(*names: str) -> Iterator[None]:
    """While this is open there are no warnings, and these loggers say nothing short of critical."""
    with ExitStack() as stack:
        stack.enter_context(_NO_WARNINGS.hold())
        for name in names:
            # setdefault is atomic: two threads get the same setting.
            setting = _SILENT_LOGGERS.setdefault(name, SharedSetting(partial(_silence, logging.getLogger(name))))
            stack.enter_context(setting.hold())
        yield


@contextmanager
def silence_tools() -> Iterator[None]:
    """Tools talk a lot; what they say when they fail comes as an exception."""
    # Disabled as a whole: tools set the levels of their own loggers, and handlers of the root would still print.
    with _NO_LOGGING.hold(), _NO_WARNINGS.hold(), _NO_STDOUT.hold(), _NO_STDERR.hold():
        yield
