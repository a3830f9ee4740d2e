"""The shapes of what operators make, in terms of the shapes of what they read.

Rules are here for operators that compute sizes, and for those that are frequent. For others, ONNX's own inference is
asked, one node at a time (`inference.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from modelexport.graph.operators import BROADCAST, DOMAINS, GLOBAL_POOLS, MS, NCHWC, POOLS, REDUCTIONS, SAME_SHAPE
from modelexport.inspect.cost.products import broadcast, windows
from modelexport.inspect.cost.rules import PRODUCTS
from modelexport.inspect.cost.values import Operator, Shape, Unknown, as_number, product
from modelexport.record.polynomial import Polynomial, Size, largest, smallest

BOOL, INT64 = onnx.TensorProto.BOOL, onnx.TensorProto.INT64
_FAR = 2**31 - 1

Shapes = Sequence[Shape]
Rule = Callable[[Operator], Shapes]


def output_shapes(op: Operator) -> Shapes | None:
    """The shapes of the outputs, the first ones at least; None if there is no rule."""
    product_rule = PRODUCTS.get((op.domain, op.op_type))
    if product_rule is not None:
        return product_rule.made(op)
    rule = _RULES.get((op.domain, op.op_type))
    if rule is not None:
        return rule(op)
    if op.domain not in DOMAINS:
        return None
    if op.op_type in SAME_SHAPE:
        return [op.shape(0)] * (2 if op.op_type == "Dropout" else 1)
    if op.op_type in BROADCAST:
        return [broadcast(*(op.shape(place) for place in range(len(op.inputs)) if op.has(place)))]
    return None


def place_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Unknown(f"there is no axis {axis} among {rank}")
    return axis % rank


def _reshape(op: Operator) -> Shapes:
    wanted, given = op.sizes(1), op.shape(0)
    keep = not op.attribute("allowzero", 0)
    shape = [given[place] if keep and size == 0 else size for place, size in enumerate(wanted)]
    if -1 in shape:
        hole = shape.index(-1)
        rest = product(size for place, size in enumerate(shape) if place != hole)
        shape[hole] = as_number(Polynomial.of(product(given)) // rest) if rest != 0 else 0
    return [tuple(shape)]


def _flatten(op: Operator) -> Shapes:
    shape = op.shape(0)
    axis = op.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [(product(shape[:axis]), product(shape[axis:]))]


def _transpose(op: Operator) -> Shapes:
    shape = op.shape(0)
    order = op.attribute("perm") or range(len(shape) - 1, -1, -1)
    return [tuple(shape[place] for place in order)]


def _squeeze(op: Operator) -> Shapes:
    shape, axes = op.shape(0), op.listed("axes", 1)
    if axes is None:
        return [tuple(size for size in shape if size != 1)]
    gone = {place_of(axis, len(shape)) for axis in axes}
    return [tuple(size for place, size in enumerate(shape) if place not in gone)]


def _unsqueeze(op: Operator) -> Shapes:
    shape, axes = op.shape(0), op.listed("axes", 1) or []
    rank = len(shape) + len(axes)
    added, left = {place_of(axis, rank) for axis in axes}, iter(shape)
    return [tuple(1 if place in added else next(left) for place in range(rank))]


def _concat(op: Operator) -> Shapes:
    shapes = [op.shape(place) for place in range(len(op.inputs))]
    axis = place_of(op.attribute("axis", 0), len(shapes[0]))
    total = as_number(sum((Polynomial.of(shape[axis]) for shape in shapes), Polynomial()))
    return [(*shapes[0][:axis], total, *shapes[0][axis + 1 :])]


def _split(op: Operator) -> Shapes:
    shape = op.shape(0)
    axis = place_of(op.attribute("axis", 0), len(shape))
    count = len(op.outputs)
    if "split" in op.attributes or op.has(1):
        parts: Sequence[Size] = op.attribute("split") or op.sizes(1)
    else:
        part = as_number(-(-Polynomial.of(shape[axis]) // (op.attribute("num_outputs") or count)))
        parts = [*[part] * (count - 1), as_number(Polynomial.of(shape[axis]) - Polynomial.of(part) * (count - 1))]
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def _slice(op: Operator) -> Shapes:
    shape = list(op.shape(0))
    starts: Sequence[Size] = op.attribute("starts") or op.sizes(1)
    ends: Sequence[Size] = op.attribute("ends") or op.sizes(2)
    axes = op.listed("axes", 3, range(len(starts))) or []
    steps = op.numbers(4) if op.has(4) else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = place_of(axis, len(shape))
        shape[place] = sliced(shape[place], start, end, step)
    return [tuple(shape)]


def sliced(size: Size, start: Size, end: Size, step: int) -> Size:
    """How many of `size` are left from `start` to `end`."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, end, step).indices(size)))
    if step < 0:
        if isinstance(start, int) and isinstance(end, int) and (start == -1 or start >= _FAR) and end <= -_FAR:
            return as_number(-(-Polynomial.of(size) // -step))
        raise Unknown("a slice runs backwards between places that depend on the axes")
    length = Polynomial.of(_bound(end, size)) - _bound(start, size)
    if length.value is not None:
        return max(0, -(-length.value // step))
    return as_number(-(-length // step))


def _bound(place: Size, size: Size) -> Size:
    if isinstance(place, int):
        if place >= _FAR:
            return size
        if place <= -_FAR:
            return 0
        if place < 0:
            return Polynomial.of(size) + place
        return place if place == 0 or not isinstance(size, int) else min(place, size)
    if all(factor < 0 for _, factor in place.terms):
        return Polynomial.of(size) + place
    return smallest(place, size)


def _gather(op: Operator) -> Shapes:
    shape, places = op.shape(0), op.shape(1)
    axis = place_of(op.attribute("axis", 0), len(shape))
    return [(*shape[:axis], *places, *shape[axis + 1 :])]


def _gather_nd(op: Operator) -> Shapes:
    shape, places, batch = op.shape(0), op.shape(1), op.attribute("batch_dims", 0)
    last = places[-1]
    if not isinstance(last, int):
        raise Unknown("how many axes are indexed is not known")
    return [(*places[:-1], *shape[batch + last :])]


def _expand(op: Operator) -> Shapes:
    return [broadcast(op.shape(0), tuple(op.sizes(1)))]


def _tile(op: Operator) -> Shapes:
    pairs = zip(op.shape(0), op.sizes(1), strict=True)
    return [tuple(as_number(Polynomial.of(size) * times) for size, times in pairs)]


def _pad(op: Operator) -> Shapes:
    shape = list(op.shape(0))
    pads: Sequence[Size] = op.attribute("pads") or op.sizes(1)
    axes = op.numbers(3) if op.has(3) else list(range(len(shape)))
    for place, axis in enumerate(axes):
        before, after = pads[place], pads[place + len(axes)]
        at = place_of(axis, len(shape))
        shape[at] = as_number(Polynomial.of(shape[at]) + before + after)
    return [tuple(shape)]


def _reduce(op: Operator) -> Shapes:
    shape = op.shape(0)
    if op.op_type in ("ArgMax", "ArgMin"):
        axes: Iterable[int] = [op.attribute("axis", 0)]
    else:
        listed = op.listed("axes", 1)
        if not listed and op.attribute("noop_with_empty_axes", 0):
            return [shape]
        axes = listed or range(len(shape))
    gone = {place_of(axis, len(shape)) for axis in axes}
    if op.attribute("keepdims", 1):
        return [tuple(1 if place in gone else size for place, size in enumerate(shape))]
    return [tuple(size for place, size in enumerate(shape) if place not in gone)]


def _range(op: Operator) -> Shapes:
    given = [op.content(place).reshape(-1)[0] for place in range(3)]
    if not any(isinstance(number, Polynomial) for number in given):
        return [(max(0, math.ceil((given[1] - given[0]) / given[2])),)]
    start, end, step = (op.sizes(place)[0] for place in range(3))
    length = -(-(Polynomial.of(end) - start) // step)
    return [(as_number(largest(length, 0)) if length.value is not None else as_number(length),)]


def _top_k(op: Operator) -> Shapes:
    shape = list(op.shape(0))
    count = op.attribute("k") if "k" in op.attributes else op.sizes(1)[0]
    shape[place_of(op.attribute("axis", -1), len(shape))] = count
    return [tuple(shape)] * 2


def _one_hot(op: Operator) -> Shapes:
    shape, depth = op.shape(0), op.sizes(1)[0]
    rank = len(shape) + 1
    axis = place_of(op.attribute("axis", -1), rank)
    return [(*shape[:axis], depth, *shape[axis:])]


def _resize(op: Operator) -> Shapes:
    shape = list(op.shape(0))
    axes = op.attribute("axes") or list(range(len(shape)))
    upsample, newer = op.op_type == "Upsample", op.opset > 10
    sizes_at, scales_at = (3, 2) if newer and not upsample else (-1, 1)
    if sizes_at > 0 and op.has(sizes_at):
        for axis, size in zip(axes, op.sizes(sizes_at), strict=True):
            shape[axis] = size
        return [tuple(shape)]
    scales = op.attribute("scales") or op.content(scales_at).reshape(-1).tolist()
    for axis, scale in zip(axes, scales, strict=True):
        shape[axis] = _scaled(shape[axis], scale)
    return [tuple(shape)]


def _scaled(size: Size, scale: Any) -> Size:
    if isinstance(scale, Polynomial):
        return as_number(scale * size)
    if isinstance(size, int):
        return int(np.floor(size * scale))
    above, below = float(scale).as_integer_ratio()
    return as_number(size * above // below)


def _pool(op: Operator) -> Shapes:
    shape = op.shape(0)
    if op.attribute("channels_last", 0):
        batch, *spatial, channels = shape
        return [(batch, *windows(op, spatial, op.attribute("kernel_shape")), channels)]
    return [(*shape[:2], *windows(op, shape[2:], op.attribute("kernel_shape")))] * 2


def _global_pool(op: Operator) -> Shapes:
    shape = op.shape(0)
    if op.attribute("channels_last", 0):
        return [(shape[0], *[1] * (len(shape) - 2), shape[-1])]
    return [(*shape[:2], *[1] * (len(shape) - 2))]


def _rearranged(op: Operator) -> Shapes:
    batch, channels, height, width = op.shape(0)
    block = op.attribute("blocksize")
    if op.op_type == "DepthToSpace":
        shape = Polynomial.of(channels) // block**2, Polynomial.of(height) * block, Polynomial.of(width) * block
    else:
        shape = Polynomial.of(channels) * block**2, Polynomial.of(height) // block, Polynomial.of(width) // block
    return [(batch, *map(as_number, shape))]


def _embedded(op: Operator) -> Shapes:
    """EmbedLayerNormalization: ids, segments, and the tables."""
    hidden = op.shape(2)[-1]
    ids = op.shape(0)
    return [(*ids, hidden), (ids[0],), (*ids, hidden)]


def _skipped(op: Operator) -> Shapes:
    """Skip normalizations: the normalized sum, the mean, the deviation, the sum."""
    shape = op.shape(0)
    row = (*shape[:-1], 1)
    return [shape, row, row, shape]


def _halved(op: Operator) -> Shapes:
    """BiasSplitGelu: the left half of the last axis, times the Gelu of the right one."""
    *rows, width = op.shape(0)
    return [(*rows, as_number(Polynomial.of(width) // 2))]


def _normalized(op: Operator) -> Shapes:
    shape = op.shape(0)
    axis = place_of(op.attribute("axis", -1), len(shape))
    row = (*shape[:axis], *[1] * (len(shape) - axis))
    return [shape, row, row]


def _grid_sampled(op: Operator) -> Shapes:
    return [(*op.shape(0)[:2], *op.shape(1)[1:-1])]


def _blocked(op: Operator) -> Shapes:
    """Channels in blocks; how many are filled up with zeros, the weights of the next convolution know."""
    shape = op.shape(0)
    return [(shape[0], shape[-1], *shape[1:-1]) if op.attribute("channels_last", 0) else shape]


def _unblocked(op: Operator) -> Shapes:
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
    ("", "Reshape"): _reshape,
    ("", "Flatten"): _flatten,
    ("", "Transpose"): _transpose,
    ("", "Squeeze"): _squeeze,
    ("", "Unsqueeze"): _unsqueeze,
    ("", "Concat"): _concat,
    (MS, "QLinearConcat"): lambda op: _concat(_quantized_parts(op)),
    ("", "Split"): _split,
    ("", "Slice"): _slice,
    ("", "Gather"): _gather,
    (MS, "GatherBlockQuantized"): _gather,
    ("", "GatherElements"): lambda op: [op.shape(1)],
    ("", "GatherND"): _gather_nd,
    ("", "Expand"): _expand,
    ("", "Tile"): _tile,
    ("", "Pad"): _pad,
    ("", "Range"): _range,
    ("", "TopK"): _top_k,
    ("", "OneHot"): _one_hot,
    ("", "Resize"): _resize,
    ("", "Upsample"): _resize,
    ("", "Shape"): lambda op: [(len(op.shape(0)[slice(op.attribute("start", 0), op.attribute("end"))]),)],
    ("", "Size"): lambda _: [()],
    ("", "ConstantOfShape"): lambda op: [tuple(op.sizes(0))],
    ("", "Where"): lambda op: [broadcast(op.shape(0), op.shape(1), op.shape(2))],
    ("", "DepthToSpace"): _rearranged,
    ("", "SpaceToDepth"): _rearranged,
    (NCHWC, "ReorderInput"): _blocked,
    (NCHWC, "ReorderOutput"): _unblocked,
    ("", "GridSample"): _grid_sampled,
    ("", "DynamicQuantizeLinear"): lambda op: [op.shape(0), (), ()],
    (MS, "QLinearAdd"): lambda op: [broadcast(op.shape(0), op.shape(3))],
    (MS, "QLinearMul"): lambda op: [broadcast(op.shape(0), op.shape(3))],
    (MS, "EmbedLayerNormalization"): _embedded,
    (MS, "BiasSplitGelu"): _halved,
}  # fmt: skip


def _quantized_parts(op: Operator) -> Operator:
    """QLinearConcat reads a scale and a zero point, then values, scales and zero points."""
    return Operator(op.op_type, op.domain, op.attributes, op.inputs[2::3], op.names[2::3], op.outputs, op.opset)
