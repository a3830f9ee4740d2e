"""The types of what operators make, where that is not the type of the first thing they read."""

from __future__ import annotations

import onnx

from modelexport.costing.operators import COMPARISON, MS
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


def made_type(op: Operator, place: int) -> int:
    """0 if it is not known."""
    if op.op_type in ("Cast", "BitCast"):
        return int(op.attribute("to", UNDEFINED))
    if op.op_type in COMPARISON:
        return _T.BOOL
    if op.op_type == "QuantizeLinear":
        return op.dtype(2) or op.attribute("output_dtype", 0) or _T.UINT8
    if op.op_type == "DynamicQuantizeLinear":
        return _T.FLOAT if place == 1 else _T.UINT8
    if op.op_type == "ConstantOfShape":
        given = op.attribute("value")
        return _T.FLOAT if given is None else onnx.helper.np_dtype_to_tensor_dtype(given.dtype)
    if place == 1 and op.op_type in ("TopK", "MaxPool"):
        return _T.INT64
    if place == 1 and op.op_type == "Dropout":
        return _T.BOOL
    if "dtype" in op.attributes and op.op_type in _MADE_UP:
        return int(op.attributes["dtype"])
    if op.op_type == "QGemm":
        return op.dtype(8) or _T.FLOAT
    if op.domain == MS and op.op_type == "QLinearConv":
        return op.dtype(7)
    return _PLAIN.get(op.op_type) or op.dtype(_LIKE.get(op.op_type, 0))


_MADE_UP = frozenset(
    "EyeLike RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial".split()
)
