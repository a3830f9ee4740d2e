"""What is known of operators in general, whoever made the model.

Tools replace an operator by one that does the same work in another way: in integers, with another layout, with the next
operator thrown in. Their names say so: `QLinearConv`, `NhwcFusedConv`, `MatMulIntegerToFloat`.

What ONNX operators are to the search for roles. Facts about operators only; no model is known here.

Operators by what they do, where many do the same. `com.microsoft` stands for ONNX Runtime's own operators.

Nodes that draw random numbers each time that a file is run: what they make cannot be compared with another run.

Weights of convolutions in ONNX Runtime's blocked order (NCHWc).

A tensor of the usual shape holds blocks of output channels, and of input channels where there are enough of them,
behind everything else. How long a block is depends on the processor that the file was made on, and no file says it.
Channels that were missing to a whole block are zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import onnx.numpy_helper

from modelexport.graph.file.weights import has_data
from modelexport.graph.index import MAIN, Node, bodies, function_id, node_key
from modelexport.graph.protos import ONNX_DOMAINS, plain_domain

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


DRAWING = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
# Before this opset an attribute said that a Dropout does nothing; for a while it never did anything after that.
_DROPOUT_WITHOUT_FLAG = 7
_RATIO, _TRAINING_MODE = 1, 2
_Stored = Mapping[str, onnx.TensorProto]


@dataclass(frozen=True, slots=True)
class RandomNode:
    """A node that draws random numbers. `key` says where it is."""

    key: str
    name: str
    op_type: str

    def __str__(self) -> str:
        return f"{self.name or self.key} ({self.op_type})"


def random_nodes(proto: onnx.ModelProto) -> tuple[RandomNode, ...]:
    """Those of the main graph, of bodies inside it and of functions, in file order."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    found = list(_drawing(proto.graph.node, MAIN, stored, _opset(proto.opset_import)))
    for function in proto.functions:
        inside = _drawing(function.node, function_id(function), {}, _opset(function.opset_import))
        found.extend(inside)
    return tuple(found)


def _opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    return next((item.version for item in imports if item.domain in ONNX_DOMAINS), 1)


def _drawing(nodes: Iterable[onnx.NodeProto], graph_id: str, outer: _Stored, opset: int) -> Iterator[RandomNode]:
    """`outer` are the stored tensors that the graph can see."""
    nodes = list(nodes)
    stored = {**outer, **dict(_constants(nodes))}
    for node in nodes:
        key = node_key(node, graph_id)
        if node.domain in ONNX_DOMAINS and (node.op_type in DRAWING or _drops(node, stored, opset)):
            yield RandomNode(key, node.name, node.op_type)
        for body_id, body in bodies(node, key):
            inner = {tensor.name: tensor for tensor in body.initializer}
            yield from _drawing(body.node, body_id, {**stored, **inner}, opset)


def _constants(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, onnx.TensorProto]]:
    for node in nodes:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield node.output[0], attribute.t


def _drops(node: onnx.NodeProto, stored: _Stored, opset: int) -> bool:
    """Whether this is a Dropout that is at work. A ratio of zero drops nothing."""
    if node.op_type != "Dropout":
        return False
    if opset < _DROPOUT_WITHOUT_FLAG:
        return not any(attribute.name == "is_test" and attribute.i for attribute in node.attribute)
    return _truth(node, _TRAINING_MODE, stored) is True and _truth(node, _RATIO, stored) is not False


def _truth(node: onnx.NodeProto, place: int, stored: _Stored) -> bool | None:
    """Whether a stored input is anything but zero; None if it is left out, or computed."""
    name = node.input[place] if place < len(node.input) else ""
    tensor = stored.get(name)
    if tensor is None or not has_data(tensor):
        return None
    return bool(onnx.numpy_helper.to_array(tensor).any())


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


# What goes in comes out: in another type, with other steps between numbers, or in another layout of memory.
_PASSING = frozenset(
    {
        "Identity",
        "Cast",
        "CastLike",
        "Dropout",
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "ReorderInput",
        "ReorderOutput",
        "MemcpyFromHost",
        "MemcpyToHost",
    }
)
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_MOVES = frozenset({"Slice", "Expand", "Tile", "Pad"})
_LINEAR = frozenset({"Add", "Sub", "Mul", "Div", "BatchNormalization", "MatMul", "Gemm", "Conv"})
_PRODUCTS = frozenset({"MatMul", "Conv", "ConvTranspose"})
_COMMUTATIVE = frozenset(
    {
        *("Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
        *("Max", "Min", "Sum", "Mean"),  # of any number of inputs
    }
)
_PREFIXES = ("DynamicQuantize", "QLinear", "Nhwc", "Fused", "Simplified", "Quick", "Fast", "Bias", "Skip")
_SUFFIXES = ("IntegerToFloat", "Integer", "NBits")
_SAME_WORK = {"CastLike": "Cast", "Gemm": "MatMul", "QGemm": "MatMul", "QAttention": "Attention"}


def is_passing(node: Node) -> bool:
    """Whether the first output is the first input as far as its meaning goes."""
    return node.op_type in _PASSING and bool(node.inputs and node.inputs[0])


def is_view(node: Node) -> bool:
    """Whether the numbers and their order stay as they are."""
    return node.op_type in _VIEWS


def is_rearranging(node: Node) -> bool:
    """Whether the numbers stay as they are, perhaps in another order."""
    return is_view(node) or node.op_type == "Transpose"


def is_moving(node: Node) -> bool:
    """Whether the numbers are those of the first input, perhaps not all of them or more than once."""
    return is_view(node) or node.op_type in _MOVES


def is_linear(node: Node) -> bool:
    """Whether what a node does with constants can be done by the weights of the node before it."""
    return node.op_type in _LINEAR


def is_product(node: Node) -> bool:
    """Whether a node sums up products with weights, which can take in what is done with its result."""
    return family(node.op_type) in _PRODUCTS


def is_commutative(op_type: str, domain: str = "") -> bool:
    """Whether all inputs can change places: `Max(a, b, c)` is `Max(c, a, b)`.

    Not `QLinearAdd`, which has scales and zero points between its two operands. An operator of a domain that is not
    known here may be called `Add` and do anything.
    """
    return op_type in _COMMUTATIVE and plain_domain(domain) in DOMAINS


def is_random(node: Node) -> bool:
    """Whether equal inputs do not make it equal."""
    return node.op_type in DRAWING


@cache
def family(op_type: str) -> str:
    """The plain operator whose work this one does, perhaps among others."""
    name = op_type
    while True:
        shorter = _shortened(name)
        if shorter == name:
            return _SAME_WORK.get(name, name)
        name = shorter


def _shortened(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix) and len(name) > len(prefix):
            return name.removeprefix(prefix)
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix)
    return name


MS = "com.microsoft"
# Where an operator is what its name says; elsewhere, anything may have the name of one.
NHWC = "com.ms.internal.nhwc"
DOMAINS = frozenset({"", MS, DOMAIN, NHWC})


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
COUNTED_CONVOLUTIONS = named("Conv ConvInteger FusedConv QLinearConv NhwcConv NhwcFusedConv")
