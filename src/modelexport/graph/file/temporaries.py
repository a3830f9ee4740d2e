"""Temporary names: what a file or folder is called until it appears, and how nothing under such a name stays behind.

    .modelexport-3f0c91aa-4711-88210-9d8f02b1.tmp      machine, process and when that began, and a number of its own

A name is remembered before anything has it, and whatever still has it when the program ends is removed then: no signal
can come at a line where a file is there and nobody knows of it. What a killed process left is removed by the next one
that writes to the folder. The name says whose it is: one of a living process, or of another machine, is left alone.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import re
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

_NAME = re.compile(r"\.modelexport-([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{8}\.tmp")
# Those that ask a program to end: Ctrl-C, `kill`, and a terminal that was closed.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# Killed, and only listed until whoever started it asks how it ended.
_ENDED = (b"Z", b"X")
_given: set[Path] = set()


def name_temporary(folder: Path) -> Path:
    """A name in a folder that nothing has; whatever gets it is gone when the program ends."""
    process = os.getpid()
    name = f".modelexport-{_identify_machine()}-{process}-{_read_start(process) or 0}-{secrets.token_hex(4)}.tmp"
    path = folder.absolute() / name
    _given.add(path)
    return path


def remove_temporary(path: Path) -> None:
    """A file or a folder, if it is still there."""
    _remove(path)
    _given.discard(path)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that are no more have left in a folder."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if (name := _NAME.fullmatch(entry.name)) and _is_dead(name[1], int(name[2]), int(name[3])):
                _remove(Path(entry.path))


def _is_dead(machine: str, process: int, start: int) -> bool:
    if machine != _identify_machine() or not start:
        return False  # nothing can be said of it here
    now = _read_start(process)
    return not _is_running(process) if now is None else now != start


def _is_running(process: int) -> bool:
    """Asked where nothing can be read of it: processes of others may be hidden."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@cache
def _identify_machine() -> str:
    """Numbers of processes mean something on one machine, since it was started, and in one container alone."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()


def _read_start(process: int) -> int | None:
    """When a process began, in ticks since the machine did; None where that cannot be read. 0 is that of no process."""
    try:
        # Behind the name of the program, which is in brackets and may hold anything.
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if fields[0] in _ENDED else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


@atexit.register
def _remove_own() -> None:
    """A child that was forked knows the names of its parent, and must leave them alone."""
    mine = f"-{os.getpid()}-"
    with deferring_signals():
        for path in [path for path in _given if mine in path.name]:
            _remove(path)


class _Deferral:
    """Takes the place of signal handlers for as long as something must not be broken off; then they are called."""

    def __init__(self) -> None:
        self.depth = 0
        self.arrived: list[int] = []
        self.handlers: dict[int, Callable[[int, FrameType | None], Any] | int] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.depth:
            self.arrived.append(number)
            return
        # Reached only where an exception came while handlers were put back.
        handler = self.handlers[number]
        signal.signal(number, handler)
        if callable(handler):
            handler(number, frame)
        else:
            signal.raise_signal(number)

    def begin(self) -> None:
        self.depth += 1
        if self.depth > 1:
            return
        for number in ENDING:
            handler = signal.getsignal(number)
            # Not from Python, or not wanted at all.
            if handler is None or handler is signal.SIG_IGN or handler is self:
                continue
            self.handlers[number] = handler
            signal.signal(number, self)

    def end(self) -> None:
        self.depth -= 1
        if self.depth:
            return
        arrived, self.arrived = self.arrived, []
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is self:
                signal.signal(number, handler)
        for number in dict.fromkeys(arrived):
            signal.raise_signal(number)


_deferral = _Deferral()


@contextmanager
def deferring_signals() -> Iterator[None]:
    """What is inside is not broken off: signals that ask the program to end are answered when it is over."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    try:
        _deferral.begin()
        yield
    finally:
        _deferral.end()
