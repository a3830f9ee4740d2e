"""Weight difference: by how much two constants differ, and what was done to the one to get the other.

    float32[4, 8] and float32[8, 4], equal when turned      TRANSPOSED
    float32 and float16, nearly equal                       CAST
    float32 and int8, equal up to a scale and a zero point  QUANTIZED
    equal type and shape                                    VALUES: largest and relative difference, how many changed

Weights of MatMulNBits are unpacked first: several numbers of a few bits in a byte, scaled block by block. See
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md, com.microsoft.MatMulNBits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper

from modelexport.graph.index import FLOATS
from modelexport.graph.protos import integer_attribute
from modelexport.graph.types import type_name
from modelexport.inspect.diff.io_matching import numbers_text
from modelexport.inspect.diff.match_keys import Constant
from modelexport.inspect.diff.sides import ConstantStore
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


class WeightDiff:
    """Compares what two files hold. Numbers are read only where digests differ."""

    def __init__(self, left: ConstantStore, right: ConstantStore) -> None:
        self._left, self._right = left, right

    def compare(self, constant: Constant, other: Constant, readers: tuple[str, ...] = ()) -> WeightChange | None:
        """What is different about two constants that stand in one place; None if nothing is, or nothing is known."""
        if constant.digest is not None and constant.digest == other.digest:
            return None
        if constant.digest is None or other.digest is None:
            if (constant.dtype, constant.shape) == (other.dtype, other.shape):
                return None
            return WeightChange(WeightForm.UNREAD, weight_ref(constant), weight_ref(other), readers=readers)
        left, right = self._left.numbers(constant.name), self._right.numbers(other.name)
        if left is None or right is None:
            return WeightChange(WeightForm.VALUES, weight_ref(constant), weight_ref(other), readers=readers)
        form, distance = _compare_arrays(left, right, constant, other)
        if distance is not None and not distance.changed and (form is WeightForm.VALUES or _is_single(left, right)):
            return None  # -0.0, or NaN of another kind; or one number in another shape
        return WeightChange(
            form,
            weight_ref(constant),
            weight_ref(other),
            distance.largest if distance else None,
            distance.relative if distance else None,
            distance.changed if distance else None,
            _show_values(left, right),
            readers,
        )

    def compare_packed(
        self, constant: Constant, other: Constant, numbers: np.ndarray, readers: tuple[str, ...]
    ) -> WeightChange | None:
        """numbers  those that the other one stands for; None if the first is not what was packed"""
        left = self._left.numbers(constant.name)
        if left is None or left.shape != numbers.shape or constant.dtype not in FLOATS:
            return None
        packed = _measure_distance(left, numbers)
        if packed.relative > _SAME:
            return None
        form, refs = WeightForm.QUANTIZED, (weight_ref(constant), weight_ref(other))
        return WeightChange(form, *refs, packed.largest, packed.relative, packed.changed, readers=readers)

    def read_right(self, names: Iterable[str]) -> list[np.ndarray | None]:
        """What the second file holds under some names."""
        return [self._right.numbers(name) if name else None for name in names]


def _is_single(array: np.ndarray, other_array: np.ndarray) -> bool:
    return array.size == other_array.size == 1 and array.dtype == other_array.dtype


def _compare_arrays(
    array: np.ndarray, other_array: np.ndarray, constant: Constant, other: Constant
) -> tuple[WeightForm, _Distance | None]:
    if array.shape == other_array.shape:
        return _compare_elements(array, other_array, constant, other)
    if array.size == other_array.size and array.size:
        for form, turned in _list_rearranged(array, other_array):
            arrays, distance = _compare_elements(turned, other_array, constant, other)
            if distance.relative <= _SAME:
                return (form if arrays is WeightForm.VALUES else arrays), distance
    return WeightForm.SHAPE, None


def _list_rearranged(array: np.ndarray, other_array: np.ndarray) -> Iterator[tuple[WeightForm, np.ndarray]]:
    if array.ndim >= 2 and np.swapaxes(array, -1, -2).shape == other_array.shape:
        yield WeightForm.TRANSPOSED, np.swapaxes(array, -1, -2)
    if array.T.shape == other_array.shape and array.ndim > 2:
        yield WeightForm.TRANSPOSED, array.T
    yield WeightForm.RESHAPED, array.reshape(other_array.shape)


def _compare_elements(
    array: np.ndarray, other_array: np.ndarray, constant: Constant, other: Constant
) -> tuple[WeightForm, _Distance]:
    """Element by element. A square weight may have been turned: its shape does not tell."""
    form, straight = _compare_straight(array, other_array, constant, other)
    if not straight.relative or array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        return form, straight
    _, turned = _compare_straight(np.swapaxes(array, -1, -2), other_array, constant, other)
    if form is WeightForm.VALUES:
        return (form, straight) if turned.changed else (WeightForm.TRANSPOSED, turned)
    return form, (turned if turned.relative <= _SAME < straight.relative else straight)


def _compare_straight(
    array: np.ndarray, other_array: np.ndarray, constant: Constant, other: Constant
) -> tuple[WeightForm, _Distance]:
    if constant.dtype == other.dtype:
        return WeightForm.VALUES, _measure_distance(array, other_array)
    if constant.dtype in FLOATS and other.dtype in FLOATS:
        return WeightForm.CAST, _measure_distance(array, other_array)
    if constant.dtype in FLOATS:
        return WeightForm.QUANTIZED, _measure_quantized(array, other_array)
    if other.dtype in FLOATS:
        return WeightForm.QUANTIZED, _measure_quantized(other_array, array)
    return WeightForm.CAST, _measure_distance(array, other_array)


def _measure_distance(array: np.ndarray, other_array: np.ndarray) -> _Distance:
    """Piece by piece, so that large weights do not have to fit into memory twice over in double precision."""
    largest, squares, size, changed = 0.0, 0.0, 0.0, 0
    flat, other = array.reshape(-1), other_array.reshape(-1)
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


def _measure_quantized(weight: np.ndarray, integers: np.ndarray) -> _Distance:
    """The loss with the best scale and zero point that there can be: those in the file are no better."""
    w = np.atleast_1d(weight).astype(np.float64).reshape(-1, weight.shape[-1] if weight.ndim else 1)
    q = integers.astype(np.float64).reshape(w.shape)
    best: np.ndarray | None = None
    # Fewer numbers than these are met by any scale.
    for axis in (None, *(side for side in (0, 1) if w.shape[side] >= _COLUMN)):
        fitted = _fit_scale(w, q, axis)
        if best is None or np.square(fitted - w).sum() < np.square(best - w).sum():
            best = fitted
    return _measure_distance(w, best if best is not None else q)


def _fit_scale(w: np.ndarray, q: np.ndarray, axis: int | None) -> np.ndarray:
    centred, wanted = q - q.mean(axis=axis, keepdims=True), w - w.mean(axis=axis, keepdims=True)
    power = np.square(centred).sum(axis=axis, keepdims=True)
    scale = (centred * wanted).sum(axis=axis, keepdims=True) / np.where(power == 0, 1.0, power)
    fitted: np.ndarray = scale * centred + w.mean(axis=axis, keepdims=True)
    return fitted


def _ratio(squares: float, size: float) -> float:
    if not squares:
        return 0.0
    return math.sqrt(squares / size) if size else math.inf


def _show_values(array: np.ndarray, other_array: np.ndarray) -> FieldChange | None:
    if max(array.size, other_array.size) > _SHOWN:
        return None
    return FieldChange("values", _array_text(array), _array_text(other_array))


def _array_text(array: np.ndarray) -> str:
    """Numbers as they are written in a model's source; one alone without brackets."""
    numbers = list(numbers_text(array))
    return numbers[0] if not array.ndim and numbers else f"[{', '.join(numbers)}]"


