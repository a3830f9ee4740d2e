"""Mapped memory: pages of files that count as memory of this process, and how to run with less of it.

    weights.safetensors    mapped by transformers         \
    bert.onnx.data         mapped by us and ONNX Runtime   } what was used of them stays until somebody gives it back
    values of a run        mapped by a spill              /

    with limit_memory(4 * 10**9, largest) as use:
        for weight in weights:
            read(weight)
            stay_within_limit()      gives mapped pages back where there are too many; use.peak says how many there were

Memory that no file backs cannot be given back. So a limit is kept by reading little between two such calls.
https://man7.org/linux/man-pages/man2/madvise.2.html
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from modelexport.errors import UserError
from modelexport.record.amounts import format_bytes

# What a piece of a run makes, and what is read beside the largest weight.
_BESIDE = 1 << 27
# Of a transposed weight there are two.
_COPIES = 2

# As Linux writes them: 7f5b8c000000-7f5b8e000000 rw-p 00000000 fe:00 1234    /models/bert/model.safetensors
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ +(/.*)")
_OWN_PAGES, _LAST_FIGURE = ("Anonymous", "Swap"), "VmFlags"
_DONTNEED = 4


@dataclass(frozen=True)
class _Mapping:
    """A part of a file in the address space of this process; `written` if it has pages that are not the file's."""

    start: int
    end: int
    path: Path
    written: bool
    is_code: bool

    def release(self) -> None:
        """Nothing is lost: whoever reads the pages again gets them from the file, which the system mostly still holds.

        A mapping that somebody has written into is left alone, for what was written is nowhere else.
        """
        if not self.written:
            _c_library().madvise(ctypes.c_void_p(self.start), self.end - self.start, _DONTNEED)


def release_mapped(files: Collection[Path] = (), addresses: Iterable[int] = ()) -> None:
    """Give back the pages of mapped files: of these files, and of those that something at an address lies in.

    Does nothing where the system does not tell its mappings.
    """
    wanted = sorted(addresses)
    for mapping in _file_mappings():
        held = mapping.path in files or any(mapping.start <= address < mapping.end for address in wanted)
        if held:
            mapping.release()


def release_all_mapped() -> None:
    """Pages of all mapped files but those of programs and their libraries."""
    mappings = list(_file_mappings())
    programs = {mapping.path for mapping in mappings if mapping.is_code}
    for mapping in mappings:
        if mapping.path not in programs:
            mapping.release()


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
                yield _Mapping(int(head[1], 16), int(head[2], 16), Path(head[4]), own > 0, "x" in head[3])
            head, own = None, 0
        elif match := _MAPPING.match(line):
            head = match


@dataclass
class MemoryUse:
    """
    limit  bytes that the process is to have at most
    room   of them are left free before the next weight is read
    peak   bytes that it had at most, where it was looked
    """

    limit: int
    room: int
    peak: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """None if the limit was kept."""
        if self.peak <= self.limit:
            return ()
        return (f"the program took {format_bytes(self.peak)} of memory, more than {format_bytes(self.limit)}",)


_USE: ContextVar[MemoryUse | None] = ContextVar("memory use", default=None)


@contextmanager
def limit_memory(limit: int | None, largest: int) -> Iterator[MemoryUse]:
    """Inside, `stay_within_limit` gives back what no limit would allow; UserError if it is too low from the start.

    largest  bytes of the largest weight
    """
    room = _COPIES * largest + _BESIDE
    use = MemoryUse(limit or 0, room)
    if limit is None:
        yield use
        return
    release_all_mapped()
    least = (resident_memory() or 0) + room
    if limit < least:
        raise UserError(
            f"a memory of {format_bytes(limit)} is too little: the program has {format_bytes(least - room)}, and "
            f"the largest weight takes {format_bytes(largest)}",
            f"Give {format_bytes(-(-least // 10**8) * 10**8)} or more.",
        )
    token = _USE.set(use)
    try:
        yield use
    finally:
        stay_within_limit()
        _USE.reset(token)


def stay_within_limit() -> None:
    """Called where no weight is being read. Costs nothing without a limit."""
    use = _USE.get()
    resident = None if use is None else resident_memory()
    if use is None or resident is None:
        return
    use.peak = max(use.peak, resident)
    if resident > use.limit - use.room:
        release_all_mapped()
        give_back_heap()


def room_for_weights() -> int | None:
    """Bytes of weights that may be read before the next call of `stay_within_limit`; None without a limit."""
    use = _USE.get()
    return None if use is None else use.room // _COPIES


def resident_memory() -> int | None:
    """Bytes of this process that are in memory, mapped files included; None where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def give_back_heap() -> None:
    """What was freed stays in the heap: https://man7.org/linux/man-pages/man3/malloc_trim.3.html"""
    trim = getattr(_c_library(), "malloc_trim", None)  # not every system's C library has it
    if trim is not None:
        trim(0)


@cache
def _c_library() -> Any:
    return ctypes.CDLL(None, use_errno=True)
