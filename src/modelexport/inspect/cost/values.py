"""Values: what is known of a value and of an operator before anything runs; and open axes, with arithmetic on them.

A size that the file leaves open is a polynomial of named axes. Exporters write some sizes as arithmetic (`seq + 1`,
`2*floor(h/2)`), which is read back into a polynomial, so that equal sizes are equal:

    input ids  [batch, seq]      axes batch, seq
    output     [batch, seq + 1]  Polynomial seq + 1, not an axis of its own

What cannot be said raises `Unknown` with the reason, which ends up beside the node in the answer of `cost`. Nothing is
ever guessed: a wrong number would look like a right one.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from modelexport.graph.protos import operator_name
from modelexport.graph.types import dims_of
from modelexport.record.polynomial import Polynomial, Size, largest, quotient, smallest

Shape = tuple[Size, ...]

_BINARY: Mapping[type[ast.operator], Callable[[Polynomial, Polynomial], Polynomial]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: quotient,
    ast.Mod: operator.mod,
}
# As exporters write them, in small letters: those of sympy, which torch.export prints
# (https://github.com/pytorch/pytorch/blob/main/torch/utils/_sympy/functions.py).
_CALLS: Mapping[str, Callable[..., Polynomial]] = {
    "min": smallest,
    "max": largest,
    "floordiv": quotient,
    "cleandiv": quotient,
    "ceildiv": lambda a, b: -quotient(-a, b),
    "mod": operator.mod,
    "pythonmod": operator.mod,
}
_ROUNDED = {"floor": 1, "floortoint": 1, "trunctoint": 1, "ceiling": -1, "ceil": -1, "ceiltoint": -1}


# Longer polynomials than this are not worth their while: a size that would be one gets a name instead.
_LONGEST, _MOST_BITS, _HIGHEST = 400, 256, 64
_LONGEST_TEXT = 1000


class Unknown(Exception):
    """Something cannot be said; the text says why."""


class NotSizes(Exception):
    """A text that is no arithmetic on sizes."""


def parse_size(text: str) -> Polynomial:
    """`sequence + 1` as a polynomial."""
    if len(text) > _LONGEST_TEXT:
        raise NotSizes(text[:_LONGEST_TEXT])
    try:
        return _size(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError, Unknown) as error:
        raise NotSizes(text) from error


def _size(term: ast.expr) -> Polynomial:
    """One term of a parsed text. Functions of sympy come in as calls."""
    if isinstance(term, ast.Name):
        return Polynomial.axis(term.id)
    if isinstance(term, ast.Constant):
        return _constant(term.value)
    if isinstance(term, ast.UnaryOp) and isinstance(term.op, ast.USub):
        return -_size(term.operand)
    if isinstance(term, ast.BinOp):
        return _operation(term)
    if isinstance(term, ast.Call) and isinstance(term.func, ast.Name) and not term.keywords:
        return _call(term.func.id.lower(), term.args)
    raise NotSizes(ast.dump(term))


def _constant(value: object) -> Polynomial:
    """A text in quotes is an axis whose name is no identifier, such as "batch.size"."""
    if isinstance(value, str) and value:
        return Polynomial.axis(value)
    if isinstance(value, int | float) and value == int(value):
        return Polynomial.of(int(value))
    raise NotSizes(repr(value))


def _operation(term: ast.BinOp) -> Polynomial:
    """Powers up to 7 of one axis: longer formulas are nobody's size."""
    left, right = _size(term.left), _size(term.right)
    power = right.value
    # A power of a sum would have to be multiplied out, and `(a + b)**7` is one of many terms.
    if isinstance(term.op, ast.Pow) and _is_single(left) and power is not None and 0 <= power < 8:
        return left**power
    if type(term.op) in _BINARY:
        return Polynomial.of(limit_length(_BINARY[type(term.op)](left, right)))
    raise NotSizes(ast.dump(term))


def _is_single(size: Polynomial) -> bool:
    """Whether it is an axis or a function, which no power makes long."""
    if len(size.terms) != 1:
        return False
    monomial, factor = size.terms[0]
    return factor == 1 and len(monomial) == 1 and monomial[0][1] == 1


