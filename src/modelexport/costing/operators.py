"""Operators by what they do, where many do the same. `com.microsoft` stands for ONNX Runtime's own operators."""

from __future__ import annotations

MS = "com.microsoft"

# One number for each number that they read.
UNARY = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
    "LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan "
    "Tanh ThresholdedRelu BiasGelu FastGelu QuickGelu BiasSplitGelu".split()
)
# One number for each number of the shape that all they read is stretched to.
BROADCAST = frozenset(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Max Mean Min Mod Mul Or PRelu Pow Sub Sum Xor "
    "BiasDropout QLinearAdd QLinearMul".split()
)
COMPARISON = frozenset("Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsInf IsNaN".split())
QUANTIZED_UNARY = frozenset("QLinearSigmoid QLinearLeakyRelu QLinearSoftmax".split())
# The shape of their first input; several operations for each number, or for each number of a row.
NORMALIZATIONS = frozenset(
    "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LpNormalization LRN "
    "MeanVarianceNormalization RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization EmbedLayerNormalization SkipGroupNorm GroupNorm".split()
)
SOFTMAXES = frozenset("Softmax LogSoftmax Hardmax".split())
REDUCTIONS = frozenset(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare "
    "ArgMax ArgMin".split()
)
# Numbers are only moved, chosen, stored in another type, or made up.
MOVEMENTS = frozenset(
    "Bernoulli Cast CastLike CenterCropPad Col2Im Compress Concat Constant ConstantOfShape DepthToSpace Dropout Expand "
    "EyeLike Flatten Gather GatherElements GatherND Identity NonZero OneHot Optional OptionalGetElement "
    "OptionalHasElement Pad RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reshape ReverseSequence "
    "ScatterElements Scatter ScatterND SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
    "SequenceLength Shape Size Slice SpaceToDepth Split SplitToSequence ConcatFromSequence Squeeze Tile TopK Transpose "
    "Trilu Unique Unsqueeze Where BitCast ReorderInput ReorderOutput GatherBlockQuantized Upsample Resize "
    "MemcpyFromHost MemcpyToHost TensorScatter "
    "ConcatTraining StringConcat StringNormalizer StringSplit RegexFullMatch Multinomial".split()
)
# They keep the shape of their first input.
SAME_SHAPE = (
    UNARY
    | QUANTIZED_UNARY
    | NORMALIZATIONS
    | SOFTMAXES
    | frozenset(
        "Cast CastLike Bernoulli CumSum Dropout EyeLike Identity IsInf IsNaN QuantizeLinear DequantizeLinear "
        "RandomNormalLike RandomUniformLike ReverseSequence ScatterElements Scatter ScatterND Trilu RotaryEmbedding "
        "MemcpyFromHost MemcpyToHost TensorScatter BitCast".split()
    )
)
POOLS = frozenset("AveragePool LpPool MaxPool QLinearAveragePool NhwcMaxPool".split())
GLOBAL_POOLS = frozenset("GlobalAveragePool GlobalLpPool GlobalMaxPool QLinearGlobalAveragePool".split())
CONVOLUTIONS = frozenset("Conv ConvInteger FusedConv QLinearConv NhwcConv NhwcFusedConv".split())
