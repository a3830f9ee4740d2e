"""Arithmetic on shapes: what nodes compute that read the sizes of others and make new ones of them.

The types of what operators make, where that is not the type of the first thing they read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from modelexport.graph.operators import BOOLEAN, RANDOM
from modelexport.inspect.cost.values import (
    CANNOT,
    MOST_NUMBERS,
    UNDEFINED,
    Operator,
    Unknown,
    as_number,
    limit_length,
    product,
)
from modelexport.record.polynomial import Polynomial, Size, largest, smallest

_WHOLE = frozenset(
    onnx.TensorProto.DataType.Value(f"{sign}INT{width}") for sign in ("", "U") for width in (8, 16, 32, 64)
)

Content = Callable[[Operator], np.ndarray]


def constant_values(operator: Operator) -> np.ndarray | None:
    """What a node makes, if that are a few numbers which follow from shapes and constants."""
    rule = _CONTENT_RULES.get(operator.op_type) if not operator.domain else None
    if rule is None:
        return None
    try:
        return _each(_sensible, np.asarray(rule(operator), dtype=object))
    except CANNOT:
        return None  # an estimate can be done without it


def _sensible(one: Any) -> Any:
    return as_number(limit_length(one)) if isinstance(one, int | Polynomial) and not isinstance(one, bool) else one


def _each(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Element by element, the result an array of objects whatever they are."""
    together = np.broadcast(*arrays)
    found = np.empty(together.shape, dtype=object)
    if together.size > MOST_NUMBERS:
        raise Unknown("too many numbers")
    found.reshape(-1)[:] = [function(*items) for items in together]
    return found


def _binary(function: Callable[[Any, Any], Any]) -> Content:
    return lambda op: _each(function, op.content(0), op.content(1))


def _unary(function: Callable[[Any], Any]) -> Content:
    return lambda op: _each(function, op.content(0))


def _several(function: Callable[..., Any]) -> Content:
    return lambda op: _each(function, *(op.content(place) for place in range(len(op.inputs))))


def _divided(op: Operator) -> np.ndarray:
    if op.dtype(0) in _WHOLE:
        return _each(_toward_zero, op.content(0), op.content(1))
    return _each(_exactly, op.content(0), op.content(1))


def _toward_zero(above: Size, below: Size) -> Size:
    if isinstance(above, int) and isinstance(below, int):
        return int(above / below) if abs(above) < 2**52 else above // below
    return above // below


def _exactly(above: Any, below: Any) -> Any:
    """Numbers with a point, of which only whole ones are needed."""
    if isinstance(above, Polynomial) or isinstance(below, Polynomial):
        found = Polynomial.of(above) // below
        if found * below == above:
            return found
        raise Unknown("not a whole number")
    return above / below


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Polynomial) or isinstance(other, Polynomial):
        if _is_never(one, other) or _is_never(other, one):
            return False
        apart = Polynomial.of(one) - other
        if apart.value is None and not _is_positive(apart) and not _is_positive(-apart):
            raise Unknown("it depends on the axes")
        return bool(apart == 0)
    return bool(one == other)


def _is_never(size: Any, number: Any) -> bool:
    """Sizes are not negative: what is compared with -1 asks for a size that is left to be found out."""
    negative = isinstance(number, int) and number < 0
    return negative and isinstance(size, Polynomial) and any(factor > 0 for _, factor in size.terms)


def _is_less(one: Any, other: Any) -> bool:
    if isinstance(one, Polynomial) or isinstance(other, Polynomial):
        apart = Polynomial.of(other) - one
        if apart.value is not None:
            return bool(apart.value > 0)
        if _is_positive(apart):
            return True
        if _is_positive(-apart):
            return False
        raise Unknown("it depends on the axes")
    return bool(one < other)


def _is_positive(size: Polynomial) -> bool:
    """Whether it is more than 0 for all sizes of axes; they are at least 1."""
    factors = [factor for _, factor in size.terms]
    if all(factor > 0 for factor in factors):
        return True
    simple = all(isinstance(atom, str) for monomial, _ in size.terms for atom, _ in monomial)
    negative = [factor for monomial, factor in size.terms if factor < 0]
    constant = dict(size.terms).get((), 0)
    return simple and negative == [constant] and sum(factors) > 0


def _where(condition: Any, one: Any, other: Any) -> Any:
    if isinstance(condition, Polynomial):
        raise Unknown("it depends on the axes")
    return one if condition else other


