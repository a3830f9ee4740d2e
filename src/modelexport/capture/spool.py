"""Tensors on disk while two runs are compared: what a model computes may be many times its size."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]


class Spool:
    """Arrays by number. They are written once, and read back as views of the file."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the spool
        self._places: dict[int, _Place] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def put(self, number: int, array: np.ndarray) -> None:
        if number not in self._places:
            self._file.write(np.ascontiguousarray(array).data)
            self._places[number] = _Place(self._end, array.dtype, tuple(array.shape))
            self._end += array.nbytes

    def get(self, number: int) -> np.ndarray:
        place = self._places[number]
        if 0 in place.shape:
            return np.empty(place.shape, place.dtype)
        self._file.flush()
        return np.memmap(self._file, place.dtype, "r", place.offset, place.shape or (1,)).reshape(place.shape)
