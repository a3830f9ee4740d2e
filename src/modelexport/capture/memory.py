"""Memory: what this process may still take, so that a request for more is refused before it is tried; runs with less.

    ensure_fits(1 << 50, "the arrays", InputError)     InputError: the arrays take 1.13 PB, and 12.4 GB of memory …
    with running_within(4 * 10**9, largest):           mapped weights are given back after a module call

Linux hands out memory that it does not have and ends the process when it is written to: there would be no error to
catch. https://docs.kernel.org/mm/overcommit-accounting.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelexport.errors import UserError
from modelexport.graph.file.mapped_memory import MemoryUse, limit_memory, stay_within_limit
from modelexport.record.amounts import format_bytes

# Those of the process itself, in a container and out of one.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory() -> int | None:
    """Bytes; None where the system does not say."""
    return min(_limits(), default=None)


def ensure_fits(size: int, what: str, error: type[UserError], hint: str = "") -> None:
    """Raise the error if something of so many bytes cannot be in memory."""
    available = available_memory()
    if available is not None and size > available:
        raise error(f"{what} take {format_bytes(size)}, and {format_bytes(available)} of memory are free", hint)


def _limits() -> Iterator[int]:
    try:
        table = Path("/proc/meminfo").read_text(encoding="ascii")
        lines = dict(line.split(":", 1) for line in table.splitlines() if ":" in line)
        # Without swap: what is read here is used right away.
        yield int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        yield from _physical_memory()
    for limit, usage in _GROUPS:
        try:
            yield max(int(Path(limit).read_text("ascii")) - int(Path(usage).read_text("ascii")), 0)
        except (OSError, ValueError):  # no such group, or the word "max"
            continue
    yield from _address_space()


def _physical_memory() -> Iterator[int]:
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return


def _address_space() -> Iterator[int]:
    """`ulimit -v`, less what is taken already."""
    try:
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError, IndexError):
        return
    if limit != resource.RLIM_INFINITY:
        yield max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)


@contextmanager
def running_within(limit: int | None, largest: int) -> Iterator[MemoryUse]:
    """Run models and files in pieces, module by module, with so many bytes of memory; None is no limit.

    largest  bytes of the largest weight: what one module or one node reads has to fit
    """
    with limit_memory(limit, largest) as use:
        if limit is None:
            yield use
            return
        from torch.nn.modules import module as module_hooks

        # After every module call: its weights have been read, and those of the next one have not.
        with module_hooks.register_module_forward_hook(lambda *_: stay_within_limit()):
            yield use