def _shape(op: Operator) -> np.ndarray:
    shape = op.shape(0)
    found = np.empty(len(shape), dtype=object)
    found[:] = shape
    return found[slice(op.attribute("start", 0), op.attribute("end"))]


def _gathered(op: Operator) -> np.ndarray:
    places = op.content(1).astype(np.int64)
    return np.take(op.content(0), places, axis=op.attribute("axis", 0))


def _joined(op: Operator) -> np.ndarray:
    return np.concatenate([op.content(place) for place in range(len(op.inputs))], axis=op.attribute("axis", 0))


def _sliced(op: Operator) -> np.ndarray:
    starts, ends = op.listed("starts", 1) or [], op.listed("ends", 2) or []
    axes = op.listed("axes", 3, range(len(starts))) or []
    steps = op.numbers(4) if op.has(4) else [1] * len(starts)
    found = op.content(0)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index: list[slice] = [slice(None)] * found.ndim
        low = -(2**31)
        index[axis] = slice(start if start > low else None, end if end > low else None, step)
        found = found[tuple(index)]
    return found


def _squeezed(op: Operator) -> np.ndarray:
    axes = op.listed("axes", 1)
    return np.squeeze(op.content(0), axis=None if axes is None else tuple(axes))


def _unsqueezed(op: Operator) -> np.ndarray:
    return np.expand_dims(op.content(0), tuple(op.listed("axes", 1) or ()))


def _one_hot(op: Operator) -> np.ndarray:
    """Along the last axis, where shapes have theirs."""
    places, depth, (off, on) = op.numbers(0), op.numbers(1)[0], op.sizes(2)
    rows = [[on if place % depth == column else off for column in range(depth)] for place in places]
    return np.array(rows, dtype=object).reshape(*op.content(0).shape, depth)


def _power(one: Any, power: Any) -> Any:
    if isinstance(one, Polynomial):
        return one ** int(power)
    return one**power


def _reshaped(op: Operator) -> np.ndarray:
    return op.content(0).reshape(op.numbers(1))


def _expanded(op: Operator) -> np.ndarray:
    found, shape = op.content(0), op.numbers(1)
    return np.broadcast_to(found, np.broadcast_shapes(found.shape, tuple(shape)))


def _filled(op: Operator) -> np.ndarray:
    given = op.attribute("value")
    number = 0.0 if given is None else given.reshape(-1)[0].item()
    shape = op.numbers(0)
    if np.prod(shape, dtype=np.int64) > MOST_NUMBERS:
        raise Unknown("too many numbers")
    return np.full(shape, number, dtype=object)


def _ranged(op: Operator) -> np.ndarray:
    start, end, step = (op.numbers(place)[0] for place in range(3))
    if abs(end - start) > MOST_NUMBERS * abs(step):
        raise Unknown("too many numbers")
    return np.array(range(start, end, step), dtype=object)


def _reduced(function: Callable[..., Any]) -> Content:
    def rule(op: Operator) -> np.ndarray:
        if op.content(0).ndim > 1:
            raise Unknown("not a shape")
        found = function(*op.sizes(0))
        return np.array([found] if op.attribute("keepdims", 1) else found, dtype=object)

    return rule


def _rounded(up: bool) -> Content:
    def each(one: Any) -> Any:
        if isinstance(one, Polynomial | int):
            return one
        return int(np.ceil(one) if up else np.floor(one))

    return _unary(each)


def _cast(op: Operator) -> np.ndarray:
    to = op.attribute("to")
    if to in _WHOLE:
        return _each(lambda one: one if isinstance(one, Polynomial) else int(one), op.content(0))
    if to == onnx.TensorProto.BOOL:
        return _each(lambda one: not _is_equal(one, 0), op.content(0))
    return op.content(0)


