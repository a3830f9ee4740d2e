"""By how much two constants differ, and what was done to the one to get the other.

Weights of a few bits, several in a byte, as the numbers that they stand for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper

from modelexport.graph.index import FLOATS
from modelexport.graph.types import type_name
from modelexport.inspect.diff.ends import written
from modelexport.inspect.diff.flow import Constant
from modelexport.inspect.diff.sides import Holdings
from modelexport.record.results.diff import FieldChange, WeightChange, WeightForm, WeightRef

# Numbers that are compared at a time.
_CHUNK = 1 << 22
# Constants with no more numbers than these are shown whole.
_SHOWN = 8
_COLUMN = 8
# What quantizing or casting loses at most, in terms of the weight itself.
_SAME = 0.25


@dataclass(frozen=True, slots=True)
class _Distance:
    largest: float
    relative: float
    changed: int


def weight_ref(constant: Constant) -> WeightRef:
    return WeightRef(constant.name, type_name(constant.dtype), constant.shape)


class Weighing:
    def __init__(self, left: Holdings, right: Holdings) -> None:
        self._left, self._right = left, right

    def change(self, one: Constant, other: Constant, readers: tuple[str, ...] = ()) -> WeightChange | None:
        """What is different about two constants that stand in one place; None if nothing is, or nothing is known."""
        if one.digest is not None and one.digest == other.digest:
            return None
        if one.digest is None or other.digest is None:
            if (one.dtype, one.shape) == (other.dtype, other.shape):
                return None
            return WeightChange(WeightForm.UNREAD, weight_ref(one), weight_ref(other), readers=readers)
        mine, theirs = self._left.numbers(one.name), self._right.numbers(other.name)
        if mine is None or theirs is None:
            return WeightChange(WeightForm.VALUES, weight_ref(one), weight_ref(other), readers=readers)
        form, distance = _compared(mine, theirs, one, other)
        if distance is not None and not distance.changed and (form is WeightForm.VALUES or _is_single(mine, theirs)):
            return None  # -0.0, or NaN of another kind; or one number in another shape
        return WeightChange(
            form,
            weight_ref(one),
            weight_ref(other),
            distance.largest if distance else None,
            distance.relative if distance else None,
            distance.changed if distance else None,
            _shown(mine, theirs),
            readers,
        )

    def packed(
        self, one: Constant, other: Constant, numbers: np.ndarray, readers: tuple[str, ...]
    ) -> WeightChange | None:
        """numbers  those that the other one stands for; None if the first is not what was packed"""
        mine = self._left.numbers(one.name)
        if mine is None or mine.shape != numbers.shape or one.dtype not in FLOATS:
            return None
        found = _distance(mine, numbers)
        if found.relative > _SAME:
            return None
        form, refs = WeightForm.QUANTIZED, (weight_ref(one), weight_ref(other))
        return WeightChange(form, *refs, found.largest, found.relative, found.changed, readers=readers)

    def stored(self, names: Iterable[str]) -> list[np.ndarray | None]:
        """What the second file holds under some names."""
        return [self._right.numbers(name) if name else None for name in names]


def _is_single(mine: np.ndarray, theirs: np.ndarray) -> bool:
    return mine.size == theirs.size == 1 and mine.dtype == theirs.dtype


def _compared(
    mine: np.ndarray, theirs: np.ndarray, one: Constant, other: Constant
) -> tuple[WeightForm, _Distance | None]:
    if mine.shape == theirs.shape:
        return _in_place(mine, theirs, one, other)
    if mine.size == theirs.size and mine.size:
        for form, turned in _turned(mine, theirs):
            found, distance = _in_place(turned, theirs, one, other)
            if distance.relative <= _SAME:
                return (form if found is WeightForm.VALUES else found), distance
    return WeightForm.SHAPE, None


def _turned(mine: np.ndarray, theirs: np.ndarray) -> Iterator[tuple[WeightForm, np.ndarray]]:
    if mine.ndim >= 2 and np.swapaxes(mine, -1, -2).shape == theirs.shape:
        yield WeightForm.TRANSPOSED, np.swapaxes(mine, -1, -2)
    if mine.T.shape == theirs.shape and mine.ndim > 2:
        yield WeightForm.TRANSPOSED, mine.T
    yield WeightForm.RESHAPED, mine.reshape(theirs.shape)


def _in_place(mine: np.ndarray, theirs: np.ndarray, one: Constant, other: Constant) -> tuple[WeightForm, _Distance]:
    """Element by element. A square weight may have been turned: its shape does not tell."""
    form, straight = _straight(mine, theirs, one, other)
    if not straight.relative or mine.ndim < 2 or mine.shape[-1] != mine.shape[-2]:
        return form, straight
    _, turned = _straight(np.swapaxes(mine, -1, -2), theirs, one, other)
    if form is WeightForm.VALUES:
        return (form, straight) if turned.changed else (WeightForm.TRANSPOSED, turned)
    return form, (turned if turned.relative <= _SAME < straight.relative else straight)


def _straight(mine: np.ndarray, theirs: np.ndarray, one: Constant, other: Constant) -> tuple[WeightForm, _Distance]:
    if one.dtype == other.dtype:
        return WeightForm.VALUES, _distance(mine, theirs)
    if one.dtype in FLOATS and other.dtype in FLOATS:
        return WeightForm.CAST, _distance(mine, theirs)
    if one.dtype in FLOATS:
        return WeightForm.QUANTIZED, _quantized(mine, theirs)
    if other.dtype in FLOATS:
        return WeightForm.QUANTIZED, _quantized(theirs, mine)
    return WeightForm.CAST, _distance(mine, theirs)


def _distance(mine: np.ndarray, theirs: np.ndarray) -> _Distance:
    """Piece by piece, so that large weights do not have to fit into memory twice over in double precision."""
    largest, squares, size, changed = 0.0, 0.0, 0.0, 0
    flat, other = mine.reshape(-1), theirs.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        a = flat[start : start + _CHUNK].astype(np.float64)
        b = other[start : start + _CHUNK].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            off = np.where(same, 0.0, np.abs(a - b))
        off = np.nan_to_num(off, nan=math.inf, posinf=math.inf)
        changed += int(off.size - np.count_nonzero(same))
        largest = max(largest, float(off.max(initial=0.0)))
        squares += float(np.dot(off, off))
        finite = np.where(np.isfinite(a), a, 0.0)
        size += float(np.dot(finite, finite))
    return _Distance(largest, _ratio(squares, size), changed)


def _quantized(weight: np.ndarray, integers: np.ndarray) -> _Distance:
    """The loss with the best scale and zero point that there can be: those in the file are no better."""
    w = np.atleast_1d(weight).astype(np.float64).reshape(-1, weight.shape[-1] if weight.ndim else 1)
    q = integers.astype(np.float64).reshape(w.shape)
    best: np.ndarray | None = None
    # Fewer numbers than these are met by any scale.
    for axis in (None, *(side for side in (0, 1) if w.shape[side] >= _COLUMN)):
        fitted = _fitted(w, q, axis)
        if best is None or np.square(fitted - w).sum() < np.square(best - w).sum():
            best = fitted
    return _distance(w, best if best is not None else q)


def _fitted(w: np.ndarray, q: np.ndarray, axis: int | None) -> np.ndarray:
    centred, wanted = q - q.mean(axis=axis, keepdims=True), w - w.mean(axis=axis, keepdims=True)
    power = np.square(centred).sum(axis=axis, keepdims=True)
    scale = (centred * wanted).sum(axis=axis, keepdims=True) / np.where(power == 0, 1.0, power)
    found: np.ndarray = scale * centred + w.mean(axis=axis, keepdims=True)
    return found


def _ratio(squares: float, size: float) -> float:
    if not squares:
        return 0.0
    return math.sqrt(squares / size) if size else math.inf


def _shown(mine: np.ndarray, theirs: np.ndarray) -> FieldChange | None:
    if max(mine.size, theirs.size) > _SHOWN:
        return None
    return FieldChange("values", _written(mine), _written(theirs))


def _written(array: np.ndarray) -> str:
    """Numbers as they are written in a model's source; one alone without brackets."""
    numbers = list(written(array))
    return numbers[0] if not array.ndim and numbers else f"[{', '.join(numbers)}]"