# The operators that read such weights, in this place, with scales and zero points behind.
_READERS = {("com.microsoft", "MatMulNBits"): 1}
_BYTE = 8


def packed_input(node: onnx.NodeProto) -> int | None:
    """Where a node reads a packed weight; None if it does not."""
    return _READERS.get((node.domain, node.op_type))


def unpack_weight(node: onnx.NodeProto, inputs: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The weight as a MatMul would read it. None if the file does not hold all that it takes.

    inputs  by place: what the node reads, if that is stored
    """
    read: list[np.ndarray | None] = [*inputs, None, None, None]
    weight, scales, zeros = read[1:4]
    rows, width, block = (integer_attribute(node, name) for name in ("N", "K", "block_size"))
    bits = integer_attribute(node, "bits", 4)
    if weight is None or scales is None or weight.dtype != np.uint8 or 0 in (rows, width, block):
        return None
    blocks = -(-width // block)
    numbers = _split_bits(weight.reshape(rows, -1), bits).reshape(rows, blocks, -1)[:, :, :block].astype(np.float64)
    if zeros is None:
        numbers -= 1 << (bits - 1)
    else:
        middle = _split_bits(zeros.reshape(rows, -1), bits) if zeros.dtype == np.uint8 else zeros.reshape(rows, -1)
        numbers -= middle[:, :blocks, None].astype(np.float64)
    numbers *= scales.reshape(rows, blocks, 1).astype(np.float64)
    return numbers.reshape(rows, -1)[:, :width].T


def _split_bits(array: np.ndarray, bits: int) -> np.ndarray:
    """The lowest bits of a byte come first."""
    parts = [(array >> shift) & ((1 << bits) - 1) for shift in range(0, _BYTE, bits)]
    return np.stack(parts, axis=-1).reshape(*array.shape[:-1], -1)
