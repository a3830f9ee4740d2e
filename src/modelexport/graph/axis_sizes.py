"""How long the axes of a graph's inputs are that the file leaves open."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from functools import cache

import onnx

from modelexport.errors import InputError

Shape = tuple[int, ...]
Dims = tuple[int | str, ...]

# A batch of one always fits; a signal or a picture must be long enough for what makes it shorter.
_BATCH, _SEQUENCE, _SIGNAL, _PICTURE = 1, 16, 4096, 224
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def dims_of(value: onnx.ValueInfoProto) -> Dims | None:
    """Sizes, and the names of those that are open; None if not even their number is known."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.dim_value > 0 else dim.dim_param for dim in kind.shape.dim)


def dynamic_axes_of(model: onnx.ModelProto, axes: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
    """Those of the axes that the model's inputs really leave open."""
    dims = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    found = {
        name: {axis: label for axis, label in wanted.items() if dims[name][axis].HasField("dim_param")}
        for name, wanted in axes.items()
        if name in dims
    }
    return {name: kept for name, kept in found.items() if kept}


def fits(dims: Dims, shape: Sequence[int]) -> bool:
    """Whether a shape has the sizes that are fixed."""
    pairs = zip(dims, shape, strict=False)
    return len(dims) == len(shape) and all(isinstance(dim, str) or dim == size for dim, size in pairs)


class AxisSizes:
    """Shapes for inputs. Axes of one name have one size, which those inputs decide whose shape is given."""

    def __init__(self, inputs: Mapping[str, onnx.ValueInfoProto], given: Mapping[str, Shape]) -> None:
        """`given` shapes fit their inputs."""
        self._inputs = inputs
        self._given: dict[str, int] = {}
        for name, shape in given.items():
            for dim, size in zip(dims_of(inputs[name]) or (), shape, strict=False):
                self._bind(dim, size, name)
        self._usual = self._usual_sizes()

    def shape(self, name: str) -> Shape | None:
        """None if the file does not even say how many axes there are."""
        value = self._inputs[name]
        dims = dims_of(value)
        if dims is None:
            return None
        return tuple(self._size(dim, _usual(value, axis)) for axis, dim in enumerate(dims))

    def _bind(self, dim: int | str, size: int, owner: str) -> None:
        if isinstance(dim, str) and dim and self._given.setdefault(dim, size) != size:
            raise InputError(
                f"the axis {dim!r} has the size {size} in {owner!r} and {self._given[dim]} in another input",
                "Axes of one name have one size.",
            )

    def _usual_sizes(self) -> dict[str, int]:
        """An axis that an integer input has too is a sequence, and no signal."""
        found: dict[str, int] = {}
        for value in self._inputs.values():
            for axis, dim in enumerate(dims_of(value) or ()):
                if isinstance(dim, str) and dim:
                    found[dim] = min(found.get(dim, _SIGNAL), _usual(value, axis))
        return found

    def _size(self, dim: int | str, usual: int) -> int:
        if isinstance(dim, int):
            return dim
        if not dim:
            return usual
        if dim in self._given:
            return self._given[dim]
        others = {name: size for name, size in {**self._usual, **self._given}.items() if name != dim}
        return computed_size(dim, others) or self._usual[dim]


def _usual(value: onnx.ValueInfoProto, axis: int) -> int:
    """What an open axis is like, by where it is."""
    dims = dims_of(value) or ()
    exact = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).kind in "biu"
    if axis == 0 and len(dims) > 1:
        return _BATCH
    if exact:
        return _SEQUENCE
    if len(dims) > 3 and axis >= len(dims) - 2 and all(isinstance(dim, str) for dim in dims[-2:]):
        return _PICTURE
    return _SIGNAL if 1 < len(dims) <= 3 and axis == len(dims) - 1 else _SEQUENCE


def computed_size(dim: str, sizes: Mapping[str, int]) -> int | None:
    """The size of an axis whose name is that of a size, or a sum or product of them (`past + 1`)."""
    term = None if dim in sizes else _term(dim)
    try:
        found = sizes[dim] if term is None else _value(term, sizes)
    except (KeyError, ZeroDivisionError):
        return None
    return found if found > 0 else None


@cache
def _term(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _value(term: ast.expr, sizes: Mapping[str, int]) -> int:
    """Raises KeyError for what is no arithmetic on sizes."""
    if isinstance(term, ast.Name):
        return sizes[term.id]
    if isinstance(term, ast.Constant) and isinstance(term.value, int):
        return term.value
    if isinstance(term, ast.BinOp):
        return int(_OPERATIONS[type(term.op)](_value(term.left, sizes), _value(term.right, sizes)))
    raise KeyError(ast.dump(term))
