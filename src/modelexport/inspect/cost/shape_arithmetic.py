"""Shape arithmetic: constant folding of the few numbers that nodes compute from shapes; and types of what nodes make.

Exporters write `x.view(b, -1)` as a small graph that reads a shape and puts another one together:

    x: (batch, 12, 64) ──► Shape ──► [batch, 12, 64] ──► Gather 0 ──► batch ──► Concat ──► [batch, 768] ──► Reshape

Its values are arrays of whole numbers, polynomials of open axes and truth values (`Value.content`). Without them the
target of that Reshape would be unknown, and with it the shape of everything behind. Whatever a rule cannot compute is
unknown and no error: a weaker estimate is still one.

To add an operator
that takes part in this: a function in `_CONTENT_RULES`. To add one whose output has another type than its first input:
`_FIXED_DTYPES`, `_LIKE_INPUT` or `_DTYPE_RULES`.
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
    OperatorCall,
    Unknown,
    as_number,
    limit_length,
    product,
)
from modelexport.record.polynomial import Polynomial, Size, largest, smallest

_WHOLE = frozenset(
    onnx.TensorProto.DataType.Value(f"{sign}INT{width}") for sign in ("", "U") for width in (8, 16, 32, 64)
)

Content = Callable[[OperatorCall], np.ndarray]


def constant_values(op: OperatorCall) -> np.ndarray | None:
    """What a node makes, if that are a few numbers which follow from shapes and constants."""
    rule = _CONTENT_RULES.get(op.op_type) if not op.domain else None
    if rule is None:
        return None
    try:
        return _each(_limited, np.asarray(rule(op), dtype=object))
    except CANNOT:
        return None  # an estimate can be done without it


def _limited(number: Any) -> Any:
    """Unknown for a size that is too long a formula; truth values and floats pass."""
    is_size = isinstance(number, int | Polynomial) and not isinstance(number, bool)
    return as_number(limit_length(number)) if is_size else number


def _each(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Element by element, the result an array of objects whatever they are."""
    together = np.broadcast(*arrays)
    result = np.empty(together.shape, dtype=object)
    if together.size > MOST_NUMBERS:
        raise Unknown("too many numbers")
    result.reshape(-1)[:] = [function(*items) for items in together]
    return result


def _elementwise(function: Callable[..., Any]) -> Content:
    """Number by number, broadcast as numpy does."""
    return lambda op: _each(function, *(op.content(index) for index in range(len(op.inputs))))


def _divided(op: OperatorCall) -> np.ndarray:
    """Whole numbers are divided as ONNX divides them, toward zero; of others only exact quotients are needed."""
    return _each(_toward_zero if op.dtype(0) in _WHOLE else _exactly, op.content(0), op.content(1))


def _toward_zero(above: Size, below: Size) -> Size:
    """Of open axes it does not matter: sizes are not negative."""
    if isinstance(above, int) and isinstance(below, int):
        # A float holds whole numbers up to 2**52; ONNX rounds the quotient of integers toward zero, Python downward.
        return int(above / below) if abs(above) < 2**52 else above // below
    return above // below


def _exactly(above: Any, below: Any) -> Any:
    """Numbers with a point, of which only whole ones are needed."""
    if isinstance(above, Polynomial) or isinstance(below, Polynomial):
        result = Polynomial.of(above) // below
        if result * below == above:
            return result
        raise Unknown("not a whole number")
    return above / below


def _is_equal(left: Any, right: Any) -> bool:
    """Raise Unknown if it depends on the axes: `seq == 16` is open, `seq + 1 == seq` is not.

    Exporters compare sizes with -1 and 1 to choose between two shapes; a wrong guess would choose the wrong one.
    """
    if not isinstance(left, Polynomial) and not isinstance(right, Polynomial):
        return bool(left == right)
    never = _is_never(left, right) or _is_never(right, left)
    return not never and _sign(Polynomial.of(left) - right) == 0


