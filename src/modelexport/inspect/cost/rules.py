"""Work rules: how many operations a node takes, by its operator and the shapes that it reads.

To add the FLOPs of an operator:

- it multiplies and adds (a matrix product, a convolution, an attention): write how many FLOPs it takes and which shapes
  it makes in `products.py` (or here, for an attention), and add a line to `_product_rules`;
- it works number by number, moves, normalizes or reduces: give it the trait in `graph/operators.py`. `_KINDS` says what
  the traits cost, and `shape_rules.py` which shapes it makes;
- an operator of which neither is known costs an unknown amount, which is said to be unknown and never taken for 0.

A multiplication and an addition count as 2 FLOPs, as `torch.utils.flop_counter` counts
(https://github.com/pytorch/pytorch/blob/main/torch/utils/flop_counter.py). Everything else is `other`: 1 for each
number that an elementwise operator makes, 5 for each of a softmax or a normalization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from modelexport.graph import operators
from modelexport.graph.operators import CONVOLUTIONS
from modelexport.graph.protos import MS, NCHWC, NHWC
from modelexport.inspect.cost import products
from modelexport.inspect.cost.products import twice
from modelexport.inspect.cost.values import CANNOT, OperatorCall, Shape, Unknown, as_number, product
from modelexport.record.polynomial import Polynomial, Size
from modelexport.record.results.cost import ZERO, Kind


@dataclass(frozen=True)
class AttentionSizes:
    """How many queries look at how many keys: one product for the scores, one for what is read by them.

        scores = Q · Kᵀ     2 · batch · heads · queries · keys · width
        read   = scores · V 2 · batch · heads · queries · keys · value_width

    width, value_width  of one head, for queries and keys, and for values
    """

    batch: Size
    heads: Size
    queries: Size
    keys: Size
    width: Size
    value_width: Size

    @property
    def flops(self) -> Polynomial:
        both = Polynomial.of(self.width) + self.value_width
        return twice(self.batch, self.heads, self.queries, self.keys) * both

    @property
    def output_shape(self) -> Shape:
        """Heads beside each other."""
        return (self.batch, self.queries, as_number(Polynomial.of(self.heads) * self.value_width))


def onnx_attention_shapes(op: OperatorCall) -> Sequence[Shape]:
    """The result in the layout of the queries, keys and values for the next step, and the scores."""
    sizes = _onnx(op)
    groups = op.shape(1)[1] if len(op.shape(1)) == 4 else op.attribute("kv_num_heads")
    present = [(sizes.batch, groups, sizes.keys, width) for width in (sizes.width, sizes.value_width)]
    scores = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    by_head = (sizes.batch, sizes.heads, sizes.queries, sizes.value_width)
    return [by_head if len(op.shape(0)) == 4 else sizes.output_shape, *present, scores]


def _onnx(op: OperatorCall) -> AttentionSizes:
    """https://onnx.ai/onnx/operators/onnx__Attention.html: heads as an axis, or beside each other in the last one."""
    query, key, value = (op.shape(index) for index in range(3))
    past = op.shape(4)[2] if op.has(4) else 0
    if len(query) == 4:
        batch, heads, queries, width = query
        return AttentionSizes(batch, heads, queries, _plus(key[2], past), width, value[3])
    heads, groups = op.attribute("q_num_heads"), op.attribute("kv_num_heads")
    batch, queries, hidden = query
    return AttentionSizes(batch, heads, queries, _plus(key[1], past), _per(hidden, heads), _per(value[2], groups))


def projected(op: OperatorCall) -> Polynomial:
    """ONNX Runtime's Attention: the projections to queries, keys and values as well.

    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.Attention
    """
    batch, length, hidden = _three(op.shape(0))
    return twice(batch, length, hidden, op.shape(1)[1]) + _projected(op).flops


def projected_shapes(op: OperatorCall) -> Sequence[Shape]:
    """Keys and values for the next step are one tensor, stacked along a new first axis."""
    sizes = _projected(op)
    return [sizes.output_shape, (2, sizes.batch, sizes.heads, sizes.keys, sizes.width)]


