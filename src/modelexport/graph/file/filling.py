"""Filling: the data of an initializer, made of a checkpoint by its recipe when it is written.

    FilledWeight(recipe, checkpoint).pieces()         transpose(lm_head.weight), 32 MB at a time

A piece is some rows of the result. What they take of each operand is found backwards through the recipe, so that of a
tensor that is transposed, cut or joined only the part is read that goes into these rows:

    rows 0..9 of transpose(w)   ->   columns 0..9 of w   ->   a read for each row of w

Recipes are a stranger's. No step makes more than it reads, and each one fits the next before anything is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from modelexport.errors import ModelMismatch, shorten
from modelexport.graph.file.checkpoint import DTYPES, Checkpoint, Region, as_bytes
from modelexport.graph.file.weights import Part, delimited
from modelexport.record.weight_recipe import FixedArray, Operation, Recipe, StoredTensor, stored_tensors

# Bytes of a result that are made at once: its operands and a copy of it are in memory as well. Of 2 GB that are
# transposed, pieces of 16, 32 and 64 MB take 5.4, 3.9 and 5.6 s: smaller ones are more reads, larger ones new pages.
_PIECE = 1 << 25
# Columns that are turned into rows at once, so that what they touch fits into the processor's cache: 64 take 7.0 s.
_TILE = 16
_RAW_DATA = 9

Shape = tuple[int, ...]


def recipe_shape(recipe: Recipe) -> Shape:
    """The shape of a result. Raises ValueError for steps that do not fit each other."""
    if not isinstance(recipe, Operation):
        return recipe.shape
    shapes, numbers = [recipe_shape(operand) for operand in recipe.operands], recipe.numbers
    shape = _SHAPES[recipe.name](shapes, numbers)
    if shape is None:
        raise ValueError(f"{recipe.name} {list(numbers)} does not fit {' and '.join(map(str, shapes))}")
    return shape


def _transposed(shapes: Sequence[Shape], axes: Shape) -> Shape | None:
    return tuple(shapes[0][axis] for axis in axes) if sorted(axes) == [*range(len(shapes[0]))] else None


def _reshaped(shapes: Sequence[Shape], sizes: Shape) -> Shape | None:
    fits = math.prod(sizes) == math.prod(shapes[0]) and all(size >= 0 for size in sizes)
    return sizes if fits else None


def _sliced(shapes: Sequence[Shape], numbers: Shape) -> Shape | None:
    cuts = _triples(numbers)
    inside = len(numbers) == 3 * len(shapes[0]) and all(
        0 <= start <= stop <= size and step > 0 for (start, stop, step), size in zip(cuts, shapes[0], strict=True)
    )
    return tuple(len(range(*cut)) for cut in cuts) if inside else None


def _triples(numbers: Shape) -> list[tuple[int, int, int]]:
    return [(start, stop, step) for start, stop, step in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=False)]


def _joined(shapes: Sequence[Shape], numbers: Shape) -> Shape | None:
    first = shapes[0]
    if len(numbers) != 1 or not 0 <= numbers[0] < len(first):
        return None
    axis = numbers[0]
    others = {(shape[:axis], shape[axis + 1 :]) for shape in shapes}
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :]) if len(others) == 1 else None


def _unchanged(shapes: Sequence[Shape], _numbers: Shape) -> Shape | None:
    return shapes[0]


def _broadcast(shapes: Sequence[Shape], _numbers: Shape) -> Shape | None:
    result = np.broadcast_shapes(*shapes)
    # A product of a row and a column would be larger than all that was read for it.
    return result if result in shapes else None


_SHAPES: Mapping[str, Callable[[Sequence[Shape], Shape], Shape | None]] = {
    "transpose": _transposed,
    "reshape": _reshaped,
    "slice": _sliced,
    "concatenate": _joined,
    **dict.fromkeys(("cast", "sqrt", "negative"), _unchanged),
    **dict.fromkeys(("add", "subtract", "multiply", "divide"), _broadcast),
}


def recipe_dtype(recipe: Recipe) -> np.dtype[Any]:
    """The type of a result. Raises ValueError for a type that numpy does not have."""
    name = recipe.dtype
    if isinstance(recipe, Operation) and not name:
        return np.result_type(*map(recipe_dtype, recipe.operands))
    if name not in DTYPES:
        raise ValueError(f"type {shorten(name)!r} is not known here")
    return DTYPES[name]


@dataclass(frozen=True, eq=False)
class FilledWeight:
    """The data of an initializer, and as much of an array as a sketch asks for (graph/outline.py)."""

    recipe: Recipe
    checkpoint: Checkpoint
    field_number = _RAW_DATA

    @cached_property
    def shape(self) -> Shape:
        return recipe_shape(self.recipe)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return recipe_dtype(self.recipe)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, places: tuple[np.ndarray, ...]) -> np.ndarray:
        """Single elements, as numpy gives them; nothing else is read."""
        if _reshapes(self.recipe):
            whole: np.ndarray = self._make(self.recipe, _whole(self.shape))
            chosen: np.ndarray = whole[places]
            return chosen
        regions = (tuple(slice(int(at), int(at) + 1) for at in place) for place in zip(*places, strict=True))
        return np.concatenate([self._make(self.recipe, region).reshape(1) for region in regions])

    def raw(self) -> memoryview:
        return memoryview(b"".join(self.pieces()))

    def fields(self) -> list[Part]:
        return delimited(self.field_number, [self])

    def pieces(self) -> Iterator[memoryview]:
        """The bytes in their order, some rows at a time."""
        rows = self.shape[0] if self.shape else 1
        # What is given another shape is made as a whole.
        whole = not self.nbytes or not self.shape or _reshapes(self.recipe)
        count = max(rows, 1) if whole else max(_PIECE * rows // self.nbytes, 1)
        for start in range(0, rows, count):
            region = (slice(start, min(start + count, rows)), *_whole(self.shape)[1:]) if self.shape else ()
            yield as_bytes(_ordered(self._make(self.recipe, region)))

    def _make(self, recipe: Recipe, region: Region) -> np.ndarray:
        """A part of a result."""
        if isinstance(recipe, StoredTensor):
            array = self.checkpoint.read(self.checkpoint.tensors[recipe.name], region)
            # A recipe that was made of a configuration has the type of the model, and not of a checkpoint.
            return array.astype(DTYPES[recipe.dtype], copy=False)
        if isinstance(recipe, FixedArray):
            constant = np.frombuffer(recipe.content, DTYPES[recipe.dtype]).reshape(recipe.shape)
            return np.asarray(constant[region])
        return _STEPS[recipe.name](self._make, recipe, region)


_Make = Callable[[Recipe, Region], np.ndarray]


def _cast(make: _Make, recipe: Operation, region: Region) -> np.ndarray:
    return make(recipe.operands[0], region).astype(DTYPES[recipe.dtype])


def _transpose(make: _Make, recipe: Operation, region: Region) -> np.ndarray:
    axes = recipe.numbers
    return make(recipe.operands[0], tuple(region[axes.index(axis)] for axis in range(len(axes)))).transpose(axes)


def _reshape(make: _Make, recipe: Operation, region: Region) -> np.ndarray:
    operand = recipe.operands[0]
    result: np.ndarray = make(operand, _whole(recipe_shape(operand))).reshape(recipe.numbers)[region]
    return result


def _slice(make: _Make, recipe: Operation, region: Region) -> np.ndarray:
    taken = [range(*cut)[part] for cut, part in zip(_triples(recipe.numbers), region, strict=True)]
    around = tuple(slice(part[0], part[-1] + 1) if part else slice(0, 0) for part in taken)
    return make(recipe.operands[0], around)[tuple(slice(None, None, part.step) for part in taken)]


def _concatenate(make: _Make, recipe: Operation, region: Region) -> np.ndarray:
    axis, end = recipe.numbers[0], 0
    parts: list[np.ndarray] = []
    for operand in recipe.operands:
        start, end = end, end + recipe_shape(operand)[axis]
        low, high = max(region[axis].start, start), min(region[axis].stop, end)
        if low < high or not parts:  # an empty part has the shape of a result without rows
            inner = slice(low - start, high - start) if low < high else slice(0, 0)
            parts.append(make(operand, (*region[:axis], inner, *region[axis + 1 :])))
    return np.concatenate(parts, axis)


def _arithmetic(ufunc: np.ufunc) -> Callable[[_Make, Operation, Region], np.ndarray]:
    def compute(make: _Make, recipe: Operation, region: Region) -> np.ndarray:
        operands = (make(operand, _fitting(recipe_shape(operand), region)) for operand in recipe.operands)
        return np.asarray(ufunc(*operands))

    return compute


_STEPS: Mapping[str, Callable[[_Make, Operation, Region], np.ndarray]] = {
    "cast": _cast,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _slice,
    "concatenate": _concatenate,
    "add": _arithmetic(np.add),
    "subtract": _arithmetic(np.subtract),
    "multiply": _arithmetic(np.multiply),
    "divide": _arithmetic(np.divide),
    "sqrt": _arithmetic(np.sqrt),
    "negative": _arithmetic(np.negative),
}


def _whole(shape: Shape) -> Region:
    return tuple(slice(0, size) for size in shape)


def _fitting(shape: Shape, region: Region) -> Region:
    """The part of a broadcast operand that goes into a part of the result."""
    parts = region[len(region) - len(shape) :]
    return tuple(slice(0, 1) if size == 1 else part for size, part in zip(shape, parts, strict=True))


def _reshapes(recipe: Recipe) -> bool:
    return isinstance(recipe, Operation) and (recipe.name == "reshape" or any(map(_reshapes, recipe.operands)))


def _ordered(array: np.ndarray) -> np.ndarray:
    """In row order. A turned matrix tile by tile: numbers that are read across would miss the cache every time."""
    if array.flags.c_contiguous or array.ndim != 2:
        return np.ascontiguousarray(array)
    result = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], _TILE):
        result[:, start : start + _TILE] = array[:, start : start + _TILE]
    return result


def find_weight(recipe: Recipe, checkpoint: Checkpoint, name: str) -> FilledWeight:
    """The data of initializer `name`. Raises ModelMismatch where the checkpoint has other tensors than the recipe."""
    hint = "Give the checkpoint that the file was exported from, or export the file again."
    for expected in stored_tensors(recipe):
        stored = checkpoint.tensors.get(expected.name)
        if stored is None:
            raise ModelMismatch(
                f"{checkpoint.folder} has no tensor {shorten(expected.name)!r}, of which {shorten(name)!r} is made",
                hint,
            )
        # A recipe of a configuration has the type of the model, which a checkpoint need not have.
        other_type = stored.dtype != expected.dtype if expected.file else stored.dtype not in DTYPES
        if stored.shape != expected.shape or other_type:
            raise ModelMismatch(
                f"{shorten(expected.name)!r} is {stored.dtype} {list(stored.shape)} in {checkpoint.folder}, and "
                f"{expected.dtype} {list(expected.shape)} in the file",
                hint,
            )
    return FilledWeight(recipe, checkpoint)
