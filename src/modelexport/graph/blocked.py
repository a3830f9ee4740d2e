"""Weights of convolutions in ONNX Runtime's blocked order (NCHWc).

A tensor of the usual shape holds blocks of output channels, and of input channels where there are enough of them,
behind everything else. How long a block is depends on the processor that the file was made on, and no file says it.
Channels that were missing to a whole block are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

DOMAIN = "com.microsoft.nchwc"
# The blocks that there are.
BLOCKS = (8, 16)
_WEIGHT, _BIAS = 1, 2
_AXES = 4


def blocked_weights(model: onnx.ModelProto) -> Iterator[str]:
    """Names of what convolutions in blocked order read beside their values."""
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type == "Conv":
            yield from filter(None, node.input[_WEIGHT : _BIAS + 1])


def unblocked(array: np.ndarray, block: int) -> np.ndarray:
    """What a weight was before: channels in their places, without those that fill up a block."""
    if array.shape[0] % block:
        return array
    if array.ndim == 1:
        return _trimmed(array, 0, block)
    if array.ndim != _AXES:
        return array
    outputs, inputs, *window = array.shape
    if inputs < block:
        blocks = array.reshape(outputs // block, inputs, *window, block).transpose(0, 4, 1, 2, 3)
        return _trimmed(blocks.reshape(array.shape), 0, block)
    if inputs % block:
        return array
    blocks = array.reshape(outputs // block, inputs // block, *window, block, block).transpose(0, 5, 1, 4, 2, 3)
    return _trimmed(_trimmed(blocks.reshape(array.shape), 0, block), 1, block)


def _trimmed(array: np.ndarray, axis: int, block: int) -> np.ndarray:
    """Without zeros at the end of an axis, fewer than a block of them."""
    length = array.shape[axis]
    last = np.moveaxis(array, axis, 0)[max(length - block + 1, 1) :]
    used = np.flatnonzero(last.reshape(len(last), -1).any(axis=1))
    end = length - len(last) + (int(used[-1]) + 1 if used.size else 0)
    return array.take(range(end), axis=axis) if end < length else array
