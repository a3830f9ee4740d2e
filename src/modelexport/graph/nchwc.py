"""NCHWc layout: ONNX Runtime's blocked order of channels, and back.

When ONNX Runtime optimizes convolutions for a processor, it stores channels in blocks behind everything else, so that
one vector instruction reads a whole block. The tensor keeps its usual shape; only its numbers stand elsewhere:

    activation  N, C, H, W        ->  N, C/c, H, W, c            (stored as N, C, H, W)
    weight      O, I, h, w        ->  O/c, I/c, h, w, c, c       if I fills a block
                                      O/c, I, h, w, c            else
    bias        O                 ->  O, filled up with zeros to whole blocks

How long a block is depends on the processor that the file was made on (8 or 16), and no file says it: see
https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/core/optimizer/nchwc_transformer.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx

from modelexport.graph.protos import NCHWC

BLOCKS = (8, 16)
_WEIGHT, _BIAS = 1, 2
_AXES = 4
_REORDER_BACK = "ReorderOutput"


def blocked_weights(model: onnx.ModelProto) -> Iterator[str]:
    """Names of what convolutions in blocked order read beside their values."""
    for node in model.graph.node:
        if node.domain == NCHWC and node.op_type == "Conv":
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


def blocked_values(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Names of values in blocked order; what works element by element leaves them in the order that they have."""
    names: set[str] = set()
    for node in nodes:
        if node.op_type != _REORDER_BACK and (node.domain == NCHWC or not names.isdisjoint(node.input)):
            names.update(node.output)
    return frozenset(names)


def in_usual_order(array: np.ndarray, block: int) -> np.ndarray:
    """A copy of a blocked activation, with its channels in front of its pixels."""
    if array.ndim != _AXES or array.shape[1] % block:
        return array
    batch, channels, height, width = array.shape
    blocks = array.reshape(batch, channels // block, height, width, block)
    return blocks.transpose(0, 1, 4, 2, 3).reshape(array.shape)
