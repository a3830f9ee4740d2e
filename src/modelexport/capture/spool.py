"""Tensors set aside while two runs are compared: in memory as long as they are few, then on disk.

What a model computes may be many times its size.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

_ROOM = 1 << 26  # bytes to hold in memory


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]


class Spool:
    """Arrays by number. What goes to disk is written once, and read back as a view of the file."""

    def __init__(self, room: int = _ROOM) -> None:
        self._held: dict[int, np.ndarray] = {}
        self._room = room
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the spool
        self._places: dict[int, _Place] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.clear()
        self._file.close()

    def __contains__(self, number: int) -> bool:
        return number in self._held or number in self._places

    def put(self, number: int, array: np.ndarray) -> None:
        if number in self:
            return
        if array.nbytes <= self._room:
            self._room -= array.nbytes
            held = self._held[number] = np.array(array, order="C")
            held.flags.writeable = False
        else:
            self._file.write(np.ascontiguousarray(array).data)
            self._places[number] = _Place(self._end, array.dtype, tuple(array.shape))
            self._end += array.nbytes

    def get(self, number: int) -> np.ndarray:
        if number in self._held:
            return self._held[number]
        place = self._places[number]
        if 0 in place.shape:
            return np.empty(place.shape, place.dtype)
        self._file.flush()
        return np.memmap(self._file, place.dtype, "r", place.offset, place.shape or (1,)).reshape(place.shape)
