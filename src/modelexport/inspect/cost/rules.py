"""Operators that are an attention by themselves: two products for each pair of a query and a key.

How many operations a node takes: products by their own rules, everything else by a few simple ones.

One rule for each operator that multiplies and adds: what it makes, and what that takes.

The work of one node in one place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from modelexport.graph import operators
from modelexport.graph.operators import CONVOLUTIONS, MS, NCHWC, NHWC
from modelexport.inspect.cost import products
from modelexport.inspect.cost import products as einsum
from modelexport.inspect.cost.products import twice
from modelexport.inspect.cost.values import CANNOT, Operator, Shape, Unknown, as_number, product
from modelexport.record.polynomial import Polynomial, Size
from modelexport.record.results.cost import ZERO, Kind


@dataclass(frozen=True)
class Reach:
    """How much looks at how much.

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
    def made(self) -> Shape:
        """Heads beside each other."""
        return (self.batch, self.queries, as_number(Polynomial.of(self.heads) * self.value_width))


def onnx_attention(op: Operator) -> Polynomial:
    return _onnx(op).flops


def onnx_attention_made(op: Operator) -> Sequence[Shape]:
    reach = _onnx(op)
    groups = op.shape(1)[1] if len(op.shape(1)) == 4 else op.attribute("kv_num_heads")
    present = [(reach.batch, groups, reach.keys, width) for width in (reach.width, reach.value_width)]
    scores = (reach.batch, reach.heads, reach.queries, reach.keys)
    made = (reach.batch, reach.heads, reach.queries, reach.value_width)
    return [made if len(op.shape(0)) == 4 else reach.made, *present, scores]


def _onnx(op: Operator) -> Reach:
    query, key, value = (op.shape(place) for place in range(3))
    past = op.shape(4)[2] if op.has(4) else 0
    if len(query) == 4:
        batch, heads, queries, width = query
        return Reach(batch, heads, queries, _plus(key[2], past), width, value[3])
    heads, groups = op.attribute("q_num_heads"), op.attribute("kv_num_heads")
    batch, queries, hidden = query
    return Reach(batch, heads, queries, _plus(key[1], past), _per(hidden, heads), _per(value[2], groups))


def projected(op: Operator) -> Polynomial:
    """ONNX Runtime's Attention: the projections to queries, keys and values as well."""
    batch, length, hidden = _three(op.shape(0))
    return twice(batch, length, hidden, op.shape(1)[1]) + _projected(op).flops


def projected_made(op: Operator) -> Sequence[Shape]:
    reach = _projected(op)
    return [reach.made, (2, reach.batch, reach.heads, reach.keys, reach.width)]


