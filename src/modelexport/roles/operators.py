"""What ONNX operators are to the search for roles. Facts about operators only; no model is known here."""

from __future__ import annotations

from collections.abc import Mapping

# Products, and which two of their inputs are multiplied.
MATRIX_PRODUCTS: Mapping[str, tuple[int, int]] = {
    "MatMul": (0, 1),
    "Gemm": (0, 1),
    "Einsum": (0, 1),
    "FusedMatMul": (0, 1),
    "FusedGemm": (0, 1),
    "TransposeMatMul": (0, 1),
    "GemmFastGelu": (0, 1),
    "MatMulNBits": (0, 1),
    "MatMulInteger": (0, 1),
    "MatMulIntegerToFloat": (0, 1),
    "DynamicQuantizeMatMul": (0, 1),
    "QLinearMatMul": (0, 3),
    "QGemm": (0, 3),
}
CONVOLUTIONS: Mapping[str, tuple[int, int]] = {
    "Conv": (0, 1),
    "ConvTranspose": (0, 1),
    "FusedConv": (0, 1),
    "NhwcFusedConv": (0, 1),
    "ConvInteger": (0, 1),
    "QLinearConv": (0, 3),
}
PRODUCTS = {**MATRIX_PRODUCTS, **CONVOLUTIONS}

# One node that is all of an attention. Query, key and value are its first inputs, except where it projects itself.
ATTENTIONS = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "PagedAttention", "SparseAttention"})
ATTENTIONS_THAT_PROJECT = frozenset({("com.microsoft", "Attention"), ("com.microsoft", "QAttention")})

NORMS = frozenset(
    {
        "LayerNormalization",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "GroupNormalization",
        "GroupNorm",
        "SkipGroupNorm",
        "InstanceNormalization",
        "BatchNormalization",
    }
)

ACTIVATIONS = frozenset(
    {
        "Relu",
        "Gelu",
        "FastGelu",
        "BiasGelu",
        "QuickGelu",
        "Erf",
        "Sigmoid",
        "HardSigmoid",
        "HardSwish",
        "Swish",
        "Mish",
        "Tanh",
        "Elu",
        "Selu",
        "Celu",
        "LeakyRelu",
        "ThresholdedRelu",
        "PRelu",
        "Softplus",
        "Softsign",
    }
)

# They move, repeat or convert what their first input holds.
MOVES = frozenset(
    {
        "Reshape",
        "Transpose",
        "Slice",
        "Split",
        "Squeeze",
        "Unsqueeze",
        "Expand",
        "Tile",
        "Flatten",
        "Identity",
        "Cast",
        "CastLike",
        "Dropout",
        "Pad",
        "Gather",
        "GatherElements",
        "GatherND",
        "QuantizeLinear",
        "DequantizeLinear",
    }
)
CUTS = frozenset({"Slice", "Split", "Gather"})

# All inputs after the first say how, not what.
_FIRST_ONLY = MOVES | {
    "Clip",
    "Resize",
    "Trilu",
    "TopK",
    "CumSum",
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceL2",
    "ReduceL1",
    "ReduceProd",
    "ReduceSumSquare",
}
# Whether and where, not what: masks, indices and shapes carry nothing of the content on. An angle does not either.
LOGIC = frozenset(
    {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor", "IsNaN", "IsInf"}
)
ANGLES = frozenset({"Sin", "Cos"})
_NOTHING = LOGIC | ANGLES | {"Shape", "Size", "ConstantOfShape", "Range", "NonZero", "ArgMax", "ArgMin", "OneHot"}
_CHOSEN: Mapping[str, tuple[int, ...]] = {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2)}


def data_inputs(op_type: str, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """The inputs whose content goes into the output."""
    if op_type in _NOTHING:
        return ()
    if op_type in _CHOSEN:
        return tuple(inputs[place] for place in _CHOSEN[op_type] if place < len(inputs))
    return tuple(filter(None, inputs[:1] if op_type in _FIRST_ONLY else inputs))
