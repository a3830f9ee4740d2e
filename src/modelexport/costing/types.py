"""The types of what operators make, where that is not the type of the first thing they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from modelexport.costing.operators import COMPARISON, RANDOM
from modelexport.costing.values import UNDEFINED, Operator

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


def made_type(op: Operator, place: int) -> int:
    """0 if it is not known."""
    rule = _RULES.get(op.op_type)
    if rule is not None:
        return rule(op, place)
    if op.op_type in COMPARISON:
        return _T.BOOL
    if op.op_type in _MADE_UP and "dtype" in op.attributes:
        return int(op.attributes["dtype"])
    return _PLAIN.get(op.op_type) or op.dtype(_LIKE.get(op.op_type, 0))


def _filled(op: Operator, _: int) -> int:
    given = op.attribute("value")
    return _T.FLOAT if given is None else onnx.helper.np_dtype_to_tensor_dtype(given.dtype)


def _second(dtype: int) -> Callable[[Operator, int], int]:
    """The second output has a type of its own."""
    return lambda op, place: op.dtype(0) if place == 0 else dtype


_RULES: Mapping[str, Callable[[Operator, int], int]] = {
    "Cast": lambda op, _: int(op.attribute("to", UNDEFINED)),
    "BitCast": lambda op, _: int(op.attribute("to", UNDEFINED)),
    "QuantizeLinear": lambda op, _: op.dtype(2) or op.attribute("output_dtype", 0) or _T.UINT8,
    "DynamicQuantizeLinear": lambda _, place: _T.FLOAT if place == 1 else _T.UINT8,
    "ConstantOfShape": _filled,
    "TopK": _second(_T.INT64),
    "MaxPool": _second(_T.INT64),
    "Dropout": _second(_T.BOOL),
    "QGemm": lambda op, _: op.dtype(8) or _T.FLOAT,
}
