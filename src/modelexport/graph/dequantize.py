"""Dequantization of stored weights: numbers again from packed integers, scales and zero points.

    MatMulNBits           [N, blocks, bytes] uint8  ->  [N, K]      several numbers in a byte, the low bits first
    GatherBlockQuantized  [V, H] or packed          ->  [V, H]      the table of an embedding
    DequantizeLinear      any shape                 ->  the same    one scale, one for each index of an axis, or blocks

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

_BYTE = 8

Arrays = Mapping[int, np.ndarray]  # the constants that a node reads, by the index of the input


def stored_weight_input(node: onnx.NodeProto) -> int | None:
    """The index of the input that a node dequantizes; None for other nodes."""
    return {"MatMulNBits": 1, "GatherBlockQuantized": 0, "DequantizeLinear": 0}.get(node.op_type)


def dequantize_weight(node: onnx.NodeProto, arrays: Arrays) -> np.ndarray | None:
    """The weight of a node in floats; None where some constant is missing or it is stored in a way not known here."""
    try:
        return _DECODERS[node.op_type](_attributes(node), arrays)
    except (KeyError, ValueError, IndexError):
        return None


# By operator: the inputs that have a row for each row of a packed weight: itself, its scales and its zero points.
_BY_ROW: Mapping[str, tuple[int, ...]] = {"MatMulNBits": (1, 2, 3), "GatherBlockQuantized": (0, 2, 3)}


PACKED = frozenset(_BY_ROW)


def packed_weight_shape(node: onnx.NodeProto, arrays: Arrays) -> tuple[int, int] | None:
    """The sides of a weight that is packed into bytes, once it is unpacked; None for what is not packed."""
    attributes = _attributes(node)
    if node.op_type == "MatMulNBits" and {"N", "K"} <= attributes.keys():
        return attributes["N"], attributes["K"]
    row = dequantize_rows(node, arrays, [0]) if node.op_type == "GatherBlockQuantized" else None
    return None if row is None else (len(arrays[0]), row.shape[1])


def dequantize_rows(node: onnx.NodeProto, arrays: Arrays, rows: Sequence[int]) -> np.ndarray | None:
    """Some rows of a packed weight in floats, without a look at the others; None as for `dequantize_weight`."""
    stored = arrays.get(_BY_ROW[node.op_type][0])
    count = _attributes(node).get("N", 0 if stored is None else len(stored))
    try:
        taken = {index: arrays[index].reshape(count, -1)[rows] for index in _BY_ROW[node.op_type] if index in arrays}
        return _DECODERS[node.op_type]({**_attributes(node), "N": len(rows)}, taken)
    except (KeyError, ValueError, IndexError):
        return None


def _attributes(node: onnx.NodeProto) -> dict[str, int]:
    integers = (item for item in node.attribute if item.type == onnx.AttributeProto.INT)
    return {item.name: item.i for item in integers}


def _unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Numbers in the last axis, out of bytes."""
    if bits == _BYTE:
        return packed
    shifts = np.arange(0, _BYTE, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)


def _decode_matmul(attributes: Mapping[str, int], arrays: Arrays) -> np.ndarray:
    bits, block = attributes.get("bits", 4), attributes["block_size"]
    rows, columns = attributes["N"], attributes["K"]
    numbers = _unpack(arrays[1].reshape(rows, -1), bits)
    blocks = -(-columns // block)
    points = _zero_points(arrays.get(3), bits, rows, blocks)
    scales = arrays[2].astype(np.float32).reshape(rows, blocks)
    return _scale_blocks(numbers, scales, points, block)[:, :columns]


def _decode_gather(attributes: Mapping[str, int], arrays: Arrays) -> np.ndarray:
    bits, block = attributes.get("bits", 4), attributes.get("block_size", 128)
    table = arrays[0].reshape(len(arrays[0]), -1)  # it may be shared with MatMulNBits, which has blocks
    numbers = _unpack(table, bits) if table.dtype == np.uint8 else table
    rows = len(numbers)
    scales = arrays[2].astype(np.float32).reshape(rows, -1)
    points = _zero_points(arrays.get(3), bits, rows, scales.shape[1])
    return _scale_blocks(numbers, scales, points if table.dtype == np.uint8 else 0 * points, block)


def _decode_linear(attributes: Mapping[str, int], arrays: Arrays) -> np.ndarray:
    numbers, scales = arrays[0].astype(np.float32), arrays[1].astype(np.float32)
    points = arrays[2].astype(np.float32) if 2 in arrays else np.zeros_like(scales)
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    if block:
        scales, points = (np.repeat(array, block, axis=axis) for array in (scales, points))
        scales, points = (array.take(range(numbers.shape[axis]), axis=axis) for array in (scales, points))
    elif scales.ndim == 1 and scales.size > 1:
        shape = [-1 if index == axis % numbers.ndim else 1 for index in range(numbers.ndim)]
        scales, points = scales.reshape(shape), points.reshape(shape)
    return (numbers - points) * scales


def _zero_points(stored: np.ndarray | None, bits: int, rows: int, blocks: int) -> np.ndarray:
    if stored is None:
        return np.full((rows, blocks), 1 << (bits - 1), np.float32)
    if stored.dtype.kind == "f":
        return stored.astype(np.float32).reshape(rows, blocks)
    return _unpack(stored.reshape(rows, -1), bits)[:, :blocks].astype(np.float32)


def _scale_blocks(numbers: np.ndarray, scales: np.ndarray, points: np.ndarray, block: int) -> np.ndarray:
    wide_scales, wide_points = (np.repeat(array, block, axis=1)[:, : numbers.shape[1]] for array in (scales, points))
    weight: np.ndarray = (numbers.astype(np.float32) - wide_points) * wide_scales
    return weight


_DECODERS: Mapping[str, Callable[[Mapping[str, int], Arrays], np.ndarray]] = {
    "MatMulNBits": _decode_matmul,
    "GatherBlockQuantized": _decode_gather,
    "DequantizeLinear": _decode_linear,
}
