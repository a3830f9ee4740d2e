"""Margins: how far a decision of a model is from being another one, as a tensor with a gradient.

What a program decides by is mostly not differentiable: a comparison, a count of zeros, a sum over a mask of integers.
Each tensor without a gradient gets a surrogate that has one, by a rule for the function that made it:

    hits = x > 2                surrogate  x - 2                     true where it is positive
    hits.any()                             max(x - 2)
    hits.float().mean()                    mean(sigmoid((x - 2) / s))
    mask.sum()                             the sum of the mask as floats, which has a gradient by each of its elements
    scores.argmax()                        the second best score - the best one

The search follows these gradients (`gradient_steps.py`). They only propose inputs: whether a path is another one, and
the file is wrong there, is seen by running both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("gt", "__gt__", "ge", "__ge__", "greater", "greater_equal"), lambda a, b: a - b),
    **dict.fromkeys(("lt", "__lt__", "le", "__le__", "less", "less_equal"), lambda a, b: b - a),
    **dict.fromkeys(("eq", "__eq__"), lambda a, b: -abs(a - b)),
    **dict.fromkeys(("ne", "__ne__", "not_equal"), lambda a, b: abs(a - b)),
}
_LOGIC: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("__and__", "logical_and", "bitwise_and"), torch.minimum),
    **dict.fromkeys(("__or__", "logical_or", "bitwise_or"), torch.maximum),
    **dict.fromkeys(("__invert__", "logical_not", "bitwise_not"), torch.neg),
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {"any": torch.amax, "all": torch.amin}
# Functions that mean the same for what is and for what stands for it.
_SAME = frozenset(
    {"sum", "mean", "max", "min", "amax", "amin", "norm", "std", "var", "prod", "cumsum", "diff"}
    | {"abs", "neg", "__neg__", "sqrt", "clamp", "maximum", "minimum"}
    | {"add", "sub", "mul", "div", "true_divide", "__floordiv__"}
    | {"__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"}
    | {"__getitem__", "select", "narrow", "cat", "stack", "clone", "contiguous"}
    | {"view", "reshape", "squeeze", "unsqueeze", "flatten", "transpose", "permute", "expand"}
)
_CASTS = frozenset(
    {"float", "double", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool", "to", "type"}
    | {"round", "floor", "ceil", "trunc"}
)


def _soften(margins: torch.Tensor) -> torch.Tensor:
    """Truth values between 0 and 1, steep where the margins are small: a sum of them counts."""
    scale = margins.detach().abs().mean().clamp(min=1e-6)
    return torch.sigmoid(margins / scale)


def _second_best(scores: torch.Tensor) -> torch.Tensor | None:
    if scores.numel() < 2:
        return None
    best = scores.reshape(-1).topk(2).values
    return (best[1] - best[0]).reshape(())


def _count_softly(numbers: torch.Tensor) -> torch.Tensor:
    """How many are not zero: each counts the more, the larger it is."""
    sizes = numbers.abs()
    return torch.tanh(sizes / sizes.detach().mean().clamp(min=1e-6)).sum()


_RULES: dict[str, Callable[[Any], Any]] = {
    "count_nonzero": _count_softly,
    "argmax": _second_best,
    "detach": lambda numbers: numbers,  # itself, it would cut the gradient that is looked for
    **dict.fromkeys(_CASTS, lambda numbers: numbers),
}


class Margins:
    """Follows one run.

    given     what the model is called with, by name
    leaves    the same as floats, which gradients are taken by
    embedded  what was looked up in tables: the indices, the table and the result
    """

    def __init__(self, given: Mapping[str, torch.Tensor], leaves: Mapping[str, torch.Tensor]) -> None:
        self._surrogates = WeakIdKeyDictionary()
        self._opaque = WeakIdKeyDictionary()
        self.given, self.leaves = given, leaves
        self.embedded: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for name, tensor in given.items():
            if not tensor.requires_grad and not tensor.is_complex():
                self._surrogates[tensor] = leaves[name] - 0.5 if tensor.dtype is torch.bool else leaves[name]

    def surrogate(self, value: Any) -> torch.Tensor | None:
        if not isinstance(value, torch.Tensor):
            return None
        if value.requires_grad:
            return value
        stand_in: torch.Tensor | None = self._surrogates.get(value)  # type: ignore[no-untyped-call]
        return stand_in

    def depends(self, value: Any) -> bool:
        """Whether the inputs went into a value, also by functions that no rule is known for."""
        return self.surrogate(value) is not None or value in self._opaque

    def of_bool(self, value: Any, answer: bool) -> torch.Tensor | None:
        """What to make larger for the other answer; None where nothing is known of it."""
        stand_in = self.surrogate(value)
        if stand_in is None or stand_in.numel() != 1:
            return None
        if isinstance(value, torch.Tensor) and value.dtype is not torch.bool:
            stand_in = stand_in.abs()
        margin = stand_in.reshape(())
        return -margin if answer else margin

    def of_number(self, value: Any) -> torch.Tensor | None:
        stand_in = self.surrogate(value)
        return None if stand_in is None else stand_in.sum()

    def of_count(self, value: Any) -> torch.Tensor | None:
        """How many elements are not zero, or true."""
        stand_in = self.surrogate(value)
        if stand_in is None:
            return None
        return _soften(stand_in).sum() if value.dtype is torch.bool else _count_softly(stand_in)

    def follow(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note what stands for the result of a function, if the result has no gradient of its own."""
        if name == "embedding":
            self._note_embedding(args, kwargs, result)
        if not isinstance(result, torch.Tensor) or (result.requires_grad and result.grad_fn is not None):
            return
        operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not any(map(self.depends, operands)):
            return
        self._opaque[result] = True
        with torch.enable_grad():
            stand_in = self._stand_in(name, func, args, kwargs)
        if stand_in is not None and stand_in.numel() == result.numel():
            self._surrogates[result] = stand_in.reshape(result.shape)

    def _stand_in(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        try:
            if name in _COMPARISONS:
                stand_in = _COMPARISONS[name](self._replace(args[0]), self._replace(args[1]))
            elif name in _LOGIC:
                stand_in = _LOGIC[name](*map(self._replace_truth, args))
            elif name in _REDUCTIONS:
                stand_in = _REDUCTIONS[name](self._replace_truth(args[0]), *args[1:], **kwargs)
            elif name in _RULES:
                stand_in = _RULES[name](self._replace(args[0]))
            elif name in _SAME:
                plain = {key: value for key, value in kwargs.items() if key != "dtype"}
                replaced = pytree.tree_map(self._replace, (args, plain))
                stand_in = func(*replaced[0], **replaced[1])
            else:
                return None
        except (RuntimeError, TypeError, ValueError, IndexError):  # the rule does not fit: nothing is known of it
            return None
        is_float = isinstance(stand_in, torch.Tensor) and stand_in.is_floating_point()
        return stand_in if is_float else None

    def _replace(self, value: Any) -> Any:
        """What stands for a value in arithmetic; truth values count as numbers between 0 and 1."""
        stand_in = self.surrogate(value)
        if stand_in is None:
            return value
        return _soften(stand_in) if value.dtype is torch.bool else stand_in

    def _replace_truth(self, value: Any) -> Any:
        """What stands for a truth value: positive where it is true."""
        stand_in = self.surrogate(value)
        if stand_in is None:
            return torch.where(value, 1.0, -1.0) if isinstance(value, torch.Tensor) else value
        return stand_in if value.dtype is torch.bool else stand_in.abs()

    def _note_embedding(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
        indices = next((item for item in tensors if not item.is_floating_point()), None)
        table = next((item for item in tensors if item.is_floating_point() and item.dim() == 2), None)
        if indices is not None and table is not None:
            self.embedded.append((indices, table, result))
