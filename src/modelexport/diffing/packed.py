"""Weights of a few bits, several in a byte, as the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.helper

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
