"""Weight parts: which rows of which parameters a weight holds, though tools put weights together, cut and round them.

    qkv [192, 64]       q.weight rows 0 to 63, k.weight rows 0 to 63, v.weight rows 0 to 63        packed
    gate [96, 64]       gate_up.weight rows 0 to 95                                                 cut
    q4 [64, 1, 32]      o.weight, all rows, once the four bits are numbers again                    quantized

A row is one output of a linear layer. It is known by its products with a few fixed random vectors (Johnson and
Lindenstrauss): a rounded row stays near the original, another row is far away. Numbers of a bias are rows of length 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from modelexport.record.signals import WeightPart

_PROJECTIONS = 16
# Relative to the length of a row: 16-bit floats differ by 1e-3, blocks of four bits by about 0.1, other rows by 1.4.
_COPIED, _ROUNDED = 4e-3, 0.4
# A single number is met by chance; so is a row of few.
_FEWEST_NUMBERS = 8
# Rows that begin alike, of which the one that goes on longest is meant.
_MOST_CANDIDATES = 32


@dataclass(frozen=True)
class _Rows:
    """Sketches of all rows of one length, one parameter after the other.

    starts  where each parameter begins, and its name
    """

    sketches: np.ndarray
    starts: np.ndarray
    parameters: tuple[tuple[str, bool], ...]

    def locate(self, index: int) -> tuple[str, bool, int, int]:
        """Name, whether it is transposed, and first and last row of the parameter around a row."""
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.sketches)
        return *self.parameters[number], int(self.starts[number]), int(end)


class ParameterRows:
    """The rows of a model's parameters, to look weights up in."""

    def __init__(self, parameters: Iterable[tuple[str, np.ndarray]]) -> None:
        tables: dict[int, list[tuple[str, bool, np.ndarray]]] = {}
        for name, array in parameters:
            for transposed, matrix in list_matrices(array):
                tables.setdefault(matrix.shape[1], []).append((name, transposed, sketch_rows(matrix)))
        self._rows: Mapping[int, _Rows] = {length: _join(table) for length, table in tables.items()}

    def split(self, matrix: np.ndarray, *, rounded: bool = False) -> tuple[WeightPart, ...]:
        """The parts of parameters that a matrix consists of, row by row; none if a row is nobody's."""
        table = self._rows.get(matrix.shape[1])
        if table is None:
            return ()
        sketches, parts, row = sketch_rows(matrix), list[WeightPart](), 0
        tolerance = _ROUNDED if rounded else _COPIED
        while row < len(sketches):
            part = _find_part(table, sketches[row:], tolerance)
            if part is None or part.rows * matrix.shape[1] < _FEWEST_NUMBERS:
                return ()
            parts.append(part)
            row += part.rows
        return tuple(parts)


def list_matrices(array: np.ndarray) -> Iterator[tuple[bool, np.ndarray]]:
    """A weight as rows of outputs, as it is and transposed. Of a stack, such as experts have, one after the other."""
    if array.dtype.kind != "f" or array.size < _FEWEST_NUMBERS:
        return
    if array.ndim == 1:
        yield False, array.reshape(-1, 1)
    elif array.ndim in (2, 3):
        yield False, array.reshape(-1, array.shape[-1])
        yield True, array.swapaxes(-1, -2).reshape(-1, array.shape[-2])


def read_rows(parameter: np.ndarray, part: WeightPart) -> np.ndarray:
    """The rows of a parameter that a part is."""
    matrix = dict(list_matrices(parameter))[part.transposed]
    return matrix[part.first : part.first + part.rows]


def sketch_rows(matrix: np.ndarray) -> np.ndarray:
    sketches: np.ndarray = matrix.astype(np.float32) @ _directions(matrix.shape[1])
    return sketches


@cache
def _directions(length: int) -> np.ndarray:
    """Random vectors, the same in every process; of a single number, the number itself."""
    if length == 1:
        return np.ones((1, 1), np.float32)
    drawn = np.random.default_rng(length).standard_normal((length, _PROJECTIONS)) / np.sqrt(_PROJECTIONS)
    directions: np.ndarray = drawn.astype(np.float32)
    return directions


def _join(table: list[tuple[str, bool, np.ndarray]]) -> _Rows:
    lengths = [len(sketches) for _, _, sketches in table]
    starts = np.cumsum([0, *lengths[:-1]])
    return _Rows(
        np.concatenate([sketches for _, _, sketches in table]),
        starts,
        tuple((name, transposed) for name, transposed, _ in table),
    )


def _find_part(table: _Rows, sketches: np.ndarray, tolerance: float) -> WeightPart | None:
    """The longest run of a parameter's rows that the sketches begin with."""
    apart = np.linalg.norm(table.sketches - sketches[0], axis=1)
    reach = tolerance * max(float(np.linalg.norm(sketches[0])), 1e-12)
    near = np.flatnonzero(apart <= reach)
    near = near[np.argsort(apart[near], kind="stable")][:_MOST_CANDIDATES]
    best: WeightPart | None = None
    for index in map(int, near):
        name, transposed, start, end = table.locate(index)
        count = _count_alike(table.sketches[index:end], sketches, tolerance)
        if best is None or count > best.rows:
            best = WeightPart(name, index - start, count, transposed)
    return best


def _count_alike(rows: np.ndarray, sketches: np.ndarray, tolerance: float) -> int:
    length = min(len(rows), len(sketches))
    apart = np.linalg.norm(rows[:length] - sketches[:length], axis=1)
    alike = apart <= tolerance * np.maximum(np.linalg.norm(sketches[:length], axis=1), 1e-12)
    return length if alike.all() else int(alike.argmin())
