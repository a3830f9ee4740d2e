"""Traced arrays: what torch's optimizer works with in the place of weights that are not there.

    Transpose(w) of 28672x8192        an array of that shape with one number in memory, recipe transpose(w)
    Conv(w), BatchNormalization(s)    recipe of w multiplied by s / sqrt(variance + epsilon)

The optimizer folds by shapes and, in small constants, by content: zeros are left out, equal ones become one. An array
that stands for a weight has numbers drawn by its name, as no trained weight is zero or equals another; a small weight
of a checkpoint that is there has its own (`READ_BELOW`). What is computed with arrays becomes a part of their recipe,
and what is not known here is not folded: the file is larger by a node, and right.

https://numpy.org/doc/stable/user/basics.subclassing.html
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from modelexport.capture.arguments import to_stored_array
from modelexport.capture.isolation import replace_attributes
from modelexport.capture.traced_weights import READ_BELOW, is_fake, weight_recipes
from modelexport.errors import ExportFailed
from modelexport.graph.file.checkpoint import DTYPES
from modelexport.graph.file.filling import recipe_dtype
from modelexport.record.weight_recipe import FixedArray, Operation, Recipe, write_recipe

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Elements of an array that is no weight and becomes a part of a recipe.
_MOST_CONSTANT = 4096
_UFUNCS: Mapping[np.ufunc, str] = {
    np.add: "add",
    np.subtract: "subtract",
    np.multiply: "multiply",
    np.true_divide: "divide",
    np.sqrt: "sqrt",
    np.negative: "negative",
}


class TracedArray(np.ndarray):
    """
    recipe  None where something was done that is not known here
    known   the numbers are the weight's own
    """

    recipe: Recipe | None
    known: bool

    def __array_finalize__(self, origin: object) -> None:
        same = isinstance(origin, TracedArray) and origin.shape == self.shape and origin.dtype == self.dtype
        self.recipe = origin.recipe if same and isinstance(origin, TracedArray) else None
        self.known = isinstance(origin, TracedArray) and origin.known

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        plain = [_plain(item) for item in inputs]
        known = all(item.known for item in inputs if isinstance(item, TracedArray))
        shape = np.broadcast_shapes(*(item.shape for item in plain if isinstance(item, np.ndarray)))
        simple = method == "__call__" and not keywords
        if math.prod(shape) > READ_BELOW and not known and simple:
            # One number is as good as another: the result has its type from it, and its shape from the operands.
            plain = [_corner(item) if isinstance(item, np.ndarray) else item for item in plain]
            result: Any = np.broadcast_to(ufunc(*plain), shape)
        else:
            result = getattr(ufunc, method)(*plain, **keywords)
        if not isinstance(result, np.ndarray) or result.dtype == np.bool_:
            return result
        name = _UFUNCS.get(ufunc) if simple else None
        operands = [_operand(item, result.dtype) for item in inputs]
        recipe = None
        if name is not None and result.shape in [np.shape(item) for item in inputs] and None not in operands:
            recipe = _typed(Operation(name, tuple(item for item in operands if item is not None)), result.dtype)
        return trace_array(result, recipe, known)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        del types
        # What only looks at numbers or copies a shape gives plain ones.
        if function in (np.transpose, np.reshape) and isinstance(args[0], TracedArray):
            method = self.turned if function is np.transpose else self.reshaped
            rest = [*args[1:], *kwargs.values()]
            return TracedArray.__dict__[method.__name__](args[0], rest[0] if rest else None)
        result = function(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})
        if not isinstance(result, np.ndarray) or result.dtype == np.bool_ or function is np.zeros_like:
            return result
        return trace_array(result, None, self.known)

    def turned(self, axes: Sequence[int] | None) -> TracedArray:
        order = tuple(int(axis) % self.ndim for axis in (reversed(range(self.ndim)) if axes is None else axes))
        recipe = self.recipe and Operation("transpose", (self.recipe,), order)
        return trace_array(_plain(self).transpose(order), recipe, self.known)

    def reshaped(self, shape: Any) -> TracedArray:
        result = _plain(self).reshape(shape) if self.known else _stand_in(self, shape)
        recipe = self.recipe and Operation("reshape", (self.recipe,), result.shape)
        return trace_array(result, recipe if result.shape != self.shape else self.recipe, self.known)

    def cast(self, dtype: np.dtype[Any]) -> TracedArray:
        result = _plain(self).astype(dtype) if self.known else np.broadcast_to(_corner(self).astype(dtype), self.shape)
        recipe = self.recipe and dtype in _NAMES and Operation("cast", (self.recipe,), dtype=_NAMES[dtype])
        return trace_array(result, recipe or None, self.known)


def trace_array(array: np.ndarray, recipe: Recipe | None, known: bool) -> TracedArray:
    traced = np.asarray(array).view(TracedArray)
    traced.recipe, traced.known = recipe, known
    return traced


def _plain(item: Any) -> Any:
    return item.view(np.ndarray) if isinstance(item, TracedArray) else item


def _corner(array: np.ndarray) -> np.ndarray:
    """The first number, in as many axes."""
    return np.asarray(array)[tuple(slice(0, 1) for _ in array.shape)]


def _stand_in(array: np.ndarray, shape: Any) -> np.ndarray:
    sizes = [int(size) for size in np.atleast_1d(shape)]
    open_axes = [axis for axis, size in enumerate(sizes) if size < 0]
    for axis in open_axes:
        sizes[axis] = array.size // max(-math.prod(sizes), 1)
    if array.size <= READ_BELOW:
        return np.asarray(array).reshape(sizes)
    return np.broadcast_to(_corner(array).reshape(()), sizes)


def _operand(item: Any, dtype: np.dtype[Any]) -> Recipe | None:
    if isinstance(item, TracedArray):
        return item.recipe
    # A number of Python's takes the type of the array that it is used with.
    array = np.asarray(item, None if isinstance(item, np.ndarray | np.generic) else dtype)
    if array.dtype not in _NAMES or array.size > _MOST_CONSTANT:
        return None
    return FixedArray(_NAMES[array.dtype], array.shape, np.ascontiguousarray(array).tobytes())


def _typed(recipe: Operation, dtype: np.dtype[Any]) -> Recipe | None:
    """The recipe, if it gives the type that numpy gave."""
    return recipe if recipe_dtype(recipe) == dtype else None


def trace_initializers(model: ir.Model, module: torch.nn.Module) -> None:
    """Initializers that are weights of a module without numbers stand for them from now on."""
    recipes = weight_recipes(module)
    for name, value in model.graph.initializers.items():
        tensor = getattr(value.const_value, "raw", None)
        recipe = recipes.get(name)
        if is_fake(tensor) and recipe is None:
            raise ExportFailed(
                f"the graph has a weight {name!r} that is no parameter of {type(module).__name__}, and has no numbers",
                "Export the model with its weights: leave --no-weights out.",
            )
        if recipe is not None and isinstance(tensor, torch.Tensor):
            array = _drawn_array(recipe, tensor) if is_fake(tensor) else to_stored_array(tensor)
            value.const_value = ir.Tensor(trace_array(array, recipe, not is_fake(tensor)), name=name)


def _drawn_array(recipe: Recipe, tensor: torch.Tensor) -> np.ndarray:
    """Numbers by the name of a weight: one for a large one, else as many as it has."""
    seed = int.from_bytes(hashlib.sha256(write_recipe(recipe).encode()).digest()[:8], "little")
    shape, dtype = tuple(map(int, tensor.shape)), recipe_dtype(recipe)
    drawn = np.random.default_rng(seed).uniform(0.5, 1.5, shape if math.prod(shape) <= READ_BELOW else ())
    return np.broadcast_to(drawn.astype(dtype), shape)


def declared_weights(model: ir.Model) -> dict[str, tuple[Recipe, bool]]:
    """Initializers that stand for weights by name, with their recipes, and whether their numbers are known."""
    declared: dict[str, tuple[Recipe, bool]] = {}
    for name, value in model.graph.initializers.items():
        array = getattr(value.const_value, "raw", None)
        if isinstance(array, TracedArray):
            if array.recipe is not None:
                declared[name] = array.recipe, array.known
            elif not array.known:
                raise ExportFailed(
                    f"torch's optimizer computes the weight {name!r} in a way that is not known without numbers",
                    "Use --no-optimize, or export the model with its weights.",
                )
    return declared


@contextmanager
def folding_recipes() -> Iterator[None]:
    """While this is open, torch's optimizer folds traced arrays by their recipes."""
    from onnxscript.optimizer import _constant_folding

    with replace_attributes([(_constant_folding._reference_evaluator, "evaluate", _tracing_evaluator)]):
        yield


