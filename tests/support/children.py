"""Child processes of tests. Every one has a time limit: a child that waits forever must not keep the tests waiting."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Far more than any of them takes, on a machine that is busy.
LIMIT = 240.0


def run_child(command: Sequence[str], *, limit: float = LIMIT, **options: Any) -> subprocess.CompletedProcess[str]:
    """What it says is kept as text unless `options` say where it goes; its exit code is not looked at."""
    if not {"stdout", "stderr", "capture_output"} & options.keys():
        options["capture_output"] = True
    settings = {"text": True, "stdin": subprocess.DEVNULL, **options}
    check = settings.pop("check", False)
    done: subprocess.CompletedProcess[str] = subprocess.run(list(command), timeout=limit, check=check, **settings)
    return done


@contextmanager
def started(
    command: Sequence[str], *, ignoring: Sequence[signal.Signals] = (), limit: float = LIMIT, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A child that runs beside the test; reading from it ends when its time is over, because it is killed then.

    ignoring  signals that it inherits as ignored, as under `nohup`; others are as in a terminal, whoever runs the tests
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with _bequeathed(ignoring):
        child = subprocess.Popen(list(command), **{**pipes, **options})
    timer = threading.Timer(limit, child.kill)
    timer.start()
    try:
        with child:
            yield child
            child.kill()
    finally:
        timer.cancel()


@contextmanager
def _bequeathed(ignoring: Sequence[signal.Signals]) -> Iterator[None]:
    """What is ignored stays so in a child; everything else is as it is by default."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {
        number: signal.signal(number, signal.SIG_IGN if number in ignoring else signal.SIG_DFL) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
