"""Operator traits: what is known of ONNX operators and of ONNX Runtime's own, whoever made the model.

Every operator stands once, in `_ROWS`, with all of its traits; everything else here follows from that table. To add an
operator, add its name to the row with the same traits, or add a row. How many FLOPs it takes and the shape of what it
makes are rules, not traits: `inspect/cost/rules.py`, `inspect/cost/shape_rules.py`.

Ask with `Node.operator`, not with `op_type`: an operator of a domain that is not known has no trait, whatever its name.

    Max     Trait.BROADCAST | Trait.COMMUTATIVE     so `diff` sees no difference between Max(a, b) and Max(b, a),
                                                    `relink` matches the one with the other, and `cost` counts one
                                                    operation for each number of the stretched shape

Where lists that this table replaced did not agree, the operator's definition decides (https://onnx.ai/onnx/operators/
and https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md); the row or the set says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache

import onnx
import onnx.numpy_helper

from modelexport.graph.file.weights import has_data
from modelexport.graph.index import MAIN, Node, function_id, node_key, subgraphs_with_ids
from modelexport.graph.protos import MS, ONNX_DOMAINS, find_attribute, integer_attribute


class Trait(Flag):
    """What an operator does, each trait on its own.

    Arithmetic, number by number:
    UNARY           one number for each number of the first input
    BROADCAST       one number for each number of the shape that all inputs are stretched to
    BOOLEAN         it makes truth values
    ACTIVATION      the nonlinearity of a layer, or its core (Erf)
    ANGLE           a number that only rotates others: no content of what the model is fed
    COMMUTATIVE     all inputs can change places
    LINEAR          what it does with constants, the weights of the node before it can do

    Arithmetic, over axes:
    MATRIX_PRODUCT, CONVOLUTION, ATTENTION, NORMALIZATION, SOFTMAX, REDUCTION, POOL, GLOBAL_POOL

    Movement:
    MOVEMENT        no arithmetic: numbers are moved, chosen, converted or made up
    PASS_THROUGH    the first output means what the first input does: another type, other steps between numbers, or
                    another layout of memory
    VIEW            the numbers and their order stay
    ELEMENTS_ONLY   every number of the output is one of the first input; Pad adds a constant
    SUBSET          of ELEMENTS_ONLY: a part of the first input, which can be what a fused projection is cut into
    RESIZING        of ELEMENTS_ONLY: one output, and further inputs that are shapes or ranges. Not Gather, whose
                    indices may be what the model is fed; not Split, whose outputs are several values

    Inputs and outputs:
    SAME_SHAPE      the first output has the shape of the first input
    FIRST_ONLY      inputs after the first say how, not what: shapes, axes, bounds
    NO_CONTENT      it says whether, where or how many: nothing of what it reads is in what it makes
    RANDOM          equal inputs do not make equal outputs

    What other programs do with them (their lists, not definitions):
    QDQ_PROPAGATED  ONNX Runtime moves a QuantizeLinear/DequantizeLinear pair from one side of it to the other, or
                    leaves the rounding to what comes next (onnxruntime/core/optimizer/qdq_transformer)
    OLIVE_FOLLOWER  Olive's SplitModel puts it where its neighbours are; it does not look at the domain
    """

    UNARY = auto()
    BROADCAST = auto()
    BOOLEAN = auto()
    ACTIVATION = auto()
    ANGLE = auto()
    COMMUTATIVE = auto()
    LINEAR = auto()
    MATRIX_PRODUCT = auto()
    CONVOLUTION = auto()
    ATTENTION = auto()
    NORMALIZATION = auto()
    SOFTMAX = auto()
    REDUCTION = auto()
    POOL = auto()
    GLOBAL_POOL = auto()
    MOVEMENT = auto()
    PASS_THROUGH = auto()
    VIEW = auto()
    ELEMENTS_ONLY = auto()
    SUBSET = auto()
    RESIZING = auto()
    SAME_SHAPE = auto()
    FIRST_ONLY = auto()
    NO_CONTENT = auto()
    RANDOM = auto()
    QDQ_PROPAGATED = auto()
    OLIVE_FOLLOWER = auto()


_T = Trait
_NUMBERWISE = _T.UNARY | _T.SAME_SHAPE
_TEST = _T.BROADCAST | _T.BOOLEAN | _T.NO_CONTENT
_REDUCE = _T.REDUCTION | _T.FIRST_ONLY
_NORM = _T.NORMALIZATION | _T.SAME_SHAPE
_CONVERSION = _T.PASS_THROUGH | _T.SAME_SHAPE | _T.FIRST_ONLY
_MOVED = _T.MOVEMENT | _T.ELEMENTS_ONLY | _T.FIRST_ONLY
_VIEWED = _MOVED | _T.VIEW | _T.RESIZING | _T.QDQ_PROPAGATED
_MADE_UP = _T.MOVEMENT | _T.RANDOM

_ROWS: tuple[tuple[Trait, str], ...] = (
    # Number by number, one input.
    (_NUMBERWISE, "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Cosh Exp Floor Log Neg Reciprocal Round Sign"),
    (_NUMBERWISE, "Sinh Sqrt Tan"),
    (_NUMBERWISE | _T.ANGLE | _T.NO_CONTENT, "Cos Sin"),
    (_NUMBERWISE | _T.ACTIVATION, "Celu Elu Erf Gelu HardSigmoid HardSwish LeakyRelu Mish Selu Shrink Sigmoid"),
    (_NUMBERWISE | _T.ACTIVATION, "Softplus Softsign Swish Tanh ThresholdedRelu BiasGelu FastGelu QuickGelu"),
    (_NUMBERWISE | _T.ACTIVATION | _T.QDQ_PROPAGATED, "Relu"),
    (_NUMBERWISE | _T.FIRST_ONLY | _T.QDQ_PROPAGATED, "Clip"),
    (_NUMBERWISE | _T.BOOLEAN | _T.NO_CONTENT, "IsInf IsNaN Not"),
    (_T.UNARY | _T.ACTIVATION, "BiasSplitGelu"),  # it halves the last axis
    (_T.SAME_SHAPE | _T.FIRST_ONLY, "CumSum"),
    # Number by number, several inputs.
    (_T.BROADCAST | _T.COMMUTATIVE | _T.LINEAR, "Add Mul"),
    (_T.BROADCAST | _T.LINEAR, "Div Sub"),
    (_T.BROADCAST | _T.COMMUTATIVE, "BitwiseAnd BitwiseOr BitwiseXor Max Mean Min Sum"),
    (_T.BROADCAST, "BiasDropout BitShift Mod Pow QLinearAdd QLinearMul"),
    (_T.BROADCAST | _T.ACTIVATION, "PRelu"),
    (_TEST | _T.COMMUTATIVE, "And Equal Or Xor"),
    (_TEST, "Greater GreaterOrEqual Less LessOrEqual"),
    # In integers, with scales and zero points between the operands.
    (_NUMBERWISE, "QLinearLeakyRelu QLinearSigmoid"),
    (_T.SOFTMAX | _T.SAME_SHAPE, "QLinearSoftmax"),
    # Products. LINEAR are those with one bias and no activation of their own.
    (_T.MATRIX_PRODUCT | _T.LINEAR, "Gemm MatMul"),
    (_T.MATRIX_PRODUCT, "DynamicQuantizeMatMul Einsum FusedGemm FusedMatMul FusedMatMulActivation GemmFastGelu"),
    (_T.MATRIX_PRODUCT, "GemmFloat8 MatMulBnb4 MatMulInteger MatMulInteger16 MatMulIntegerToFloat MatMulNBits QGemm"),
    (_T.MATRIX_PRODUCT, "QLinearMatMul TransposeMatMul"),
    (_T.CONVOLUTION | _T.LINEAR, "Conv"),
    (_T.CONVOLUTION, "ConvInteger ConvTranspose FusedConv NhwcConv NhwcFusedConv QLinearConv"),
    (_T.ATTENTION, "Attention DecoderMaskedMultiHeadAttention GroupQueryAttention MultiHeadAttention PagedAttention"),
    (_T.ATTENTION, "QAttention SparseAttention"),
    # Over axes.
    (_NORM | _T.LINEAR, "BatchNormalization"),
    (_T.NORMALIZATION, "EmbedLayerNormalization"),  # it looks up what it normalizes
    (_NORM, "GroupNorm GroupNormalization InstanceNormalization LRN LayerNormalization"),
    (_NORM, "LpNormalization MeanVarianceNormalization RMSNormalization SimplifiedLayerNormalization SkipGroupNorm"),
    (_NORM, "SkipLayerNormalization SkipSimplifiedLayerNormalization"),
    (_T.SOFTMAX | _T.SAME_SHAPE, "Hardmax LogSoftmax Softmax"),
    (_T.SAME_SHAPE, "RotaryEmbedding"),
    (_REDUCE, "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"),
    (_REDUCE, "ReduceSumSquare"),
    (_T.REDUCTION | _T.NO_CONTENT, "ArgMax ArgMin"),
    (_T.POOL, "AveragePool LpPool NhwcMaxPool QLinearAveragePool"),
    (_T.POOL | _T.QDQ_PROPAGATED, "MaxPool"),
    (_T.GLOBAL_POOL, "GlobalAveragePool GlobalLpPool GlobalMaxPool QLinearGlobalAveragePool"),
    # The same value: in another type, in integers, in another layout, in other memory.
    (_MOVED | _T.PASS_THROUGH | _T.SAME_SHAPE | _T.OLIVE_FOLLOWER, "Identity"),
    (_MOVED | _T.PASS_THROUGH | _T.SAME_SHAPE, "Cast CastLike MemcpyFromHost MemcpyToHost"),
    (_T.MOVEMENT | _CONVERSION, "Dropout"),
    (_CONVERSION | _T.OLIVE_FOLLOWER, "DequantizeLinear QuantizeLinear"),
    (_T.PASS_THROUGH | _T.FIRST_ONLY, "DynamicQuantizeLinear"),  # its second and third output are scale and zero point
    (_T.MOVEMENT | _T.PASS_THROUGH, "ReorderInput ReorderOutput"),
    (_T.MOVEMENT | _T.SAME_SHAPE, "BitCast"),  # the same bits are other numbers
    # The same numbers, elsewhere.
    (_VIEWED, "Flatten Reshape Squeeze Unsqueeze"),
    (_MOVED | _T.QDQ_PROPAGATED, "Transpose"),
    (_MOVED | _T.RESIZING, "Expand Pad Tile"),
    (_MOVED | _T.RESIZING | _T.SUBSET | _T.QDQ_PROPAGATED, "Slice"),
    (_MOVED | _T.SUBSET, "Gather Split"),
    (_MOVED, "CenterCropPad Compress DepthToSpace GatherElements GatherND SpaceToDepth"),
    (_MOVED | _T.SAME_SHAPE, "ReverseSequence"),
    (_T.MOVEMENT | _T.SAME_SHAPE | _T.FIRST_ONLY, "Trilu"),
    (_T.MOVEMENT | _T.SAME_SHAPE, "Scatter ScatterElements ScatterND TensorScatter"),
    (_T.MOVEMENT | _T.FIRST_ONLY, "Resize TopK Upsample"),
    (_T.MOVEMENT, "Col2Im Concat ConcatFromSequence ConcatTraining GatherBlockQuantized Optional OptionalGetElement"),
    (_T.MOVEMENT, "OptionalHasElement RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty SequenceErase"),
    (_T.MOVEMENT, "SequenceInsert SequenceLength SplitToSequence StringConcat StringNormalizer StringSplit Unique"),
    (_T.MOVEMENT, "Where"),
    # Made up: from shapes, from nothing, or by chance.
    (_T.MOVEMENT | _T.NO_CONTENT, "ConstantOfShape NonZero OneHot Range Shape Size"),
    (_T.MOVEMENT | _T.OLIVE_FOLLOWER, "Constant"),
    (_T.MOVEMENT | _T.SAME_SHAPE, "EyeLike"),
    (_MADE_UP, "Multinomial RandomNormal RandomUniform"),
    (_MADE_UP | _T.SAME_SHAPE, "Bernoulli RandomNormalLike RandomUniformLike"),
)
TRAITS: Mapping[str, Trait] = {name: traits for traits, names in _ROWS for name in names.split()}
# Flags are compared slowly, and every start of a verb makes all sets below.
_BITS = {name: traits.value for name, traits in TRAITS.items()}


def having(trait: Trait) -> frozenset[str]:
    """The operators with a trait; of several traits, with all of them."""
    wanted = trait.value
    return frozenset([name for name, bits in _BITS.items() if bits & wanted == wanted])


UNARY, BROADCAST, BOOLEAN = having(_T.UNARY), having(_T.BROADCAST), having(_T.BOOLEAN)
ACTIVATIONS, ANGLES = having(_T.ACTIVATION), having(_T.ANGLE)
NORMALIZATIONS, SOFTMAXES, REDUCTIONS = having(_T.NORMALIZATION), having(_T.SOFTMAX), having(_T.REDUCTION)
POOLS, GLOBAL_POOLS, ATTENTIONS = having(_T.POOL), having(_T.GLOBAL_POOL), having(_T.ATTENTION)
MOVEMENTS, SAME_SHAPE, RANDOM = having(_T.MOVEMENT), having(_T.SAME_SHAPE), having(_T.RANDOM)
PASSING, COMMUTATIVE, LINEAR = having(_T.PASS_THROUGH), having(_T.COMMUTATIVE), having(_T.LINEAR)
RESIZING, FIRST_ONLY, NO_CONTENT = having(_T.RESIZING), having(_T.FIRST_ONLY), having(_T.NO_CONTENT)
VIEWS, SUBSETS, ELEMENTS_ONLY = having(_T.VIEW), having(_T.SUBSET), having(_T.ELEMENTS_ONLY)
# What a weight can go through and still be that weight, all of it: another type, another shape, other steps.
SAME_WEIGHT = VIEWS | PASSING | {"Transpose"}
# What can lie between a value and its use without a change of what it means: `MOVEMENT` has no part in that, as a
# DequantizeLinear multiplies, and a Where mixes two values.
CARRIERS = PASSING | ELEMENTS_ONLY
QDQ_PROPAGATED, OLIVE_FOLLOWERS = having(_T.QDQ_PROPAGATED), having(_T.OLIVE_FOLLOWER)

# Products, and which two of their inputs are multiplied: in integers, a scale and a zero point lie between them.
_SECOND_OPERAND = {"QLinearMatMul": 3, "QGemm": 3, "QLinearConv": 3}
MATRIX_PRODUCTS: Mapping[str, tuple[int, int]]
CONVOLUTIONS: Mapping[str, tuple[int, int]]
MATRIX_PRODUCTS, CONVOLUTIONS = (
    {name: (0, _SECOND_OPERAND.get(name, 1)) for name in having(trait)} for trait in (_T.MATRIX_PRODUCT, _T.CONVOLUTION)
)
PRODUCTS = {**MATRIX_PRODUCTS, **CONVOLUTIONS}
# Operators that add some of their inputs to each other, and which; of a convolution, to what it makes (-1).
SUMMANDS: Mapping[str, tuple[int, ...]] = {
    "Add": (0, 1),
    "QLinearAdd": (0, 3),
    "SkipLayerNormalization": (0, 1),
    "SkipSimplifiedLayerNormalization": (0, 1),
    "SkipGroupNorm": (0, 3),
    "Conv": (-1, 3),  # in blocked layout
    "FusedConv": (-1, 3),
    "NhwcFusedConv": (-1, 3),
}
# A norm that adds first may return the sum too: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
SUM_OUTPUT: Mapping[str, int] = {
    "SkipLayerNormalization": 3,
    "SkipSimplifiedLayerNormalization": 3,
    "SkipGroupNorm": 1,
}
# Query, key and value are the first inputs of an attention, except where it projects itself.
ATTENTIONS_THAT_PROJECT = frozenset({(MS, "Attention"), (MS, "QAttention")})
_CONTENT_INPUTS: Mapping[str, tuple[int, ...]] = {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2)}


def data_inputs(node: Node) -> tuple[str, ...]:
    """The inputs whose content goes into the output: of a Where, both values and not the condition."""
    if node.operator in NO_CONTENT:
        return ()
    if node.operator in _CONTENT_INPUTS:
        return tuple(node.inputs[index] for index in _CONTENT_INPUTS[node.operator] if index < len(node.inputs))
    return tuple(filter(None, node.inputs[:1] if node.operator in FIRST_ONLY else node.inputs))


def is_passing(node: Node) -> bool:
    """Whether the first output is the first input as far as its meaning goes."""
    return node.operator in PASSING and bool(node.inputs and node.inputs[0])


def is_view(node: Node) -> bool:
    return node.operator in VIEWS


def is_rearranging(node: Node) -> bool:
    """Whether the numbers stay as they are, perhaps in another order."""
    return node.operator in VIEWS or node.operator == "Transpose"


def is_moving(node: Node) -> bool:
    """Whether the numbers are those of the first input, perhaps not all of them or more than once."""
    return node.operator in RESIZING


def is_linear(node: Node) -> bool:
    return node.operator in LINEAR


def is_product(node: Node) -> bool:
    """Whether a node sums up products with weights, which can take in what is done with its result."""
    return node.operator in PRODUCTS or family(node.operator) in PRODUCTS


def is_commutative(operator: str) -> bool:
    """Whether all inputs can change places. Not those of QLinearAdd: scales lie between them."""
    return operator in COMMUTATIVE


def is_random(node: Node) -> bool:
    return node.operator in RANDOM


# Tools replace an operator by one that does the same work in another way, and say so in its name: in integers
# (QLinearConv), in another layout (NhwcFusedConv), with the next operator thrown in (BiasGelu).
_PREFIXES = ("DynamicQuantize", "QLinear", "Nhwc", "Fused", "Simplified", "Quick", "Fast", "Bias", "Skip")
_SUFFIXES = ("IntegerToFloat", "Integer", "NBits")
_SAME_WORK = {"CastLike": "Cast", "Gemm": "MatMul", "QGemm": "MatMul", "QAttention": "Attention"}


@cache
def family(op_type: str) -> str:
    """The plain operator whose work this one does, perhaps among others."""
    for prefix in _PREFIXES:
        if op_type.startswith(prefix) and op_type != prefix:
            return family(op_type.removeprefix(prefix))
    for suffix in _SUFFIXES:
        if op_type.endswith(suffix) and op_type != suffix:
            return family(op_type.removesuffix(suffix))
    return _SAME_WORK.get(op_type, op_type)


# Before this opset an attribute said that a Dropout does nothing; for a while it never did anything after that.
_DROPOUT_WITHOUT_FLAG = 7
_RATIO, _TRAINING_MODE = 1, 2
_Stored = Mapping[str, onnx.TensorProto]


@dataclass(frozen=True, slots=True)
class RandomNode:
    key: str
    name: str
    op_type: str

    def __str__(self) -> str:
        return f"{self.name or self.key} ({self.op_type})"


def random_nodes(proto: onnx.ModelProto) -> tuple[RandomNode, ...]:
    """Those of the main graph, of bodies inside it and of functions, in file order."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    drawing = [*_drawing(proto.graph.node, MAIN, stored, _opset(proto.opset_import))]
    for function in proto.functions:
        drawing += _drawing(function.node, function_id(function), {}, _opset(function.opset_import))
    return tuple(drawing)


