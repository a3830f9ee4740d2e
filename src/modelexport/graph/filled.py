"""Constants that hold one number in all places, recognized by their content alone, be it a digest of that."""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import TensorProto, helper

from modelexport.graph.canonical import described
from modelexport.graph.index import Tensor
from modelexport.graph.outline import digest

_TYPES = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
)
# Axes that a single number was ever seen to have.
_MOST_AXES = 5


def is_filled(tensor: Tensor, number: int) -> bool:
    """Whether a constant holds nothing but this number; False also where that is not known."""
    return tensor.content is not None and tensor.content in _filled(number, tensor.dtype, tensor.shape)


@cache
def single(number: int) -> frozenset[bytes]:
    """What constants hold that are this number alone, in any type."""
    shapes = [(1,) * axes for axes in range(_MOST_AXES + 1)]
    return frozenset(found for kind in _TYPES for shape in shapes for found in _filled(number, kind, shape))


def _filled(number: int, dtype: int, shape: tuple[int, ...]) -> tuple[bytes, ...]:
    if dtype not in _TYPES:
        return ()
    array = np.full(shape, number).astype(helper.tensor_dtype_to_np_dtype(dtype))
    plain = described(dtype, shape, array.tobytes())
    return plain, digest(plain).encode()
