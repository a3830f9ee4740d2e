"""Limits of a case: computing, waiting and memory, whatever else the machine does meanwhile.

    10 s of computing   a timer of the kernel ends the process where it is, in C too, and a stack says where (SIGPROF)
    10 s of waiting     the supervisor looks once a second; a process that could run, and is not let, does not wait
    2 GB                of addresses, on top of what the process had when it was forked

Seconds by the clock would say more of the machine than of the case: a process with a low priority beside busy ones may
get a tenth of a core.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from modelexport.fleet.launcher import end_with_parent
from modelexport.fleet.process import busy_seconds, find_session, read_state

SECONDS, BYTES = 10.0, 2 << 30
# Programs that verbs start, such as ONNX's checker, have limits of their own, of 30 s each.
_SECONDS_OF_ALL = 60.0
LOOK = 1.0
_GRACE = 3.0


def confine(parent: int, stack: IO[str]) -> int:
    """Limit this process, in a session of its own; returns the megabytes of addresses that it has from the beginning.

    parent  with whom it ends
    stack   gets where it is when it computes for too long
    """
    os.setsid()
    end_with_parent(parent)
    began = read_status("VmSize")
    limit = (began << 20) + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.register(signal.SIGPROF, file=stack, chain=True)
    return began


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """The process is ended by SIGPROF if what is inside computes for too long."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def read_seconds() -> float:
    """Of computing, in this process and in those that it has started and that ended."""
    return sum(os.times()[:4])


def read_status(name: str) -> int:
    """Megabytes, from the kernel's account of this process."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) >> 10
    return 0


@dataclass
class Watch:
    """What the supervisor sees of a child and of what it has started, while no line comes from it."""

    child: int
    _waited: float = 0.0
    _computed: float | None = None
    _looked: float = field(default_factory=time.monotonic)

    def restart(self) -> None:
        """Another case begins."""
        self._waited, self._computed, self._looked = 0.0, None, time.monotonic()

    def is_over(self) -> bool:
        """Whether the case has waited or computed for too long."""
        members = [self.child, *find_session(self.child)]
        now = time.monotonic()
        # Sleeping, or unknown; R can run, D reads a disk, T was stopped by somebody.
        if all(read_state(member) in "SZ" for member in members):
            self._waited += now - self._looked
        self._looked = now
        computed = sum(busy_seconds(member) or 0.0 for member in members)
        self._computed = computed if self._computed is None else self._computed
        return self._waited > SECONDS or computed - self._computed > _SECONDS_OF_ALL

    def end(self) -> None:
        """Have it say where it is, then end it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGPROF)
        for _ in range(int(_GRACE / 0.05)):
            if read_state(self.child) in ("Z", ""):
                break
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """With all that it has started; itself too, if it has no session yet."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.child, signal.SIGKILL)