def _is_never(size: Any, number: Any) -> bool:
    """Sizes are not negative: what is compared with -1 asks for a size that is left to be found out."""
    negative = isinstance(number, int) and number < 0
    return negative and isinstance(size, Polynomial) and any(factor > 0 for _, factor in size.terms)


def _is_less(left: Any, right: Any) -> bool:
    """As `_is_equal`: known if the difference has one sign whatever the axes are."""
    if not isinstance(left, Polynomial) and not isinstance(right, Polynomial):
        return bool(left < right)
    return _sign(Polynomial.of(right) - left) > 0


def _sign(size: Polynomial) -> int:
    """-1, 0 or 1, if that is the same for all sizes of axes, which are at least 1; else Unknown."""
    if size.value is not None:
        return (size.value > 0) - (size.value < 0)
    if _is_positive(size):
        return 1
    if _is_positive(-size):
        return -1
    raise Unknown("it depends on the axes")


def _is_positive(size: Polynomial) -> bool:
    """Whether it is more than 0 for all sizes of axes, as far as that can be seen: `2·seq - 1` is, `seq - 1` is not."""
    factors = [factor for _, factor in size.terms]
    if all(factor > 0 for factor in factors):
        return True
    # At all axes 1 it is smallest, if nothing but a plain number is taken away. Quotients may be 0 there.
    simple = all(isinstance(atom, str) for monomial, _ in size.terms for atom, _ in monomial)
    negative = [factor for monomial, factor in size.terms if factor < 0]
    constant = dict(size.terms).get((), 0)
    return simple and negative == [constant] and sum(factors) > 0


def _where(condition: Any, left: Any, right: Any) -> Any:
    """A condition that is open has no answer; the numbers may still be polynomials."""
    if isinstance(condition, Polynomial):
        raise Unknown("it depends on the axes")
    return left if condition else right


def _shape(op: OperatorCall) -> np.ndarray:
    """`start` and `end` are of opset 15: the shape of x, or of some of its axes."""
    return np.array(op.shape(0), dtype=object)[slice(op.attribute("start", 0), op.attribute("end"))]


def _gathered(op: OperatorCall) -> np.ndarray:
    """The commonest of all: `x.shape[0]` is a Gather of a Shape."""
    indices = op.content(1).astype(np.int64)
    return np.take(op.content(0), indices, axis=op.attribute("axis", 0))


def _sliced(op: OperatorCall) -> np.ndarray:
    """Starts, ends and axes must be numbers: which part of a shape it is cannot depend on the axes."""
    starts, ends = op.listed("starts", 1) or [], op.listed("ends", 2) or []
    axes = op.listed("axes", 3, range(len(starts))) or []
    steps = op.numbers(4) if op.has(4) else [1] * len(starts)
    result = op.content(0)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index: list[slice] = [slice(None)] * result.ndim
        low = -(2**31)  # exporters write the smallest number for "from the beginning"
        index[axis] = slice(start if start > low else None, end if end > low else None, step)
        result = result[tuple(index)]
    return result


def _squeezed(op: OperatorCall) -> np.ndarray:
    """Mostly a row of one number to that number. Axes are an attribute before opset 13."""
    axes = op.listed("axes", 1)
    return np.squeeze(op.content(0), axis=None if axes is None else tuple(axes))


def _one_hot(op: OperatorCall) -> np.ndarray:
    """Along the last axis, where shapes have theirs."""
    indices, depth, (off, on) = op.numbers(0), op.numbers(1)[0], op.sizes(2)
    rows = [[on if index % depth == column else off for column in range(depth)] for index in indices]
    return np.array(rows, dtype=object).reshape(*op.content(0).shape, depth)


def _expanded(op: OperatorCall) -> np.ndarray:
    """Both ways: the wanted shape may have a 1 where the value has more."""
    result, shape = op.content(0), op.numbers(1)
    return np.broadcast_to(result, np.broadcast_shapes(result.shape, tuple(shape)))