def _call(name: str, arguments: list[ast.expr]) -> Polynomial:
    """`floor(a/b)` is a quotient; any other function of one argument that rounds leaves a whole number as it is."""
    if name in _ROUNDED and len(arguments) == 1:
        inner, sign = arguments[0], _ROUNDED[name]
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div):
            return sign * quotient(sign * _size(inner.left), _size(inner.right))
        return _size(inner)
    # A minimum may be of any number of sizes; the others are of two.
    if name in _CALLS and (len(arguments) == 2 or (arguments and name in ("min", "max"))):
        return _CALLS[name](*map(_size, arguments))
    raise NotSizes(name)


class Axes:
    """The open sizes of one file, by name, in the order in which they come up.

    given      axes of inputs, mapped to where they are
    dependent  sizes that depend on the content of what the model is fed, mapped to what they are
    """

    def __init__(self, inputs: Iterable[onnx.ValueInfoProto], at: Mapping[str, int]) -> None:
        """`inputs` are those that the model is fed; `at` are the sizes that axes are given."""
        values = list(inputs)
        self._at = at
        self.given: dict[str, str] = {}
        self.dependent: dict[str, str] = {}
        texts = {dim for value in values for dim in dims_of(value.type) or () if isinstance(dim, str) and dim}
        # `seq + 1` is arithmetic only if there is an axis `seq`; else it is just an odd name.
        plain = {text for text in texts if text.isidentifier()}
        self._names = plain | {text for text in texts if not _in_terms_of(text, plain)}
        self.inputs = {value.name: self._shape(value) for value in values}

    def _shape(self, value: onnx.ValueInfoProto) -> Shape | None:
        dims = dims_of(value.type)
        if dims is None:
            return None
        return tuple(self._dim(dim, value.name, index) for index, dim in enumerate(dims))

    def _dim(self, dim: int | str, name: str, index: int) -> Size:
        """An axis without a name is called after where it is: `input_ids[1]`."""
        if isinstance(dim, int):
            return dim
        label = dim or f"{name}[{index}]"
        # An input of `2*seq` beside one of `seq` adds no axis of its own.
        if dim and dim not in self._names:
            return as_number(parse_size(dim).at(self._at))
        self.given.setdefault(label, f"axis {index} of the input {name}")
        return self._axis(label)

    def _axis(self, name: str) -> Size:
        """A plain number from the start where the user gives one: numbers are far quicker than polynomials."""
        return self._at[name] if name in self._at else Polynomial.axis(name)

    def stated(self, value: onnx.ValueInfoProto) -> tuple[Size | None, ...] | None:
        """A shape that the file states: sizes in terms of the axes of inputs, None where it is in other terms."""
        dims = dims_of(value.type)
        return None if dims is None else tuple(map(self._stated, dims))

    def _stated(self, dim: int | str) -> Size | None:
        if isinstance(dim, int):
            return dim
        if dim in self._names:
            return self._axis(dim)
        return as_number(parse_size(dim).at(self._at)) if dim and _in_terms_of(dim, self._names) else None

    def fresh(self, label: str, source: str) -> Size:
        """A size that depends on the content of what the model is fed."""
        self.dependent.setdefault(label, source)
        return self._axis(label)


def _in_terms_of(text: str, names: Collection[str]) -> bool:
    """Whether a text is arithmetic on these names, and not merely one of them."""
    if text in names:
        return False
    try:
        return all(name in names for name in parse_size(text).axes)
    except NotSizes:
        return False


def product(sizes: Iterable[Size]) -> Size:
    """Unknown if it becomes too long on the way: a product of sums has as many terms as the product of theirs."""
    total: Size = 1
    for size in sizes:
        total = limit_length(total * size)
    return total


def limit_length(size: Size) -> Size:
    """The size, unless it is too long to go on with."""
    is_long = isinstance(size, Polynomial) and (size.extent > _LONGEST or size.degree > _HIGHEST)
    if is_long or (isinstance(size, int) and size.bit_length() > _MOST_BITS):
        raise Unknown("a size is too long a formula")
    return size


def as_number(size: Size) -> Size:
    """A plain number where it is one."""
    if isinstance(size, int):
        return int(size)
    value = size.value
    return size if value is None else value


# Exporters write this or more for "to the end", and its negative for "from the beginning".
_FAR = 2**31 - 1


