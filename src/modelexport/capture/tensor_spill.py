"""Spill to disk: arrays of a run by number, the first of them in memory and the rest in a temporary file.

Values that cross a module call are kept to be compared. What a model computes may be many times its size, so a spill
holds 64 MB of it in memory, and hands out views of the file for the rest.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Self

import numpy as np

_MEMORY_LIMIT = 1 << 26  # bytes


@dataclass(frozen=True, slots=True)
class _FileSlot:
    """Where in the file an array begins, and what it takes to view the bytes as that array."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]


class TensorSpill:
    """Arrays by number. What goes to disk is written once, and read back as a view of the file (numpy.memmap).

    room  bytes to hold in memory; once an array does not fit, smaller ones that follow still may
    """

    def __init__(self, room: int = _MEMORY_LIMIT) -> None:
        self._held: dict[int, np.ndarray] = {}
        self._room = room
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the spill
        self._slots: dict[int, _FileSlot] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._held.clear()
        self._file.close()

    def __contains__(self, number: int) -> bool:
        return number in self._held or number in self._slots

    def put(self, number: int, array: np.ndarray) -> None:
        """Keep a copy: the caller's array may be a view of memory that the model writes into next."""
        if number in self:
            return
        if array.nbytes <= self._room:
            self._room -= array.nbytes
            held = self._held[number] = np.array(array, order="C")
            held.flags.writeable = False
        else:
            self._file.write(np.ascontiguousarray(array).data)
            self._slots[number] = _FileSlot(self._end, array.dtype, tuple(array.shape))
            self._end += array.nbytes

    def get(self, number: int) -> np.ndarray:
        if number in self._held:
            return self._held[number]
        slot = self._slots[number]
        if 0 in slot.shape:
            return np.empty(slot.shape, slot.dtype)  # nothing was written, and nothing cannot be mapped
        self._file.flush()
        return np.memmap(self._file, slot.dtype, "r", slot.offset, slot.shape or (1,)).reshape(slot.shape)