# The operators that read such weights, in this place, with scales and zero points behind.
_READERS = {("com.microsoft", "MatMulNBits"): 1}
_BYTE = 8


def packed_place(node: onnx.NodeProto) -> int | None:
    """Where a node reads a packed weight; None if it does not."""
    return _READERS.get((node.domain, node.op_type))


def unpacked(node: onnx.NodeProto, inputs: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The weight as a MatMul would read it. None if the file does not hold all that it takes.

    inputs  by place: what the node reads, if that is stored
    """
    stated = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    read: list[np.ndarray | None] = [*inputs, None, None, None]
    weight, scales, zeros = read[1:4]
    sizes = [stated.get(name) for name in ("N", "K", "block_size")]
    if weight is None or scales is None or weight.dtype != np.uint8 or None in sizes:
        return None
    return _unpacked(weight, scales, zeros, {**stated, "bits": stated.get("bits", 4)})


def _unpacked(
    weight: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, stated: Mapping[str, int]
) -> np.ndarray:
    rows, width, block, bits = (stated[name] for name in ("N", "K", "block_size", "bits"))
    blocks = -(-width // block)
    numbers = _split(weight.reshape(rows, -1), bits).reshape(rows, blocks, -1)[:, :, :block].astype(np.float64)
    if zeros is None:
        numbers -= 1 << (bits - 1)
    else:
        middle = _split(zeros.reshape(rows, -1), bits) if zeros.dtype == np.uint8 else zeros.reshape(rows, -1)
        numbers -= middle[:, :blocks, None].astype(np.float64)
    numbers *= scales.reshape(rows, blocks, 1).astype(np.float64)
    return numbers.reshape(rows, -1)[:, :width].T


def _split(array: np.ndarray, bits: int) -> np.ndarray:
    """The lowest bits of a byte come first."""
    parts = [(array >> shift) & ((1 << bits) - 1) for shift in range(0, _BYTE, bits)]
    return np.stack(parts, axis=-1).reshape(*array.shape[:-1], -1)