_CONTENT_RULES: Mapping[str, Content] = {
    "Shape": _shape,
    "Size": lambda op: np.array(product(op.shape(0)), dtype=object),
    "Identity": lambda op: op.content(0),
    "Cast": _cast,
    "Gather": _gathered,
    "Concat": _joined,
    "Slice": _sliced,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "Reshape": _reshaped,
    "Expand": _expanded,
    "ConstantOfShape": _filled,
    "Range": _ranged,
    "Transpose": lambda op: np.transpose(op.content(0), op.attribute("perm")),
    "OneHot": _one_hot,
    "Sqrt": _unary(math.sqrt),
    "Pow": _binary(_power),
    "Add": _binary(operator.add),
    "Sub": _binary(operator.sub),
    "Mul": _binary(operator.mul),
    "Div": _divided,
    "Mod": _binary(operator.mod),
    "Neg": _unary(operator.neg),
    "Abs": _unary(lambda one: one if isinstance(one, Polynomial) else abs(one)),
    "Floor": _rounded(up=False),
    "Ceil": _rounded(up=True),
    "Min": _several(lambda *items: smallest(*items) if any(isinstance(i, Polynomial) for i in items) else min(items)),
    "Max": _several(lambda *items: largest(*items) if any(isinstance(i, Polynomial) for i in items) else max(items)),
    "Equal": _binary(_is_equal),
    "Less": _binary(_is_less),
    "Greater": _binary(lambda one, other: _is_less(other, one)),
    "LessOrEqual": _binary(lambda one, other: not _is_less(other, one)),
    "GreaterOrEqual": _binary(lambda one, other: not _is_less(one, other)),
    "Not": _unary(operator.not_),
    "And": _binary(lambda one, other: one and other),
    "Or": _binary(lambda one, other: one or other),
    "Where": _several(_where),
    "ReduceProd": _reduced(lambda *sizes: product(sizes)),
    "ReduceSum": _reduced(lambda *sizes: sum(sizes)),
    "ReduceMax": _reduced(largest),
    "ReduceMin": _reduced(smallest),
}


_T = onnx.TensorProto
_PLAIN = {
    "Shape": _T.INT64,
    "Size": _T.INT64,
    "ArgMax": _T.INT64,
    "ArgMin": _T.INT64,
    "NonZero": _T.INT64,
    "NonMaxSuppression": _T.INT64,
    "ConvInteger": _T.INT32,
    "MatMulInteger": _T.INT32,
    "IsInf": _T.BOOL,
    "IsNaN": _T.BOOL,
}
# The input that has the type of the output: a scale, a zero point, a table, the thing to be like.
_LIKE = {
    "Where": 1,
    "CastLike": 1,
    "OneHot": 2,
    "DequantizeLinear": 1,
    "QLinearMatMul": 7,
    "QLinearConv": 7,
    "QLinearAdd": 7,
    "QLinearMul": 7,
    "QLinearConcat": 1,
    "QLinearSigmoid": 4,
    "QLinearLeakyRelu": 4,
    "QLinearAveragePool": 4,
    "QLinearGlobalAveragePool": 4,
    "EmbedLayerNormalization": 2,
    "GatherBlockQuantized": 2,
    "DynamicQuantizeMatMul": 0,
    "MatMulIntegerToFloat": 2,
    "QAttention": 3,
}


_MADE_UP = RANDOM | {"EyeLike"}


def output_dtype(op: Operator, place: int) -> int:
    """0 if it is not known."""
    rule = _TYPE_RULES.get(op.op_type)
    if rule is not None:
        return rule(op, place)
    if op.op_type in BOOLEAN:
        return _T.BOOL
    if op.op_type in _MADE_UP and "dtype" in op.attributes:
        return int(op.attributes["dtype"])
    return _PLAIN.get(op.op_type) or op.dtype(_LIKE.get(op.op_type, 0))


def _filled_type(op: Operator, _: int) -> int:
    given = op.attribute("value")
    return _T.FLOAT if given is None else onnx.helper.np_dtype_to_tensor_dtype(given.dtype)


def _second(dtype: int) -> Callable[[Operator, int], int]:
    """The second output has a type of its own."""
    return lambda op, place: op.dtype(0) if place == 0 else dtype


_TYPE_RULES: Mapping[str, Callable[[Operator, int], int]] = {
    "Cast": lambda op, _: int(op.attribute("to", UNDEFINED)),
    "BitCast": lambda op, _: int(op.attribute("to", UNDEFINED)),
    "QuantizeLinear": lambda op, _: op.dtype(2) or op.attribute("output_dtype", 0) or _T.UINT8,
    "DynamicQuantizeLinear": lambda _, place: _T.FLOAT if place == 1 else _T.UINT8,
    "ConstantOfShape": _filled_type,
    "TopK": _second(_T.INT64),
    "MaxPool": _second(_T.INT64),
    "Dropout": _second(_T.BOOL),
    "QGemm": lambda op, _: op.dtype(8) or _T.FLOAT,
}
