"""Operators that are an attention by themselves: two products for each pair of a query and a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelexport.costing.axes import Shape, settled
from modelexport.costing.products import twice
from modelexport.costing.values import Operator, Unknown
from modelexport.record.polynomial import Polynomial, Size


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
        return (self.batch, self.queries, settled(Polynomial.of(self.heads) * self.value_width))


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
    return settled(Polynomial.of(one) + other)


def _per(size: Size, heads: int | None) -> Size:
    if not heads:
        raise Unknown("how many heads there are is not said")
    return settled(Polynomial.of(size) // heads)