def slice_length(size: Size, start: Size, end: Size, step: int) -> Size:
    """How many of `size` are left from `start` to `end`."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, end, step).indices(size)))
    if step < 0:
        if isinstance(start, int) and isinstance(end, int) and (start == -1 or start >= _FAR) and end <= -_FAR:
            return as_number(-(-Polynomial.of(size) // -step))
        raise Unknown("a slice runs backwards between places that depend on the axes")
    length = Polynomial.of(_slice_bound(end, size)) - _slice_bound(start, size)
    if length.value is not None:
        return max(0, -(-length.value // step))
    return as_number(-(-length // step))


def _slice_bound(bound: Size, size: Size) -> Size:
    """Where a slice begins or ends, counted from the beginning: -1 is `size - 1`, a very large number is `size`.

    A bound of open axes is negative if all of its terms are; else it may lie behind the end, which the size cuts off.
    """
    if isinstance(bound, int):
        if bound >= _FAR:
            return size
        if bound <= -_FAR:
            return 0
        if bound < 0:
            return Polynomial.of(size) + bound
        return bound if bound == 0 or not isinstance(size, int) else min(bound, size)
    if all(factor < 0 for _, factor in bound.terms):
        return Polynomial.of(size) + bound
    return smallest(bound, size)


UNDEFINED = onnx.TensorProto.UNDEFINED
# More numbers than this are no shape; tables of positions and masks are larger.
MOST_NUMBERS = 256


# What a rule raises that cannot say anything: shapes of a damaged file fit no rule, and numpy and Python say so in
# their own ways.
CANNOT = (Unknown, ValueError, LookupError, TypeError, ArithmeticError, AttributeError)


@dataclass(frozen=True, eq=False)
class Value:
    """An abstract value: what can be said of a tensor for every input of the model.

    dtype    as in TensorProto; 0 if it is not known
    shape    None if not even the number of axes is known
    content  the elements of a few whole numbers, each a number, a polynomial or a truth value
    fixed    it follows from weights alone
    weight   the name of the initializer that it is, or is a mere rearrangement of
    """

    dtype: int = UNDEFINED
    shape: Shape | None = None
    content: np.ndarray | None = None
    fixed: bool = False
    weight: str = ""


NOTHING = Value()


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """One node with what is known of its inputs: all that a rule may look at.

    domain  empty for ONNX itself
    inputs  None for those that are left out
    opset   of the domain, as the file imports it
    """

    op_type: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: tuple[Value | None, ...]
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int

    @property
    def operator(self) -> str:
        return operator_name(self.op_type, self.domain)

    def has(self, index: int) -> bool:
        """Optional inputs are left out at the end, or by an empty name."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise Unknown(f"{self.op_type} has no input {index}")
        return value

    def dtype(self, index: int) -> int:
        return self.value(index).dtype if self.has(index) else UNDEFINED

    def shape(self, index: int = 0) -> Shape:
        """Or Unknown, with the name of the value that is the reason: it is what the user is told of the node."""
        shape = self.value(index).shape
        if shape is None:
            raise Unknown(f"the shape of {self.names[index]!r} is not known")
        return shape

    def content(self, index: int) -> np.ndarray:
        content = self.value(index).content
        if content is None:
            raise Unknown(f"the numbers in {self.names[index]!r} are computed while the model runs")
        return content

    def sizes(self, index: int) -> list[Size]:
        """The numbers in an input that are sizes or counts: a wanted shape, repeats, the ends of a slice."""
        return [_whole(size) for size in self.content(index).reshape(-1).tolist()]

    def numbers(self, index: int) -> list[int]:
        """As `sizes`, where they must be plain numbers: axes, pads, steps."""
        sizes = self.sizes(index)
        if any(isinstance(size, Polynomial) for size in sizes):
            raise Unknown(f"the numbers in {self.names[index]!r} depend on the axes")
        return [int(size) for size in sizes]  # type: ignore[arg-type]

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def listed(self, name: str, index: int, default: Sequence[int] | None = None) -> list[int] | None:
        """Numbers that older operator sets have as an attribute and newer ones as an input."""
        if name in self.attributes:
            numbers = self.attributes[name]
            return [int(number) for number in numbers] if isinstance(numbers, list | tuple) else [int(numbers)]
        if self.has(index):
            return self.numbers(index)
        return None if default is None else list(default)


def _whole(number: Any) -> Size:
    if isinstance(number, Polynomial):
        return as_number(number)
    if number != int(number):
        raise Unknown(f"{number} is no size")
    return int(number)
