"""Shape rules: the shapes of what operators make, in terms of the shapes of what they read.

    Concat   (batch, 3), (batch, 5), axis 1        ->  (batch, 8)
    Reshape  (batch, 12, 64), to [0, -1]           ->  (batch, 768)
    Slice    (batch, seq), from 1 to the end       ->  (batch, seq - 1)

To add an operator: a function from `OperatorCall` to its output shapes, and a line in `_RULES`. Rules are here for
operators that compute sizes, and for those that are frequent; products have theirs in `products.py`, and operators that
keep or broadcast shapes are known by their traits (`graph/operators.py`). For all others ONNX's own inference is asked,
one node at a time (`value_table.infer_outputs`). It does not know what open axes add up to, and none of ONNX Runtime's
operators.

A rule that cannot say anything raises: `Unknown`, or what Python raises for shapes that do not fit together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from modelexport.graph.operators import BROADCAST, GLOBAL_POOLS, POOLS, REDUCTIONS, SAME_SHAPE
from modelexport.graph.protos import MS, NCHWC
from modelexport.inspect.cost.products import broadcast, windows
from modelexport.inspect.cost.rules import PRODUCT_RULES
from modelexport.inspect.cost.values import OperatorCall, Shape, Unknown, as_number, product, slice_length
from modelexport.record.polynomial import Polynomial, Size, largest

Shapes = Sequence[Shape]
Rule = Callable[[OperatorCall], Shapes]


def output_shapes(op: OperatorCall) -> Shapes | None:
    """The shapes of the outputs, the first ones at least; None if there is no rule."""
    product_rule = PRODUCT_RULES.get((op.domain, op.op_type))
    if product_rule is not None:
        return product_rule.output_shapes(op)
    rule = _RULES.get((op.domain, op.op_type))
    if rule is not None:
        return rule(op)
    if op.operator in SAME_SHAPE:
        return [op.shape(0)] * (2 if op.op_type == "Dropout" else 1)
    if op.operator in BROADCAST:
        return [broadcast(*(op.shape(index) for index in range(len(op.inputs)) if op.has(index)))]
    return None


def axis_index(axis: int, rank: int) -> int:
    """A negative axis counts from the end."""
    if not -rank <= axis < rank:
        raise Unknown(f"there is no axis {axis} among {rank}")
    return axis % rank


def _reshape(op: OperatorCall) -> Shapes:
    """https://onnx.ai/onnx/operators/onnx__Reshape.html: 0 copies an axis (unless `allowzero`), -1 is what is left."""
    before, keep = op.shape(0), not op.attribute("allowzero", 0)
    shape = [before[index] if keep and size == 0 else size for index, size in enumerate(op.sizes(1))]
    if -1 in shape:
        hole = shape.index(-1)
        rest = product(size for index, size in enumerate(shape) if index != hole)
        shape[hole] = as_number(Polynomial.of(product(before)) // rest) if rest != 0 else 0
    return [tuple(shape)]


def _flatten(op: OperatorCall) -> Shapes:
    """(2, 3, 4) with axis 1 becomes (2, 12), with axis 0 (1, 24)."""
    shape = op.shape(0)
    # Not `axis_index`: the axis may be the rank itself, which leaves a 1 on the right.
    axis = op.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [(product(shape[:axis]), product(shape[axis:]))]


def _transpose(op: OperatorCall) -> Shapes:
    """Without `perm`, all axes the other way round."""
    shape = op.shape(0)
    order = op.attribute("perm") or range(len(shape) - 1, -1, -1)
    return [tuple(shape[index] for index in order)]


def _squeeze(op: OperatorCall) -> Shapes:
    """Without axes, all axes of size 1 go. An open axis is not taken for 1, though it may turn out to be."""
    shape, axes = op.shape(0), op.listed("axes", 1)
    if axes is None:
        return [tuple(size for size in shape if size != 1)]
    gone = {axis_index(axis, len(shape)) for axis in axes}
    return [tuple(size for index, size in enumerate(shape) if index not in gone)]


def _unsqueeze(op: OperatorCall) -> Shapes:
    """Axes are those of the result: (3,) with axes 0 and 2 becomes (1, 3, 1)."""
    shape, axes = op.shape(0), op.listed("axes", 1) or []
    rank = len(shape) + len(axes)
    added, left = {axis_index(axis, rank) for axis in axes}, iter(shape)
    if len(added) < len(axes):
        raise Unknown("an axis is added twice")
    return [tuple(1 if index in added else next(left) for index in range(rank))]


def _concat(op: OperatorCall) -> Shapes:
    """(batch, 3) and (batch, 5) along axis 1 become (batch, 8). Other axes are equal, or the model cannot run."""
    shapes = [op.shape(index) for index in range(len(op.inputs))]
    axis = axis_index(op.attribute("axis", 0), len(shapes[0]))
    total = as_number(sum((Polynomial.of(shape[axis]) for shape in shapes), Polynomial()))
    return [(*shapes[0][:axis], total, *shapes[0][axis + 1 :])]


def _split(op: OperatorCall) -> Shapes:
    """Into given parts, or equal ones of which the last is shorter: 10 in 3 parts is 4, 4, 2.

    Since opset 18 an attribute says how many (https://onnx.ai/onnx/operators/onnx__Split.html); before, the outputs do.
    """
    shape = op.shape(0)
    axis = axis_index(op.attribute("axis", 0), len(shape))
    count = len(op.outputs)
    if "split" in op.attributes or op.has(1):
        parts: Sequence[Size] = op.attribute("split") or op.sizes(1)
    else:
        part = as_number(-(-Polynomial.of(shape[axis]) // (op.attribute("num_outputs") or count)))
        parts = [*[part] * (count - 1), as_number(Polynomial.of(shape[axis]) - Polynomial.of(part) * (count - 1))]
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def _slice(op: OperatorCall) -> Shapes:
    """Sizes may be open: (seq,) from 1 to the end becomes (seq - 1,). Opset 9 has attributes, later ones inputs."""
    shape = list(op.shape(0))
    starts: Sequence[Size] = op.attribute("starts") or op.sizes(1)
    ends: Sequence[Size] = op.attribute("ends") or op.sizes(2)
    axes = op.listed("axes", 3, range(len(starts))) or []
    steps = op.numbers(4) if op.has(4) else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index = axis_index(axis, len(shape))
        shape[index] = slice_length(shape[index], start, end, step)
    return [tuple(shape)]


def _gather(op: OperatorCall) -> Shapes:
    """The indexed axis becomes the axes of the indices: (50, 64) by ids (batch, seq) is (batch, seq, 64)."""
    shape = op.shape(0)
    axis = axis_index(op.attribute("axis", 0), len(shape))
    return [(*shape[:axis], *op.shape(1), *shape[axis + 1 :])]


def _gather_nd(op: OperatorCall) -> Shapes:
    """The last axis of the indices says how many axes are indexed; `batch_dims` of the first ones are in common."""
    *rows, indexed = op.shape(1)
    if not isinstance(indexed, int):
        raise Unknown("how many axes are indexed is not known")
    return [(*rows, *op.shape(0)[op.attribute("batch_dims", 0) + indexed :])]


def _tile(op: OperatorCall) -> Shapes:
    """(2, 3) twice and once becomes (4, 3)."""
    pairs = zip(op.shape(0), op.sizes(1), strict=True)
    return [tuple(as_number(Polynomial.of(size) * times) for size, times in pairs)]


def _pad(op: OperatorCall) -> Shapes:
    """All pads before, then all behind; since opset 18 for some axes only. Negative pads cut off."""
    shape = list(op.shape(0))
    pads: Sequence[Size] = op.attribute("pads") or op.sizes(1)
    axes = op.numbers(3) if op.has(3) else list(range(len(shape)))
    for index, axis in enumerate(axes):
        before, after = pads[index], pads[index + len(axes)]
        at = axis_index(axis, len(shape))
        shape[at] = as_number(Polynomial.of(shape[at]) + before + after)
    return [tuple(shape)]


def _reduce(op: OperatorCall) -> Shapes:
    """No axes mean all of them, unless `noop_with_empty_axes`. ArgMax and ArgMin have one, as an attribute.

    Older operator sets have the axes as an attribute, newer ones (ReduceSum since 13, the others since 18) as an input.
    """
    shape = op.shape(0)
    if op.op_type in ("ArgMax", "ArgMin"):
        axes: Iterable[int] = [op.attribute("axis", 0)]
    else:
        listed = op.listed("axes", 1)
        if not listed and op.attribute("noop_with_empty_axes", 0):
            return [shape]
        axes = listed or range(len(shape))
    gone = {axis_index(axis, len(shape)) for axis in axes}
    if op.attribute("keepdims", 1):
        return [tuple(1 if index in gone else size for index, size in enumerate(shape))]
    return [tuple(size for index, size in enumerate(shape) if index not in gone)]


def _range(op: OperatorCall) -> Shapes:
    """ceil((end - start) / step) numbers; of open axes only whole numbers are known."""
    start, end, step = (op.content(index).reshape(-1)[0] for index in range(3))
    # Plain numbers may be floats, of which only the quotient is rounded.
    if not any(isinstance(number, Polynomial) for number in (start, end, step)):
        return [(max(0, math.ceil((end - start) / step)),)]
    start, end, step = (op.sizes(index)[0] for index in range(3))
    length = -(-(Polynomial.of(end) - start) // step)
    return [(as_number(largest(length, 0)) if length.value is not None else as_number(length),)]


def _top_k(op: OperatorCall) -> Shapes:
    """Values and their indices. Opset 1 has `k` as an attribute."""
    shape = list(op.shape(0))
    count = op.attribute("k") if "k" in op.attributes else op.sizes(1)[0]
    shape[axis_index(op.attribute("axis", -1), len(shape))] = count
    return [tuple(shape)] * 2


def _one_hot(op: OperatorCall) -> Shapes:
    """One more axis of `depth`: (batch,) becomes (batch, depth), or (depth, batch) with axis 0."""
    shape = op.shape(0)
    axis = axis_index(op.attribute("axis", -1), len(shape) + 1)
    return [(*shape[:axis], op.sizes(1)[0], *shape[axis:])]


def _resize(op: OperatorCall) -> Shapes:
    """By sizes, else by scales, rounded down. Opset 10 has no sizes, and the scales as second input."""
    shape = list(op.shape(0))
    axes = op.attribute("axes") or list(range(len(shape)))
    older = op.op_type == "Upsample" or op.opset <= 10
    if not older and op.has(3):
        for axis, size in zip(axes, op.sizes(3), strict=True):
            shape[axis] = size
        return [tuple(shape)]
    scales = op.attribute("scales") or op.content(1 if older else 2).reshape(-1).tolist()
    for axis, scale in zip(axes, scales, strict=True):
        shape[axis] = _scaled(shape[axis], scale)
    return [tuple(shape)]


def _scaled(size: Size, scale: Any) -> Size:
    """A scale such as 0.5 of an open axis is exact: a float is a fraction of two whole numbers."""
    if isinstance(scale, Polynomial):
        return as_number(scale * size)
    if isinstance(size, int):
        return int(np.floor(size * scale))
    above, below = float(scale).as_integer_ratio()
    return as_number(size * above // below)


def _pool(op: OperatorCall) -> Shapes:
    """MaxPool can return indices as well, of the same shape."""
    shape = op.shape(0)
    if op.attribute("channels_last", 0):
        batch, *spatial, channels = shape
        return [(batch, *windows(op, spatial, op.attribute("kernel_shape")), channels)]
    return [(*shape[:2], *windows(op, shape[2:], op.attribute("kernel_shape")))] * 2


def _global_pool(op: OperatorCall) -> Shapes:
    """(batch, channels, h, w) becomes (batch, channels, 1, 1)."""
    shape = op.shape(0)
    if op.attribute("channels_last", 0):
        return [(shape[0], *[1] * (len(shape) - 2), shape[-1])]
    return [(*shape[:2], *[1] * (len(shape) - 2))]


def _rearranged(op: OperatorCall) -> Shapes:
    """DepthToSpace makes pixels of channels: (1, 12, 4, 4) in blocks of 2 is (1, 3, 8, 8). SpaceToDepth, back."""
    batch, channels, height, width = op.shape(0)
    block = op.attribute("blocksize")
    if op.op_type == "DepthToSpace":
        shape = Polynomial.of(channels) // block**2, Polynomial.of(height) * block, Polynomial.of(width) * block
    else:
        shape = Polynomial.of(channels) * block**2, Polynomial.of(height) // block, Polynomial.of(width) // block
    return [(batch, *map(as_number, shape))]


def _embedded(op: OperatorCall) -> Shapes:
    """EmbedLayerNormalization: ids, segments, and the tables."""
    ids = op.shape(0)
    words = (*ids, op.shape(2)[-1])
    return [words, (ids[0],), words]


def _skipped(op: OperatorCall) -> Shapes:
    """Skip normalizations: the normalized sum, the mean, the deviation, the sum."""
    shape = op.shape(0)
    row = (*shape[:-1], 1)
    return [shape, row, row, shape]


def _halved(op: OperatorCall) -> Shapes:
    """BiasSplitGelu: the left half of the last axis, times the Gelu of the right one."""
    *rows, width = op.shape(0)
    return [(*rows, as_number(Polynomial.of(width) // 2))]


def _normalized(op: OperatorCall) -> Shapes:
    """The result, and the mean and the inverse deviation of each row, which training reads."""
    shape = op.shape(0)
    axis = axis_index(op.attribute("axis", -1), len(shape))
    row = (*shape[:axis], *[1] * (len(shape) - axis))
    return [shape, row, row]


def _blocked(op: OperatorCall) -> Shapes:
    """Channels in blocks; how many are filled up with zeros, the weights of the next convolution know."""
    shape = op.shape(0)
    return [(shape[0], shape[-1], *shape[1:-1]) if op.attribute("channels_last", 0) else shape]


def _unblocked(op: OperatorCall) -> Shapes:
    """Without the channels that only fill up a block: the attribute says how many there are."""
    batch, _, *spatial = op.shape(0)
    channels = op.attribute("channels")
    return [(batch, *spatial, channels) if op.attribute("channels_last", 0) else (batch, channels, *spatial)]


_RULES: Mapping[tuple[str, str], Rule] = {
    **{("", name): _reduce for name in REDUCTIONS},
    **{(domain, name): _pool for name in POOLS for domain in ("", MS, NCHWC)},
    **{(domain, name): _global_pool for name in GLOBAL_POOLS for domain in ("", MS, NCHWC)},
    **{(domain, f"Skip{name}"): _skipped for name in ("LayerNormalization", "SimplifiedLayerNormalization")
       for domain in ("", MS)},
    **{(domain, name): _normalized for name in ("LayerNormalization", "SimplifiedLayerNormalization")
       for domain in ("", MS)},
    # The same numbers in other shapes.
    ("", "Reshape"): _reshape,
    ("", "Flatten"): _flatten,
    ("", "Transpose"): _transpose,
    ("", "Squeeze"): _squeeze,
    ("", "Unsqueeze"): _unsqueeze,
    # Parts put together, or taken out.
    ("", "Concat"): _concat,
    # A scale and a zero point for the result, then a value, a scale and a zero point for each part.
    (MS, "QLinearConcat"): lambda op: _concat(replace(op, inputs=op.inputs[2::3], names=op.names[2::3])),
    ("", "Split"): _split,
    ("", "Slice"): _slice,
    ("", "Gather"): _gather,
    (MS, "GatherBlockQuantized"): _gather,
    ("", "GatherElements"): lambda op: [op.shape(1)],
    ("", "GatherND"): _gather_nd,
    # More of the same.
    # A size of 1 in the wanted shape keeps what is there: it is broadcasting, not assignment.
    ("", "Expand"): lambda op: [broadcast(op.shape(0), tuple(op.sizes(1)))],
    ("", "Tile"): _tile,
    ("", "Pad"): _pad,
    # Sizes that are computed.
    ("", "Range"): _range,
    ("", "TopK"): _top_k,
    ("", "OneHot"): _one_hot,
    ("", "Resize"): _resize,
    ("", "Upsample"): _resize,
    ("", "Shape"): lambda op: [(len(op.shape(0)[slice(op.attribute("start", 0), op.attribute("end"))]),)],
    ("", "Size"): lambda _: [()],
    ("", "ConstantOfShape"): lambda op: [tuple(op.sizes(0))],
    ("", "Where"): lambda op: [broadcast(op.shape(0), op.shape(1), op.shape(2))],
    # Pictures, and ONNX Runtime's layouts of them.
    ("", "DepthToSpace"): _rearranged,
    ("", "SpaceToDepth"): _rearranged,
    (NCHWC, "ReorderInput"): _blocked,
    (NCHWC, "ReorderOutput"): _unblocked,
    # Channels of the picture, pixels of the grid: (1, 3, h, w) by (1, 5, 7, 2) becomes (1, 3, 5, 7).
    ("", "GridSample"): lambda op: [(*op.shape(0)[:2], *op.shape(1)[1:-1])],
    # In integers: operands lie between scales and zero points.
    ("", "DynamicQuantizeLinear"): lambda op: [op.shape(0), (), ()],
    (MS, "QLinearAdd"): lambda op: [broadcast(op.shape(0), op.shape(3))],
    (MS, "QLinearMul"): lambda op: [broadcast(op.shape(0), op.shape(3))],
    (MS, "EmbedLayerNormalization"): _embedded,
    (MS, "BiasSplitGelu"): _halved,
}  # fmt: skip
