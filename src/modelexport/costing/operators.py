"""Operators by what they do, where many do the same. `com.microsoft` stands for ONNX Runtime's own operators."""

from __future__ import annotations

from modelexport.graph.blocked import DOMAIN as NCHWC

MS = "com.microsoft"
# Where an operator is what its name says; elsewhere, anything may have the name of one.
NHWC = "com.ms.internal.nhwc"
DOMAINS = frozenset({"", MS, NCHWC, NHWC})


def named(text: str) -> frozenset[str]:
    return frozenset(text.split())


# One number for each number that they read.
UNARY = named(
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
    "HardSwish LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign "
    "Sqrt Swish Tan Tanh ThresholdedRelu BiasGelu FastGelu QuickGelu BiasSplitGelu"
)
# One number for each number of the shape that all they read is stretched to.
BROADCAST = named(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Max Mean Min Mod Mul Or PRelu Pow Sub Sum Xor "
    "BiasDropout QLinearAdd QLinearMul"
)
COMPARISON = named("Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsInf IsNaN")
QUANTIZED_UNARY = named("QLinearSigmoid QLinearLeakyRelu QLinearSoftmax")
# The shape of their first input; several operations for each number, or for each number of a row.
NORMALIZATIONS = named(
    "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LpNormalization LRN "
    "MeanVarianceNormalization RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization EmbedLayerNormalization SkipGroupNorm GroupNorm"
)
SOFTMAXES = named("Softmax LogSoftmax Hardmax")
REDUCTIONS = named(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare ArgMax ArgMin"
)
# Numbers are only moved, chosen, stored in another type, or made up.
MOVEMENTS = named(
    "Bernoulli BitCast Cast CastLike CenterCropPad Col2Im Compress Concat ConcatFromSequence ConcatTraining "
    "Constant ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten Gather GatherBlockQuantized "
    "GatherElements GatherND Identity MemcpyFromHost MemcpyToHost Multinomial NonZero OneHot Optional "
    "OptionalGetElement OptionalHasElement Pad RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range "
    "RegexFullMatch ReorderInput ReorderOutput Reshape Resize ReverseSequence Scatter ScatterElements ScatterND "
    "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Slice "
    "SpaceToDepth Split SplitToSequence Squeeze StringConcat StringNormalizer StringSplit TensorScatter Tile TopK "
    "Transpose Trilu Unique Unsqueeze Upsample Where"
)
RANDOM = named("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike")
# They keep the shape of their first input.
SAME_SHAPE = (
    UNARY
    | QUANTIZED_UNARY
    | NORMALIZATIONS
    | SOFTMAXES
    | named(
        "Cast CastLike Bernoulli CumSum Dropout EyeLike Identity IsInf IsNaN QuantizeLinear DequantizeLinear "
        "RandomNormalLike RandomUniformLike ReverseSequence ScatterElements Scatter ScatterND Trilu RotaryEmbedding "
        "MemcpyFromHost MemcpyToHost TensorScatter BitCast"
    )
)
POOLS = named("AveragePool LpPool MaxPool QLinearAveragePool NhwcMaxPool")
GLOBAL_POOLS = named("GlobalAveragePool GlobalLpPool GlobalMaxPool QLinearGlobalAveragePool")
CONVOLUTIONS = named("Conv ConvInteger FusedConv QLinearConv NhwcConv NhwcFusedConv")