def _projected(op: Operator) -> Reach:
    batch, length, _ = _three(op.shape(0))
    heads = op.attribute("num_heads")
    three = Polynomial.of(op.shape(1)[1])
    sizes = op.attribute("qkv_hidden_sizes") or [three // 3] * 3
    past_at = 8 if op.op_type == "QAttention" else 4
    past = op.shape(past_at)[3] if op.has(past_at) else 0
    return Reach(batch, heads, length, _plus(length, past), _per(sizes[0], heads), _per(sizes[2], heads))


def multi_head(op: Operator) -> Polynomial:
    return _multi_head(op).flops


def multi_head_made(op: Operator) -> Sequence[Shape]:
    reach = _multi_head(op)
    present = [(reach.batch, reach.heads, reach.keys, width) for width in (reach.width, reach.value_width)]
    return [reach.made, *present]


def _multi_head(op: Operator) -> Reach:
    """Queries, keys and values as (batch, length, hidden), as (batch, heads, length, width), or packed into one."""
    query, heads = op.shape(0), op.attribute("num_heads")
    past = op.shape(6)[2] if op.has(6) else 0
    if len(query) == 5:
        batch, length, _, _, width = query
        return Reach(batch, heads, length, _plus(length, past), width, width)
    batch, queries, hidden = query
    width = _per(hidden, heads)
    key = op.shape(1) if op.has(1) else query
    if len(key) == 5:
        return Reach(batch, heads, queries, _plus(key[1], past), width, width)
    value = op.shape(2) if op.has(2) else key
    keys = key[2] if len(key) == 4 else key[1]
    value_width = value[3] if len(value) == 4 else _per(value[2], heads)
    return Reach(batch, heads, queries, _plus(keys, past), width, value_width)


def grouped(op: Operator) -> Polynomial:
    return _grouped(op).flops


def grouped_made(op: Operator) -> Sequence[Shape]:
    reach = _grouped(op)
    present = (reach.batch, op.attribute("kv_num_heads"), reach.keys, reach.width)
    return [reach.made, present, present]


def _grouped(op: Operator) -> Reach:
    """Fewer heads for keys and values than for queries; all in one if no keys are given."""
    batch, length, hidden = _three(op.shape(0))
    heads, groups = op.attribute("num_heads"), op.attribute("kv_num_heads")
    width = _per(hidden, heads if op.has(1) else heads + 2 * groups)
    past = op.shape(3)[2] if op.has(3) else 0
    return Reach(batch, heads, length, _plus(length, past), width, width)


def _three(shape: Shape) -> tuple[Size, Size, Size]:
    if len(shape) != 3:
        raise Unknown(f"an attention reads {len(shape)} axes where it must be three")
    return shape[0], shape[1], shape[2]


def _plus(one: Size, other: Size) -> Size:
    return as_number(Polynomial.of(one) + other)


def _per(size: Size, heads: int | None) -> Size:
    if not heads:
        raise Unknown("how many heads there are is not said")
    return as_number(Polynomial.of(size) // heads)


@dataclass(frozen=True)
class Product:
    kind: Kind
    flops: Callable[[Operator], Polynomial]
    made: Callable[[Operator], Sequence[Shape]]


_MATMUL = Product(Kind.MATMUL, products.matmul, products.matmul_made)
_PACKED = Product(Kind.MATMUL, products.packed, products.packed_made)
_CONV = Product(Kind.CONVOLUTION, products.conv, products.conv_made)
_TRANSPOSED = Product(Kind.CONVOLUTION, products.transposed, products.transposed_made)
_RECURRENT = Product(Kind.RECURRENT, products.recurrent, products.recurrent_made)
_EXPERTS = Product(Kind.MATMUL, products.experts, lambda op: [op.shape(0)])
_PROJECTED = Product(Kind.ATTENTION, projected, projected_made)
_MULTI_HEAD = Product(Kind.ATTENTION, multi_head, multi_head_made)
_GROUPED = Product(Kind.ATTENTION, grouped, grouped_made)


def _rules() -> Iterator[tuple[tuple[str, str], Product]]:
    for name in ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul"):
        yield ("", name), _MATMUL
    for name in (
        *("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "FusedGemm", "GemmFastGelu", "GemmFloat8"),
        *(
            "MatMulInteger16",
            "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul",
            "QGemm",
            "QLinearMatMul",
            "MatMulInteger",
        ),
    ):
        yield (MS, name), _MATMUL
    for name in ("MatMulNBits", "MatMulBnb4"):
        yield (MS, name), _PACKED
    for domain in ("", MS, NCHWC, NHWC):
        yield from (((domain, name), _CONV) for name in CONVOLUTIONS if name != "ConvTranspose")
        yield (domain, "ConvTranspose"), _TRANSPOSED
    yield ("", "DeformConv"), Product(Kind.CONVOLUTION, products.deformed, products.deformed_made)
    yield ("", "Einsum"), Product(Kind.MATMUL, einsum.einsum, einsum.einsum_made)
    yield from ((("", name), _RECURRENT) for name in ("LSTM", "GRU", "RNN"))
    yield (MS, "DynamicQuantizeLSTM"), _RECURRENT
    yield from (((MS, name), _EXPERTS) for name in ("MoE", "QMoE"))
    yield ("", "Attention"), Product(Kind.ATTENTION, onnx_attention, onnx_attention_made)
    yield from (((MS, name), _PROJECTED) for name in ("Attention", "QAttention"))
    yield from (((MS, name), _MULTI_HEAD) for name in ("MultiHeadAttention", "DecoderMaskedMultiHeadAttention"))
    yield (MS, "GroupQueryAttention"), _GROUPED


PRODUCTS: Mapping[tuple[str, str], Product] = dict(_rules())


# Operations for each number: the largest, the difference, the exponential, the sum and the quotient of a softmax; the
# mean, the difference, the square, the deviation and the quotient of a normalization.
_SEVERAL = 5
_ROTATION = 3
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


def work_of(op: Operator, made: Sequence[Shape | None]) -> Work:
    """`made`: the shapes of the outputs."""
    rule = PRODUCTS.get((op.domain, op.op_type))
    if rule is not None:
        try:
            return Work(rule.kind, rule.flops(op), ZERO)
        except CANNOT as error:
            return Work(rule.kind, None, ZERO, _reason(op, error))
    kind = _kind(op)
    if kind is Kind.UNKNOWN:
        name = f"{op.domain}::{op.op_type}" if op.domain else op.op_type
        return Work(kind, None, None, f"there is no rule for {name}")
    try:
        return Work(kind, ZERO, _other(op, kind, made))
    except CANNOT as error:
        return Work(kind, ZERO, None, _reason(op, error))


def _reason(op: Operator, error: Exception) -> str:
    return str(error) if isinstance(error, Unknown) else f"{op.op_type} reads shapes that do not fit together"


def _kind(op: Operator) -> Kind:
    if op.domain not in operators.DOMAINS:
        return Kind.UNKNOWN
    return next((kind for kind, names in _KINDS.items() if op.op_type in names), Kind.UNKNOWN)


_KINDS = {
    Kind.MOVEMENT: operators.MOVEMENTS,
    Kind.NORMALIZATION: operators.NORMALIZATIONS | operators.SOFTMAXES | {"RotaryEmbedding"},
    Kind.REDUCTION: operators.REDUCTIONS | operators.POOLS | operators.GLOBAL_POOLS | {"DFT"},
    Kind.ELEMENTWISE: operators.UNARY | operators.BROADCAST | _ELEMENTWISE,
}


def _other(op: Operator, kind: Kind, made: Sequence[Shape | None]) -> Polynomial:
    if kind is Kind.MOVEMENT:
        return ZERO
    if kind is Kind.ELEMENTWISE:
        several = op.op_type in ("Sum", "Max", "Min", "Mean")
        return Polynomial.of(product(_first(op, made))) * (max(1, len(op.inputs) - 1) if several else 1)
    if kind is Kind.NORMALIZATION:
        return Polynomial.of(product(_first(op, made))) * (_ROTATION if op.op_type == "RotaryEmbedding" else _SEVERAL)
    if op.op_type == "DFT":
        return _transform(op)
    if op.op_type in operators.POOLS:
        return Polynomial.of(product(_first(op, made))) * product(op.attribute("kernel_shape", ()))
    return Polynomial.of(product(op.shape(0)))


def _transform(op: Operator) -> Polynomial:
    """A fast Fourier transform of each row: 5·n·log₂ n, as it is usually counted. That is no polynomial."""
    shape = op.shape(0)
    axis = op.attribute("axis", 1) if op.opset < 20 else op.numbers(2)[0] if op.has(2) else -2
    length = op.sizes(1)[0] if op.has(1) else shape[axis]
    if not isinstance(length, int):
        raise Unknown("what a Fourier transform takes is no polynomial of its length")
    rows = product(size for place, size in enumerate(shape[:-1]) if place != axis % len(shape))
    return Polynomial.of(rows) * math.ceil(_SEVERAL * length * math.log2(max(length, 2)))


def _first(op: Operator, made: Sequence[Shape | None]) -> Shape:
    if not made or made[0] is None:
        raise Unknown(f"the shape of {op.outputs[0]!r} is not known" if op.outputs else "it makes nothing")
    return made[0]


@dataclass(frozen=True)
class NodeWork:
    """A node of a function has one of these for each call.

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