def _opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    return next((item.version for item in imports if item.domain in ONNX_DOMAINS), 1)


def _drawing(nodes: Iterable[onnx.NodeProto], graph_id: str, outer: _Stored, opset: int) -> Iterator[RandomNode]:
    nodes = list(nodes)
    constants = ((node, find_attribute(node, "value")) for node in nodes if node.op_type == "Constant")
    stored = {**outer, **{node.output[0]: value.t for node, value in constants if value is not None}}
    for node in nodes:
        key = node_key(node, graph_id)
        if node.domain in ONNX_DOMAINS and (node.op_type in RANDOM or _drops(node, stored, opset)):
            yield RandomNode(key, node.name, node.op_type)
        for body_id, body in subgraphs_with_ids(node, key):
            inner = {tensor.name: tensor for tensor in body.initializer}
            yield from _drawing(body.node, body_id, {**stored, **inner}, opset)


def _drops(node: onnx.NodeProto, stored: _Stored, opset: int) -> bool:
    """Whether this is a Dropout that is at work. A ratio of zero drops nothing."""
    if node.op_type != "Dropout":
        return False
    if opset < _DROPOUT_WITHOUT_FLAG:
        return not integer_attribute(node, "is_test")
    return _truth(node, _TRAINING_MODE, stored) is True and _truth(node, _RATIO, stored) is not False


def _truth(node: onnx.NodeProto, index: int, stored: _Stored) -> bool | None:
    """Whether a stored input is anything but zero; None if it is left out, or computed."""
    tensor = stored.get(node.input[index] if index < len(node.input) else "")
    return None if tensor is None or not has_data(tensor) else bool(onnx.numpy_helper.to_array(tensor).any())
