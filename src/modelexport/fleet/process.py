"""Processes with limits: one command line, watched until it ends or has to be ended.

    run_process(ProcessSpec(("/usr/bin/python", "-c", "…"), folder), Limits(timeout=60, memory=8 << 30))
    Ended(cause=Cause.EXITED, code=0, seconds=6.4, cpu_seconds=7.1, peak_bytes=812_000_000)

A process is in a session of its own. So Ctrl-C at a terminal goes to whoever watches, who ends it; and whatever it
started is ended with it. Memory is that of all of its processes, looked at twenty times a second: a limit for address
space (RLIMIT_AS) would refuse what torch reserves and never uses. Where there is no /proc, memory is not limited.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO

from modelexport.fleet import launcher

# Seconds between two looks at a process, and looks between two searches for what it has started.
_POLL, _LOOKS_PER_SEARCH = 0.05, 10
# Of that, what has left its parent is looked for among all processes of the machine, which takes 2 ms for a hundred of
# them and 40 ms for 2,000: so rarely that it takes no more than this share of a core.
_SEARCH_SHARE = 0.002
# What a process has to clean up after it was asked to end, in seconds.
_GRACE = 3.0
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PROC = Path("/proc")


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes; None is no limit."""

    timeout: float | None = None
    memory: int | None = None


@dataclass(frozen=True)
class ProcessSpec:
    """
    folder       where it runs
    environment  all of its variables; None for those of this process
    output       the file that gets its standard output; None for that of this process
    errors       the same for its standard error; the same file as `output` gets both
    """

    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] | None = None
    output: Path | None = None
    errors: Path | None = None


class Cause(Enum):
    """Why a process is no more. STOPPED: nobody wants its result any longer."""

    EXITED = "exited"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Ended:
    """`code` is negative for a signal that ended it, as in `subprocess`. What cannot be measured here is None."""

    cause: Cause
    code: int
    seconds: float
    cpu_seconds: float | None = None
    peak_bytes: int | None = None


def never() -> bool:
    return False


def run_process(
    spec: ProcessSpec, limits: Limits, stop: threading.Event | None = None, is_over: Callable[[], bool] = never
) -> Ended:
    """Run a command to its end.

    stop     set by another thread, to end it
    is_over  a time limit of another kind, asked at every look
    """
    start = time.monotonic()
    with _open_streams(spec) as (output, errors):
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *spec.command],
            cwd=spec.folder,
            env=spec.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        watch, cause = _Watch(child.pid), Cause.STOPPED
        try:
            cause = _watch_until_end(watch, child, limits, (stop or threading.Event(), is_over))
        finally:
            code = _end_session(child, gently=cause in (Cause.TIMED_OUT, Cause.STOPPED))
    seconds = time.monotonic() - start
    return Ended(cause, code, seconds, watch.cpu_seconds, watch.peak_bytes)


@contextlib.contextmanager
def _open_streams(spec: ProcessSpec) -> Iterator[tuple[IO[bytes] | None, IO[bytes] | int | None]]:
    with contextlib.ExitStack() as files:
        output = None if spec.output is None else files.enter_context(spec.output.open("wb"))
        if spec.errors is not None and spec.errors == spec.output:
            yield output, subprocess.STDOUT
        else:
            yield output, None if spec.errors is None else files.enter_context(spec.errors.open("wb"))


def _watch_until_end(
    watch: _Watch, child: subprocess.Popen[bytes], limits: Limits, orders: tuple[threading.Event, Callable[[], bool]]
) -> Cause:
    stop, is_over = orders
    deadline = None if limits.timeout is None else time.monotonic() + limits.timeout
    with _exit_notice(child) as wait:
        while True:
            has_ended = wait(_POLL)
            used = watch.look()
            if has_ended:
                return Cause.EXITED
            # At once and not gently: in the seconds that it would get, it may take all memory that is left.
            if limits.memory is not None and used > limits.memory:
                return Cause.OUT_OF_MEMORY
            if stop.is_set():
                return Cause.STOPPED
            if is_over() or (deadline is not None and time.monotonic() > deadline):
                return Cause.TIMED_OUT


@contextlib.contextmanager
def _exit_notice(child: subprocess.Popen[bytes]) -> Iterator[Callable[[float], bool]]:
    """A function that waits so many seconds and says whether the process has ended.

    On Linux it is told at once, and the process is left to be asked once more how much time it took.
    """
    if not hasattr(os, "pidfd_open"):

        def wait(seconds: float) -> bool:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
            return child.returncode is not None

        yield wait
        return
    descriptor = os.pidfd_open(child.pid)
    try:
        poll = select.poll()  # not `select`, which knows no descriptors above 1023
        poll.register(descriptor, select.POLLIN)
        yield lambda seconds: bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def _end_session(child: subprocess.Popen[bytes], *, gently: bool) -> int:
    """End what is left of it and of what it has started, and return its exit code."""
    if gently and child.returncode is None:
        _signal_session(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    # Before it is waited for: until then, nothing else can have its number.
    _signal_session(child.pid, signal.SIGKILL)
    return child.wait()


def _signal_session(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


@dataclass
class _Watch:
    """What a session and all that it has started use: their resident memory; pages that they share count for each."""

    leader: int
    peak_bytes: int | None = None
    cpu_seconds: float | None = None
    _members: list[int] = field(default_factory=list)
    _orphans: list[int] = field(default_factory=list)
    _looks: int = 0
    _next_search: float = 0.0

    def look(self) -> int:
        if self._looks % _LOOKS_PER_SEARCH == 0:
            self._members = self._find_members()
        self._looks += 1
        used = sum(map(_resident_bytes, self._members))
        if used:
            self.peak_bytes = max(self.peak_bytes or 0, used)
        if (busy := busy_seconds(self.leader)) is not None:
            self.cpu_seconds = busy
        return used

    def _find_members(self) -> list[int]:
        if (now := time.monotonic()) >= self._next_search:
            before = time.thread_time()
            self._orphans = find_session(self.leader)
            self._next_search = now + (time.thread_time() - before) / _SEARCH_SHARE
        return list({self.leader, *find_descendants(self.leader), *self._orphans})


def find_descendants(process: int) -> Iterator[int]:
    """What it has started, and what that has started; nothing where the kernel does not list it (proc_pid_children)."""
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(process) / "task").iterdir():
            for child in (thread / "children").read_bytes().split():
                yield int(child)
                yield from find_descendants(int(child))


def find_session(leader: int) -> list[int]:
    """The other processes of a session."""
    members = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(_PROC):
            if entry.name.isdigit() and int(entry.name) != leader:
                stat = _read_stat(int(entry.name))
                if len(stat) > 3 and int(stat[3]) == leader:
                    members.append(int(entry.name))
    return members


def _resident_bytes(process: int) -> int:
    try:
        return int((_PROC / str(process) / "statm").read_bytes().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def busy_seconds(process: int) -> float | None:
    """Of the process itself and of all that it has waited for; fields 14 to 17 of proc_pid_stat(5)."""
    stat = _read_stat(process)
    return sum(map(int, stat[11:15])) / _TICKS if len(stat) > 14 else None


def read_state(process: int) -> str:
    """R runs or could run, S sleeps, D waits for a disk, T is stopped, Z has ended; empty if unknown."""
    stat = _read_stat(process)
    return stat[0].decode() if stat else ""


def _read_stat(process: int) -> list[bytes]:
    """From the third field on: the second is a name in brackets, which may hold anything."""
    try:
        return (_PROC / str(process) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []
