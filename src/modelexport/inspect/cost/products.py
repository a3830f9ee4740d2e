"""Product rules: the shape of what operators make that multiply and add, and how many FLOPs that takes.

    MatMul  (5 × 7) · (7 × 3)                     5 × 3,         2 · 5 · 3 · 7
    Conv    (1, 3, 8, 8), weight (4, 3, 3, 3)     (1, 4, 6, 6),  2 · (4 · 6 · 6) · (3 · 3 · 3)
    LSTM    (steps, batch, input)                 2 · steps · batch · (all of W + all of R)

Every operator has two functions, one for the shapes (`conv_shapes`) and one for the FLOPs (`conv`); `rules.py` lists
which operator has which. A multiplication and an addition count as two. Biases, scales and activations that an operator
has beside its products are not counted.

Einsum (https://onnx.ai/onnx/operators/onnx__Einsum.html) is counted as if its operands were multiplied one after the
other, which is how runtimes break it down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modelexport.graph.operators import CONVOLUTIONS, MATRIX_PRODUCTS
from modelexport.graph.protos import MS
from modelexport.inspect.cost.values import OperatorCall, Shape, Unknown, as_number, product
from modelexport.record.polynomial import Polynomial, Size, largest

Shapes = Sequence[Shape]


def broadcast(*shapes: Shape) -> Shape:
    """The shape that all of these are stretched to: https://github.com/onnx/onnx/blob/main/docs/Broadcasting.md."""
    rank = max(map(len, shapes), default=0)
    columns = zip(*((*[1] * (rank - len(shape)), *shape) for shape in shapes), strict=True)
    return tuple(_common([*column]) for column in columns)


def _common(sizes: Sequence[Size]) -> Size:
    """The size of one axis that several shapes are stretched to."""
    wide = [size for size in dict.fromkeys(sizes) if size != 1]
    if len(wide) < 2:
        return wide[0] if wide else 1
    plain = [size for size in wide if isinstance(size, int)]
    # Of a plain number and an open axis, the axis is 1 or just that number: else the model cannot run.
    return plain[0] if plain else as_number(largest(*wide))


def twice(*sizes: Size) -> Polynomial:
    """A multiplication and an addition for each."""
    return Polynomial.of(2) * product(sizes)


def matmul_shape(a: Shape, b: Shape) -> Shape:
    """As numpy multiplies: a row on the left and a column on the right lose their axis again."""
    if not a or not b:  # ONNX's MatMul takes no scalars
        raise Unknown("a product of a single number")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    rows = (left[-2],) if len(a) > 1 else ()
    columns = (right[-1],) if len(b) > 1 else ()
    return (*broadcast(left[:-2], right[:-2]), *rows, *columns)


def swapped(shape: Shape, turn: Any, turn_batch: Any = 0) -> Shape:
    """With the last two axes exchanged; `turn_batch`: with the first one moved before the last."""
    if turn_batch and len(shape) > 2:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if turn and len(shape) > 1 else shape


def _factors(op: OperatorCall) -> tuple[Shape, Shape]:
    """The two matrices of a product, as they are multiplied."""
    left, right = op.shape(0), op.shape(MATRIX_PRODUCTS[op.op_type][1])
    if op.op_type in ("Gemm", "QGemm", "GemmFloat8"):
        return swapped(left, op.attribute("transA", 0)), swapped(right, op.attribute("transB", 0))
    if op.domain == MS:
        a = swapped(left, op.attribute("transA", 0), op.attribute("transBatchA", 0))
        return a, swapped(right, op.attribute("transB", 0), op.attribute("transBatchB", 0))
    return left, right


def matmul_shapes(op: OperatorCall) -> Shapes:
    return [matmul_shape(*_factors(op))]


def matmul(op: OperatorCall) -> Polynomial:
    """2 · rows · columns · summed, for each matrix of the batch."""
    left, right = _factors(op)
    return twice(*matmul_shape(left, right), left[-1])


# Weights of a few bits, packed: their shape says nothing, and attributes say how large they are.
def packed_shapes(op: OperatorCall) -> Shapes:
    """A matrix of K × N in 4 bits is stored as (N, blocks, bytes)."""
    return [(*op.shape(0)[:-1], _attribute(op, "N"))]


def packed(op: OperatorCall) -> Polynomial:
    return twice(*op.shape(0)[:-1], _attribute(op, "K"), _attribute(op, "N"))


def _attribute(op: OperatorCall, name: str) -> int:
    """One that the operator cannot do without."""
    number = op.attribute(name)
    if not isinstance(number, int):
        raise Unknown(f"{op.op_type} has no attribute {name}")
    return number


def conv_shapes(op: OperatorCall) -> Shapes:
    """(batch, channels, …) by (outputs, inputs / groups, window…), channels last in the layouts that say so."""
    shape, weight = op.shape(0), op.shape(CONVOLUTIONS[op.op_type][1])
    if len(shape) != len(weight) or len(shape) < 3:
        raise Unknown(f"a convolution of {len(shape)} axes with a weight of {len(weight)}")
    # NHWC operators of ONNX Runtime have channels as the last axis; the weight is as ever.
    if op.op_type.startswith("Nhwc") or op.attribute("channels_last", 0):
        batch, *spatial, _ = shape
        return [(batch, *windows(op, spatial, weight[2:]), weight[0])]
    return [(shape[0], weight[0], *windows(op, shape[2:], weight[2:]))]


def conv(op: OperatorCall) -> Polynomial:
    """Each number that comes out is a sum over one window of the inputs of its group."""
    return twice(*conv_shapes(op)[0], *op.shape(CONVOLUTIONS[op.op_type][1])[1:])


def transposed_shapes(op: OperatorCall) -> Shapes:
    """`output_shape` gives the spatial sizes, with or without batch and channels before them; else they follow."""
    shape, weight = op.shape(0), op.shape(1)
    if len(shape) != len(weight) or len(shape) < 3:
        raise Unknown(f"a convolution of {len(shape)} axes with a weight of {len(weight)}")
    channels = as_number(Polynomial.of(weight[1]) * op.attribute("group", 1))
    stated = op.attribute("output_shape")
    spatial = stated[-(len(shape) - 2) :] if stated else _stretched(op, shape[2:], weight[2:])
    return [(shape[0], channels, *spatial)]


def transposed(op: OperatorCall) -> Polynomial:
    """Every number that goes in is multiplied by the whole window of all channels that come out."""
    shape = op.shape(0)
    return twice(shape[0], *shape[2:], *op.shape(1))


def _stretched(op: OperatorCall, sizes: Shape, kernel: Shape) -> list[Size]:
    """Spatial sizes after a ConvTranspose: (size - 1) · stride + output_padding + reach of the window - pads."""
    rank = len(sizes)
    strides, dilations = _list(op, "strides", rank), _list(op, "dilations", rank)
    extra = op.attribute("output_padding") or [0] * rank
    pads = op.attribute("pads") or [0] * (2 * rank)
    # SAME pads away whatever the window reaches beyond the stride.
    if op.attribute("auto_pad", "NOTSET").startswith("SAME"):
        return [as_number(Polynomial.of(size) * strides[axis]) for axis, size in enumerate(sizes)]
    lengths: list[Size] = []
    for axis, size in enumerate(sizes):
        reach = (Polynomial.of(kernel[axis]) - 1) * dilations[axis] + 1
        padded = pads[axis] + pads[axis + rank]
        lengths.append(as_number((Polynomial.of(size) - 1) * strides[axis] + extra[axis] + reach - padded))
    return _ensure_fitting(lengths)


def windows(op: OperatorCall, sizes: Sequence[Size], kernel: Sequence[Size]) -> list[Size]:
    """How many windows a convolution or a pool has along each axis: (size + pads - reach) / stride + 1.

    `SAME` pads so that there is one window for each stride; `VALID` does not pad.
    """
    rank = len(sizes)
    strides, dilations = _list(op, "strides", rank), _list(op, "dilations", rank)
    pads = op.attribute("pads") or [0] * (2 * rank)
    padding = op.attribute("auto_pad", "NOTSET")
    if padding.startswith("SAME"):
        return [as_number(-(-Polynomial.of(size) // strides[axis])) for axis, size in enumerate(sizes)]
    lengths: list[Size] = []
    for axis, size in enumerate(sizes):
        padded = pads[axis] + pads[axis + rank] if padding == "NOTSET" else 0
        room = Polynomial.of(size) + padded - (Polynomial.of(kernel[axis]) - 1) * dilations[axis] - 1
        lengths.append(as_number(_steps(room, strides[axis], pads[axis], size, up=bool(op.attribute("ceil_mode", 0)))))
    return _ensure_fitting(lengths)


def _ensure_fitting(sizes: list[Size]) -> list[Size]:
    """A file with an input of 2 × 2 and a window of 3 × 3 loads; a negative size would make its cost negative."""
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise Unknown("what a window slides over is shorter than the window: the model cannot run on this")
    return sizes


def _steps(room: Polynomial, stride: int, before: int, size: Size, *, up: bool) -> Size:
    """`room` is how far a window can be moved; `up` is ceil_mode: the last window may reach over the end."""
    if not up:
        return room // stride + 1
    steps = -(-room // stride) + 1
    # A window that would begin behind the end is left out, in ONNX as in PyTorch
    # (https://onnx.ai/onnx/operators/onnx__MaxPool.html).
    if steps.value is not None and isinstance(size, int) and (steps.value - 1) * stride >= size + before:
        return steps - 1
    return steps


def _list(op: OperatorCall, name: str, rank: int) -> list[int]:
    """Strides and dilations are 1 where the attribute is left out."""
    return list(op.attribute(name) or [1] * rank)


def deformed_shapes(op: OperatorCall) -> Shapes:
    """The offsets have the spatial axes of the result."""
    return [(op.shape(0)[0], op.shape(1)[0], *op.shape(2)[2:])]


def deformed(op: OperatorCall) -> Polynomial:
    """As a convolution; where it looks is computed by others (https://onnx.ai/onnx/operators/onnx__DeformConv.html)."""
    return twice(*deformed_shapes(op)[0], *op.shape(1)[1:])


def recurrent_shapes(op: OperatorCall) -> Shapes:
    """All states, the last one, and the last one of the cells."""
    first, second, _ = op.shape(0)
    hidden = op.attribute("hidden_size") or op.shape(2)[-1]
    directions = op.shape(1)[0]
    # Since opset 14 `layout` 1 puts the batch before the steps, in all outputs too.
    if op.attribute("layout", 0):
        return [(first, second, directions, hidden), *[(first, directions, hidden)] * 2]
    return [(first, directions, second, hidden), *[(directions, second, hidden)] * 2]


def recurrent(op: OperatorCall) -> Polynomial:
    """Every step multiplies the input and the state by all gates of all directions."""
    steps, batch, _ = op.shape(0)
    return twice(steps, batch) * (Polynomial.of(product(op.shape(1))) + product(op.shape(2)))


def experts(op: OperatorCall) -> Polynomial:
    """A mixture of experts: each token goes through `k` of them."""
    # QMoE has a scale behind each weight. The third one is there if the experts are gated (SwiGLU).
    first, second, third = (2, 4, 6) if op.op_type == "MoE" else (2, 5, 8)
    packed = 1 if op.op_type == "MoE" else 8 // op.attribute("expert_weight_bits", 4)
    inputs = (first, second, third) if op.has(third) else (first, second)
    weights = sum((Polynomial.of(product(op.shape(index)[1:])) for index in inputs), Polynomial())
    return twice(*op.shape(0)[:-1], op.attribute("k", 1)) * weights * packed


# What `...` stands for has a name for each axis, which no letter is.
_DOTS = "..."


def einsum_shapes(op: OperatorCall) -> Sequence[Shape]:
    _, result, sizes = _read_equation(op)
    return [tuple(sizes[label] for label in result)]


def einsum(op: OperatorCall) -> Polynomial:
    """Products that sum over something; what is multiplied number by number is none.

    What one operand alone has and nobody needs is summed up before it is multiplied.
    """
    terms, result, sizes = _read_equation(op)
    left, total = terms[0], Polynomial()
    for index, right in enumerate(terms[1:], start=1):
        needed = {*result, *(label for term in terms[index + 1 :] for label in term)}
        shared = {*left} & {*right}
        labels = [label for label in dict.fromkeys([*left, *right]) if label in needed or label in shared]
        if shared - needed:
            total += Polynomial.of(2) * product(sizes[label] for label in labels)
        left = [label for label in labels if label in needed]
    return total


def _read_equation(op: OperatorCall) -> tuple[list[list[str]], list[str], dict[str, Size]]:
    """The labels of each operand, those of the result, and their sizes."""
    text = op.attribute("equation", "").replace(" ", "")
    before, arrow, after = text.partition("->")
    parts = before.split(",")
    if len(parts) != len(op.inputs):
        raise Unknown(f"the equation {text!r} is not about {len(op.inputs)} inputs")
    shapes = [op.shape(index) for index in range(len(parts))]
    widths = [len(shape) - len(part.replace(_DOTS, "")) for part, shape in zip(parts, shapes, strict=True)]
    dots = [f"{_DOTS}{axis}" for axis in range(max(widths))]
    # `...` is broadcast: of operands with fewer axes it stands for the last ones.
    terms = [_labels(part, dots[len(dots) - width :]) for part, width in zip(parts, widths, strict=True)]
    sizes: dict[str, Size] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if len(term) != len(shape):
            raise Unknown(f"the equation {text!r} does not fit the shapes")
        for label, size in zip(term, shape, strict=True):
            sizes[label] = broadcast((sizes.get(label, 1),), (size,))[0]
    return terms, _labels(after, dots) if arrow else _implied(terms, dots), sizes


def _labels(part: str, dots: Sequence[str]) -> list[str]:
    """`b...ij` with two axes for the dots is [b, ...0, ...1, i, j]."""
    before, has_dots, after = part.partition(_DOTS)
    return [*before, *(dots if has_dots else ()), *after]


def _implied(terms: Sequence[Sequence[str]], dots: Sequence[str]) -> list[str]:
    """Without an arrow: what occurs once, in alphabetical order."""
    flat = [label for term in terms for label in term if not label.startswith(_DOTS)]
    return [*dots, *sorted(label for label in set(flat) if flat.count(label) == 1)]