def _projected(op: OperatorCall) -> AttentionSizes:
    """The weight holds the projections of queries, keys and values beside each other: (hidden, 3 · hidden)."""
    batch, length, _ = _three(op.shape(0))
    heads = op.attribute("num_heads")
    three = Polynomial.of(op.shape(1)[1])
    sizes = op.attribute("qkv_hidden_sizes") or [three // 3] * 3
    # QAttention reads scales and zero points before the keys and values of earlier steps.
    past_at = 8 if op.op_type == "QAttention" else 4
    past = op.shape(past_at)[3] if op.has(past_at) else 0
    return AttentionSizes(batch, heads, length, _plus(length, past), _per(sizes[0], heads), _per(sizes[2], heads))


def multi_head_shapes(op: OperatorCall) -> Sequence[Shape]:
    """The result, and keys and values with those of earlier steps, heads as an axis."""
    sizes = _multi_head(op)
    present = [(sizes.batch, sizes.heads, sizes.keys, width) for width in (sizes.width, sizes.value_width)]
    return [sizes.output_shape, *present]


def _multi_head(op: OperatorCall) -> AttentionSizes:
    """Queries, keys and values as (batch, length, hidden), as (batch, heads, length, width), or packed into one."""
    query, heads = op.shape(0), op.attribute("num_heads")
    past = op.shape(6)[2] if op.has(6) else 0
    # All three in one: (batch, length, heads, 3, width).
    if len(query) == 5:
        batch, length, _, _, width = query
        return AttentionSizes(batch, heads, length, _plus(length, past), width, width)
    batch, queries, hidden = query
    width = _per(hidden, heads)
    key = op.shape(1) if op.has(1) else query
    # Keys and values in one: (batch, length, heads, 2, width).
    if len(key) == 5:
        return AttentionSizes(batch, heads, queries, _plus(key[1], past), width, width)
    value = op.shape(2) if op.has(2) else key
    keys = key[2] if len(key) == 4 else key[1]
    value_width = value[3] if len(value) == 4 else _per(value[2], heads)
    return AttentionSizes(batch, heads, queries, _plus(keys, past), width, value_width)


def grouped_shapes(op: OperatorCall) -> Sequence[Shape]:
    """As above, with the fewer heads that keys and values have."""
    sizes = _grouped(op)
    present = (sizes.batch, op.attribute("kv_num_heads"), sizes.keys, sizes.width)
    return [sizes.output_shape, present, present]


def _grouped(op: OperatorCall) -> AttentionSizes:
    """Fewer heads for keys and values than for queries; all in one if no keys are given."""
    batch, length, hidden = _three(op.shape(0))
    heads, groups = op.attribute("num_heads"), op.attribute("kv_num_heads")
    width = _per(hidden, heads if op.has(1) else heads + 2 * groups)
    past = op.shape(3)[2] if op.has(3) else 0
    return AttentionSizes(batch, heads, length, _plus(length, past), width, width)


def _three(shape: Shape) -> tuple[Size, Size, Size]:
    if len(shape) != 3:
        raise Unknown(f"an attention reads {len(shape)} axes where it must be three")
    return shape[0], shape[1], shape[2]


def _plus(size: Size, more: Size) -> Size:
    return as_number(Polynomial.of(size) + more)


def _per(size: Size, heads: int | None) -> Size:
    """The width of one head. Attributes of a damaged file may lack the number of heads, or say 0."""
    if not heads:
        raise Unknown("how many heads there are is not said")
    return as_number(Polynomial.of(size) // heads)


@dataclass(frozen=True)
class ProductRule:
    """What an operator that multiplies and adds takes, and the shapes of its outputs, the first ones at least."""

    kind: Kind
    flops: Callable[[OperatorCall], Polynomial]
    output_shapes: Callable[[OperatorCall], Sequence[Shape]]


_MATMUL = ProductRule(Kind.MATMUL, products.matmul, products.matmul_shapes)
_PACKED = ProductRule(Kind.MATMUL, products.packed, products.packed_shapes)
_CONV = ProductRule(Kind.CONVOLUTION, products.conv, products.conv_shapes)
_TRANSPOSED = ProductRule(Kind.CONVOLUTION, products.transposed, products.transposed_shapes)
_RECURRENT = ProductRule(Kind.RECURRENT, products.recurrent, products.recurrent_shapes)
_EXPERTS = ProductRule(Kind.MATMUL, products.experts, lambda op: [op.shape(0)])
_PROJECTED = ProductRule(Kind.ATTENTION, projected, projected_shapes)
_MULTI_HEAD = ProductRule(Kind.ATTENTION, lambda op: _multi_head(op).flops, multi_head_shapes)
_GROUPED = ProductRule(Kind.ATTENTION, lambda op: _grouped(op).flops, grouped_shapes)
_ONNX_ATTENTION = ProductRule(Kind.ATTENTION, lambda op: _onnx(op).flops, onnx_attention_shapes)


def _product_rules() -> Iterator[tuple[tuple[str, str], ProductRule]]:
    """By domain and operator. `com.microsoft` has operators of the same names that read other inputs."""
    # Matrix products: of floats, fused with what comes next, in integers.
    for name in ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul"):
        yield ("", name), _MATMUL
    for name in (
        *("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "FusedGemm", "GemmFastGelu", "GemmFloat8"),
        *("MatMulInteger", "MatMulInteger16", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul"),
        "QGemm",
    ):
        yield (MS, name), _MATMUL
    # Weights of 4 bits in blocks: attributes K and N are the sizes of the matrix.
    for name in ("MatMulNBits", "MatMulBnb4"):
        yield (MS, name), _PACKED
    # Convolutions have the same inputs in all layouts.
    for domain in ("", MS, NCHWC, NHWC):
        yield from (((domain, name), _CONV) for name in CONVOLUTIONS if name != "ConvTranspose")
        yield (domain, "ConvTranspose"), _TRANSPOSED
    yield ("", "DeformConv"), ProductRule(Kind.CONVOLUTION, products.deformed, products.deformed_shapes)
    yield ("", "Einsum"), ProductRule(Kind.MATMUL, products.einsum, products.einsum_shapes)
    yield from ((("", name), _RECURRENT) for name in ("LSTM", "GRU", "RNN"))
    yield (MS, "DynamicQuantizeLSTM"), _RECURRENT
    yield from (((MS, name), _EXPERTS) for name in ("MoE", "QMoE"))
    # Attentions: ONNX's own (opset 23) and ONNX Runtime's, which differ in what they read.
    yield ("", "Attention"), _ONNX_ATTENTION
    yield from (((MS, name), _PROJECTED) for name in ("Attention", "QAttention"))
    yield from (((MS, name), _MULTI_HEAD) for name in ("MultiHeadAttention", "DecoderMaskedMultiHeadAttention"))
    yield (MS, "GroupQueryAttention"), _GROUPED


PRODUCT_RULES: Mapping[tuple[str, str], ProductRule] = dict(_product_rules())


# Operations for each number: the largest, the difference, the exponential, the sum and the quotient of a softmax; the
# mean, the difference, the square, the deviation and the quotient of a normalization.
_NORMALIZATION_STEPS = 5
# x · cos + rotated · sin, for each number of a rotary embedding.
_ROTATION_STEPS = 3
# Elementwise by what they compute, though not by shape: each number that they make is one operation.
_ELEMENTWISE = {
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConcat", "CumSum", "Einsum"),
    *("GridSample", "AffineGrid", "HannWindow", "HammingWindow", "BlackmanWindow"),
}


@dataclass(frozen=True)
class Work:
    """What a node does when it runs once; None is unknown, and `reason` says why."""

    kind: Kind
    flops: Polynomial | None
    other: Polynomial | None
    reason: str = ""


def work_of(op: OperatorCall, shapes: Sequence[Shape | None]) -> Work:
    """`shapes` are those of the outputs, as far as they are known."""
    rule = PRODUCT_RULES.get((op.domain, op.op_type))
    if rule is not None:
        try:
            return Work(rule.kind, rule.flops(op), ZERO)
        except CANNOT as error:
            return Work(rule.kind, None, ZERO, _reason(op, error))
    kind = next((kind for kind, names in _KINDS.items() if op.operator in names), Kind.UNKNOWN)
    if kind is Kind.UNKNOWN:
        name = f"{op.domain}::{op.op_type}" if op.domain else op.op_type
        return Work(kind, None, None, f"there is no rule for {name}")
    try:
        return Work(kind, ZERO, _other(op, kind, shapes))
    except CANNOT as error:
        return Work(kind, ZERO, None, _reason(op, error))


def _reason(op: OperatorCall, error: Exception) -> str:
    return str(error) if isinstance(error, Unknown) else f"{op.op_type} reads shapes that do not fit together"


# In this order: an operator can have several traits.
_KINDS = {
    Kind.MOVEMENT: operators.MOVEMENTS,
    Kind.NORMALIZATION: operators.NORMALIZATIONS | operators.SOFTMAXES | {"RotaryEmbedding"},
    Kind.REDUCTION: operators.REDUCTIONS | operators.POOLS | operators.GLOBAL_POOLS | {"DFT"},
    Kind.ELEMENTWISE: operators.UNARY | operators.BROADCAST | _ELEMENTWISE,
}


def _other(op: OperatorCall, kind: Kind, shapes: Sequence[Shape | None]) -> Polynomial:
    """Operations that are no products: by numbers that come out, or for a reduction by those that go in."""
    if kind is Kind.MOVEMENT:
        return ZERO
    if op.op_type == "DFT":
        return _transform(op)
    if kind is Kind.REDUCTION and op.op_type not in operators.POOLS:
        return Polynomial.of(product(op.shape(0)))
    if not shapes or shapes[0] is None:
        raise Unknown(f"the shape of {op.outputs[0]!r} is not known" if op.outputs else "it makes nothing")
    count = Polynomial.of(product(shapes[0]))
    if kind is Kind.NORMALIZATION:
        return count * (_ROTATION_STEPS if op.op_type == "RotaryEmbedding" else _NORMALIZATION_STEPS)
    if kind is Kind.REDUCTION:
        return count * product(op.attribute("kernel_shape", ()))
    # These take any number of inputs: to add three up is two additions.
    return count * (max(1, len(op.inputs) - 1) if op.op_type in ("Sum", "Max", "Min", "Mean") else 1)


def _transform(op: OperatorCall) -> Polynomial:
    """A fast Fourier transform of each row: 5·n·log₂ n, as it is usually counted. That is no polynomial."""
    shape = op.shape(0)
    axis = op.attribute("axis", 1) if op.opset < 20 else op.numbers(2)[0] if op.has(2) else -2
    length = op.sizes(1)[0] if op.has(1) else shape[axis]
    if not isinstance(length, int):
        raise Unknown("what a Fourier transform takes is no polynomial of its length")
    rows = product(size for index, size in enumerate(shape[:-1]) if index != axis % len(shape))
    return Polynomial.of(rows) * math.ceil(_NORMALIZATION_STEPS * length * math.log2(max(length, 2)))


@dataclass(frozen=True)
class NodeWork:
    """The work of one node, where it runs: a node of a function has one of these for each call.

    key      that of the node in the file
    calls    keys of the calls of functions around it, from the outside in
    times    how often it runs
    reads    initializers that it reads
    weights  initializers that it reads as they are or in another form, such as transposed
    makes    bytes; None if they are not known
    """

    key: str
    calls: tuple[str, ...]
    work: Work
    times: Polynomial
    reads: tuple[str, ...]
    weights: tuple[str, ...]
    makes: Polynomial | None