def _filled(op: OperatorCall) -> np.ndarray:
    """ConstantOfShape: zeros of float32, unless an attribute says otherwise."""
    tensor = op.attribute("value")
    number = 0.0 if tensor is None else tensor.reshape(-1)[0].item()
    shape = op.numbers(0)
    if np.prod(shape, dtype=np.int64) > MOST_NUMBERS:
        raise Unknown("too many numbers")
    return np.full(shape, number, dtype=object)


def _ranged(op: OperatorCall) -> np.ndarray:
    """Positions, such as the axes of a permutation; longer rows are data and no shapes."""
    start, end, step = (op.numbers(index)[0] for index in range(3))
    if abs(end - start) > MOST_NUMBERS * abs(step):
        raise Unknown("too many numbers")
    return np.array(range(start, end, step), dtype=object)


def _reduced(function: Callable[..., Any]) -> Content:
    """Of a row of sizes: how many elements there are (ReduceProd), or the longest side."""

    def rule(op: OperatorCall) -> np.ndarray:
        if op.content(0).ndim > 1:
            raise Unknown("not a shape")
        result = function(*op.sizes(0))
        return np.array([result] if op.attribute("keepdims", 1) else result, dtype=object)

    return rule


def _cast(op: OperatorCall) -> np.ndarray:
    """A size that goes through a float and back is that size; to a truth value, it is whether it is not 0."""
    to = op.attribute("to")
    if to in _WHOLE:
        return _each(lambda number: number if isinstance(number, Polynomial) else int(number), op.content(0))
    if to == onnx.TensorProto.BOOL:
        return _each(lambda number: not _is_equal(number, 0), op.content(0))
    return op.content(0)


_CONTENT_RULES: Mapping[str, Content] = {
    # Where sizes come from.
    "Shape": _shape,
    "Size": lambda op: np.array(product(op.shape(0)), dtype=object),
    "Identity": lambda op: op.content(0),
    "Cast": _cast,
    # Picking, putting together and reshaping rows of sizes.
    "Gather": _gathered,
    # How exporters put a shape together: sizes that they computed, and constants.
    "Concat": lambda op: np.concatenate([op.content(i) for i in range(len(op.inputs))], axis=op.attribute("axis", 0)),
    "Slice": _sliced,
    "Squeeze": _squeezed,
    "Unsqueeze": lambda op: np.expand_dims(op.content(0), tuple(op.listed("axes", 1) or ())),
    # A size to a row of one, say. -1 stands for what is left, as in numpy; a 0 that copies an axis is not needed.
    "Reshape": lambda op: op.content(0).reshape(op.numbers(1)),
    "Expand": _expanded,
    "ConstantOfShape": _filled,
    "Range": _ranged,
    "Transpose": lambda op: np.transpose(op.content(0), op.attribute("perm")),
    "OneHot": _one_hot,
    # Arithmetic on sizes. A Sqrt is of a head's width, a constant.
    "Sqrt": _elementwise(math.sqrt),
    # Exponents come in as floats, of which a polynomial has no power.
    "Pow": _elementwise(lambda base, power: base ** (int(power) if isinstance(base, Polynomial) else power)),
    "Add": _elementwise(operator.add),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul),
    "Div": _divided,
    "Mod": _elementwise(operator.mod),
    "Neg": _elementwise(operator.neg),
    "Abs": _elementwise(lambda number: number if isinstance(number, Polynomial) else abs(number)),
    # Exporters scale sizes in floats and round them; a polynomial is whole already.
    "Floor": _elementwise(lambda number: number if isinstance(number, Polynomial) else math.floor(number)),
    "Ceil": _elementwise(lambda number: number if isinstance(number, Polynomial) else math.ceil(number)),
    "Min": _elementwise(
        lambda *items: smallest(*items) if any(isinstance(i, Polynomial) for i in items) else min(items)
    ),
    "Max": _elementwise(
        lambda *items: largest(*items) if any(isinstance(i, Polynomial) for i in items) else max(items)
    ),
    # Choosing between shapes: `Where(Equal(shape, -1), other, shape)` is how Expand is exported.
    "Equal": _elementwise(_is_equal),
    "Less": _elementwise(_is_less),
    "Greater": _elementwise(lambda left, right: _is_less(right, left)),
    "LessOrEqual": _elementwise(lambda left, right: not _is_less(right, left)),
    "GreaterOrEqual": _elementwise(lambda left, right: not _is_less(left, right)),
    "Not": _elementwise(operator.not_),
    "And": _elementwise(lambda left, right: left and right),
    "Or": _elementwise(lambda left, right: left or right),
    "Where": _elementwise(_where),
    # How many there are, in all.
    "ReduceProd": _reduced(lambda *sizes: product(sizes)),
    "ReduceSum": _reduced(lambda *sizes: sum(sizes)),
    "ReduceMax": _reduced(largest),
    "ReduceMin": _reduced(smallest),
}


