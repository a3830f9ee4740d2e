"""How many operations a node takes: products by their own rules, everything else by a few simple ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from modelexport.costing import operators
from modelexport.costing.axes import Shape, product
from modelexport.costing.catalogue import PRODUCTS
from modelexport.costing.values import CANNOT, Operator, Unknown
from modelexport.record.cost import ZERO, Kind
from modelexport.record.polynomial import Polynomial

# Operations for each number: the largest, the difference, the exponential, the sum and the quotient of a softmax; the
# mean, the difference, the square, the deviation and the quotient of a normalization.
_SEVERAL = 5
_ROTATION = 3
_ELEMENTWISE = operators.named(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear CumSum GridSample AffineGrid Einsum HannWindow "
    "HammingWindow BlackmanWindow QLinearConcat"
)


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
    Kind.NORMALIZATION: operators.NORMALIZATIONS | operators.SOFTMAXES | {"QLinearSoftmax", "RotaryEmbedding"},
    Kind.REDUCTION: operators.REDUCTIONS | operators.POOLS | operators.GLOBAL_POOLS | {"DFT"},
    Kind.ELEMENTWISE: (
        operators.UNARY | operators.BROADCAST | operators.COMPARISON | operators.QUANTIZED_UNARY | _ELEMENTWISE
    ),
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
