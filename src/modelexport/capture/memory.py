"""Memory: what this process may still take, so that a request for more is refused before it is tried; mapped files.

    ensure_fits(1 << 50, "the arrays", InputError)     InputError: the arrays take 1.13 PB, and 12.4 GB of memory …
    release_mapped(addresses=…)                        weights in a mapped file are read again when they are used

Linux hands out memory that it does not have and ends the process when it is written to: there would be no error to
catch. https://docs.kernel.org/mm/overcommit-accounting.html

Weights of a folder are mapped, not read: safetensors are by transformers, external data is by ONNX Runtime. What was
used of them counts as memory of the process until somebody gives it back.
https://man7.org/linux/man-pages/man2/madvise.2.html
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from modelexport.errors import UserError

# Those of the process itself, in a container and out of one.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")


def available_memory() -> int | None:
    """Bytes; None where the system does not say."""
    return min(_limits(), default=None)


def ensure_fits(size: int, what: str, error: type[UserError], hint: str = "") -> None:
    """Raise the error if something of so many bytes cannot be in memory."""
    available = available_memory()
    if available is not None and size > available:
        raise error(f"{what} take {format_bytes(size)}, and {format_bytes(available)} of memory are free", hint)


def format_bytes(size: int) -> str:
    """In units of 1000, with three digits: `4 bytes`, `12.4 GB`."""
    power = min((len(str(abs(size))) - 1) // 3, len(_UNITS) - 1)
    return f"{size / 1000**power:.3g} {_UNITS[power]}"


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


# As Linux writes them: 7f5b8c000000-7f5b8e000000 rw-p 00000000 fe:00 1234    /models/bert/model.safetensors
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ +(/.*)")
_OWN_PAGES, _LAST_FIGURE = ("Anonymous", "Swap"), "VmFlags"
_DONTNEED = 4


@dataclass(frozen=True)
class _Mapping:
    """A part of a file in the address space of this process; `written` if it has pages that are not the file's."""

    start: int
    end: int
    path: Path
    written: bool


def release_mapped(files: Collection[Path] = (), addresses: Iterable[int] = ()) -> None:
    """Give back the pages of mapped files: of these files, and of those that something at an address lies in.

    Nothing is lost: whoever reads them again gets them from the file, which the system mostly still holds. A mapping
    that somebody has written into is left alone, for what was written is nowhere else. Does nothing where the system
    does not tell its mappings.
    """
    wanted = sorted(addresses)
    for mapping in _file_mappings():
        held = mapping.path in files or any(mapping.start <= address < mapping.end for address in wanted)
        if held and not mapping.written:
            _c_library().madvise(ctypes.c_void_p(mapping.start), mapping.end - mapping.start, _DONTNEED)


def _file_mappings() -> Iterator[_Mapping]:
    """https://docs.kernel.org/filesystems/proc.html (smaps): a line that says where, then one for each figure."""
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    head: re.Match[str] | None = None
    own = 0  # kB that are no longer the file's, in memory or swapped out
    for line in lines:
        name, _, figure = line.partition(":")
        if name in _OWN_PAGES:
            own += int(figure.split()[0])
        elif name == _LAST_FIGURE:
            if head is not None:
                yield _Mapping(int(head[1], 16), int(head[2], 16), Path(head[3]), own > 0)
            head, own = None, 0
        elif match := _MAPPING.match(line):
            head = match


@cache
def _c_library() -> Any:
    return ctypes.CDLL(None, use_errno=True)
