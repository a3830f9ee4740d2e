"""Launcher: what a process is told about itself before it becomes the command that a row asks for.

    python -I -S launcher.py PARENT COMMAND...

Run as a script in a process of its own, because these settings belong to the process that they are about, and code
between `fork` and `exec` in a program with threads may hang (https://docs.python.org/3/library/subprocess.html, on
`preexec_fn`). It takes a fiftieth of a second; an import of torch takes seconds.

- It ends with the process that started it: a worker that is killed leaves no export behind that computes for nobody
  (PR_SET_PDEATHSIG, https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html).
- Where memory runs out, the kernel chooses it and not the pool that it belongs to (oom_score_adj, proc(5)).
- It writes no core file: one of an export has gigabytes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
# Of 1000, where 0 is usual: preferred over everything that did not ask for it.
_EXPENDABLE = "500"
# As shells have it, for a command that cannot be started.
_NOT_FOUND = 127


def launch(parent: int, command: Sequence[str]) -> None:
    """Become the command; only returns, by ending the process, if that cannot be."""
    if sys.platform == "linux":
        end_with_parent(parent)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib takes longer to import than all of this
            file.write(_EXPENDABLE)
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)  # Python ignores them, and `exec` would hand that on
    try:
        os.execv(command[0], list(command))
    except OSError as error:
        sys.stderr.write(f"error: cannot start {command[0]}: {error.strerror}\n")
        sys.exit(_NOT_FOUND)


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when `parent`, which started it, is no more."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between, and no signal will come
        sys.exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    launch(int(sys.argv[1]), sys.argv[2:])