_Evaluate = Callable[..., Any]


def _tracing_evaluator(evaluate: _Evaluate) -> _Evaluate:
    def evaluate_or_trace(domain: str, operator: str, version: int, *inputs: Any, **attributes: Any) -> Any:
        traced = [item for item in inputs if isinstance(item, TracedArray)]
        fold = _FOLDED.get(operator) if not domain and traced else None
        if fold is not None:
            return fold(*inputs, **attributes)
        if all(item.known for item in traced):
            return evaluate(domain, operator, version, *map(_plain, inputs), **attributes)
        return None  # the node stays

    return evaluate_or_trace


def _fold_transpose(array: Any, perm: Sequence[int] | None = None) -> Any:
    return array.turned(perm)


def _fold_cast(array: Any, to: int, **_: Any) -> Any:
    return array.cast(np.dtype(ir.DataType(to).numpy()))


def _fold_reshape(array: Any, shape: Any, allowzero: int = 0) -> Any:
    if not isinstance(array, TracedArray) or isinstance(shape, TracedArray) or allowzero or 0 in shape:
        return None
    return array.reshaped(shape)


_FOLDED: Mapping[str, Callable[..., Any]] = {
    "Transpose": _fold_transpose,
    "Cast": _fold_cast,
    "Reshape": _fold_reshape,
    "Identity": lambda array: array,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.true_divide,
    "Sqrt": np.sqrt,
    "Neg": np.negative,
}