_T = onnx.TensorProto
_FIXED_DTYPES = {
    **dict.fromkeys(("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "NonMaxSuppression"), _T.INT64),
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), _T.INT32),
    **dict.fromkeys(("IsInf", "IsNaN"), _T.BOOL),
}
# The input that has the type of the output, where that is not the first one.
_LIKE_INPUT = {
    **dict.fromkeys(("Where", "CastLike"), 1),
    **dict.fromkeys(("OneHot", "EmbedLayerNormalization"), 2),  # the values to choose from, the table of words
    # Floats come out in the type of the scale.
    "DequantizeLinear": 1,
    **dict.fromkeys(("GatherBlockQuantized", "MatMulIntegerToFloat"), 2),
    "QAttention": 3,
    # Integers come out in the type of the zero point of the output, whose place depends on how many operands there are.
    "QLinearConcat": 1,
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool", "QLinearGlobalAveragePool"), 4),
    **dict.fromkeys(("QLinearMatMul", "QLinearConv", "QLinearAdd", "QLinearMul"), 7),
}


_MADE_UP = RANDOM | {"EyeLike"}


def output_dtype(op: OperatorCall, index: int) -> int:
    """The type of an output, as TensorProto numbers them; 0 if it is not known."""
    rule = _DTYPE_RULES.get(op.operator)
    if rule is not None:
        return rule(op, index)
    if op.operator in BOOLEAN:
        return _T.BOOL
    if op.operator in _MADE_UP and "dtype" in op.attributes:
        return int(op.attributes["dtype"])
    return _FIXED_DTYPES.get(op.operator) or op.dtype(_LIKE_INPUT.get(op.operator, 0))


def _filled_type(op: OperatorCall, _: int) -> int:
    """That of the tensor in the attribute, float32 without one."""
    tensor = op.attribute("value")
    return _T.FLOAT if tensor is None else onnx.helper.np_dtype_to_tensor_dtype(tensor.dtype)


def _second(dtype: int) -> Callable[[OperatorCall, int], int]:
    """The second output has a type of its own."""
    return lambda op, index: op.dtype(0) if index == 0 else dtype


_DTYPE_RULES: Mapping[str, Callable[[OperatorCall, int], int]] = {
    "Cast": lambda op, _: int(op.attribute("to", UNDEFINED)),
    "BitCast": lambda op, _: int(op.attribute("to", UNDEFINED)),
    "QuantizeLinear": lambda op, _: op.dtype(2) or op.attribute("output_dtype", 0) or _T.UINT8,
    "DynamicQuantizeLinear": lambda _, index: _T.FLOAT if index == 1 else _T.UINT8,
    "ConstantOfShape": _filled_type,
    "TopK": _second(_T.INT64),
    "MaxPool": _second(_T.INT64),
    "Dropout": _second(_T.BOOL),
    "QGemm": lambda op, _: op.dtype(8) or _T.FLOAT,
}
