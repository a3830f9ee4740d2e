"""Decisions: where the Python code of a model takes a value out of a tensor, or looks at a size, and goes by it.

An exporter that traces follows the path of its sample, once and for all. A function mode of torch sees every function
that a program calls, and so each place where a tensor becomes a Python value:

    if x.sum() > 0:              Decision("encoder.gate", "net.py:12", "bool", True)
    scale = x.max().item()       Decision("encoder.gate", "net.py:14", "number", 1.25)
    if x.shape[1] > 10:          Decision("encoder.gate", "net.py:15", "size", False), 8 held against 10

Sizes and numbers are handed to the program as an `int` and a `float` that tell what they are compared with
(`watched_numbers.py`).

Function modes: https://github.com/pytorch/pytorch/blob/main/torch/overrides.py
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode

from modelexport.capture import watched_numbers
from modelexport.capture.margins import Margins
from modelexport.capture.watched_numbers import listening, watch_list, watch_sizes

BOOL, NUMBER, SIZE = "bool", "number", "size"
_TO_BOOL = frozenset({"__bool__", "is_nonzero", "equal", "allclose", "__contains__"})
_TO_NUMBER = frozenset({"item", "__int__", "__float__", "__index__", "__complex__", "tolist", "numpy", "__array__"})
# Their results have as many elements as the data says.
_TO_COUNT = frozenset({"nonzero", "unique", "unique_consecutive", "masked_select", "argwhere"})
# Of these, the ones that are handed a mask; others count in what they are called on.
_BY_MASK = frozenset({"masked_select", "__getitem__"})
_DATA = vars(torch._C.TensorBase)["data"].__get__  # x.data, which is x.detach()
_SIZES = frozenset({"size", "__len__", "numel", "nelement"})
# A list of more numbers is data that a program computes with, and not something that it decides by.
_MOST_WATCHED = 64
_MOST_DECISIONS = 4096
_TORCH = str(Path(torch.__file__).parent)
_HERE = (__file__, watched_numbers.__file__)


@dataclass(frozen=True)
class Decision:
    """A Python value that a program took from a tensor, or the answer to a comparison of a size.

    path     of the module whose code did it
    where    file and line, if known
    target   what to make larger for another value, as a tensor that has a gradient; only of a run with margins
    compared of a size: what it was, and what it was held against
    depends  the inputs went into it; only of a run with margins
    is_count how many elements a mask picked: the program has a tensor of that size, and not the number itself
    """

    path: str
    where: str
    kind: str
    value: object
    target: torch.Tensor | None = field(default=None, compare=False, repr=False)
    compared: tuple[float, float] | None = field(default=None, compare=False)
    depends: bool = field(default=False, compare=False)
    is_count: bool = field(default=False, compare=False)

    @property
    def site(self) -> tuple[str, str, str]:
        return self.path, self.where, self.kind

    @property
    def is_blind(self) -> bool:
        """Whether the inputs decide, and no gradient tells how."""
        return self.depends and (self.target is None or not self.target.requires_grad)

    def __str__(self) -> str:
        at = f"{self.path or 'the model'} ({self.where})" if self.where else self.path or "the model"
        if self.kind == SIZE:
            return f"at {at} a size was compared in Python"
        return f"at {at} a tensor was turned into a Python {self.kind}"


@dataclass(frozen=True)
class RunPath:
    """The way that one run took.

    functions     what was called of torch, and the modules that ran, in order, as a digest: `a(x) if low else b(x)` is
                  seen where a and b call the same functions, and nothing shows what `low` was compared with
    reads_length  `len()` was asked of a tensor, or a size was looked up in a table: what a program does with that
                  number cannot be seen
    """

    decisions: tuple[Decision, ...]
    functions: str
    reads_length: bool = False

    @property
    def by_data(self) -> tuple[Decision, ...]:
        return tuple(decision for decision in self.decisions if decision.kind != SIZE)

    def departs_from(self, other: RunPath) -> Decision | None:
        """The first decision of the other run that was taken differently in this one; None if there is none."""
        for mine, theirs in zip(self.decisions, other.decisions, strict=False):
            if mine.site != theirs.site or mine.value != theirs.value:
                return theirs
        longer = max(self.decisions, other.decisions, key=len)
        shorter = min(len(self.decisions), len(other.decisions))
        return longer[shorter] if len(longer) > shorter else None

    def is_like(self, other: RunPath) -> bool:
        return self.functions == other.functions and self.departs_from(other) is None


class PathRecorder(TorchFunctionMode):
    """Records the path of the last call of `model` while it is open.

    margins  also how far each decision is from another one, for a search by gradients
    """

    def __init__(self, model: nn.Module, margins: Margins | None = None) -> None:
        super().__init__()
        self._paths = {part: path for path, part in model.named_modules()}
        self._open: list[str] = []
        self._margins = margins
        self._thread = threading.get_ident()
        self._stack = ExitStack()
        self._begin()

    def _begin(self) -> None:
        self._decisions: list[Decision] = []
        self._digest = hashlib.blake2b(digest_size=8)
        self._reads_length = False

    @property
    def path(self) -> RunPath:
        return RunPath(tuple(self._decisions), self._digest.hexdigest(), self._reads_length)

    def __enter__(self) -> Self:
        self._stack.enter_context(module_hooks.register_module_forward_pre_hook(self._enter_module))
        self._stack.enter_context(module_hooks.register_module_forward_hook(self._leave_module, always_call=True))
        self._stack.enter_context(listening(self))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._stack.close()

    def _enter_module(self, module: nn.Module, _args: object) -> None:
        path = self._paths.get(module)
        if path is None or threading.get_ident() != self._thread:
            return
        if not self._open:
            self._begin()  # a model that is run again begins a path of its own
        self._digest.update(f"module {path}\n".encode())
        self._open.append(path)

    def _leave_module(self, module: nn.Module, *_rest: object) -> None:
        if module in self._paths and self._open and threading.get_ident() == self._thread:
            self._open.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._open or threading.get_ident() != self._thread:
            return result
        name = getattr(func, "__name__", "")
        if name == "__get__":
            if self._margins is not None and func == _DATA:
                self._margins.follow("detach", func, args, kwargs, result)
            return watch_sizes(result) if isinstance(result, torch.Size) else result
        if name in _SIZES:
            self._reads_length |= name == "__len__"
            return watch_sizes(result)
        self._digest.update(name.encode() + b"\n")
        if self._margins is not None:
            self._margins.follow(name, func, args, kwargs, result)
        return self._take(name, args, result)

    def _take(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Note what leaves the world of tensors; the result as the program is to have it."""
        if name in _TO_BOOL:
            margins = self._margins
            target = margins.of_bool(args[0], result) if margins is not None else None
            self.note(BOOL, bool(result), target, depends=margins is not None and margins.depends(args[0]))
        elif name in _TO_NUMBER:
            target = self._margins.of_number(args[0]) if self._margins is not None else None
            self.note(NUMBER, _plain(result), target)
            return self._watch_numbers(name, args[0], result)
        elif name in _TO_COUNT or _picks_by_truth(name, args):
            first = result[0] if isinstance(result, tuple) else result
            counted = _find_mask(args[1:]) if name in _BY_MASK else args[0]
            target = self._margins.of_count(counted) if self._margins is not None else None
            self.note(NUMBER, int(first.shape[0]) if first.dim() else 1, target, is_count=True)
        return result

    def note(
        self,
        kind: str,
        value: object,
        target: torch.Tensor | None = None,
        *,
        compared: tuple[float, float] | None = None,
        depends: bool = False,
        is_count: bool = False,
    ) -> None:
        if self._open and len(self._decisions) < _MOST_DECISIONS:
            what = kind, value, target, compared, depends, is_count
            self._decisions.append(Decision(self._open[-1], _program_line(), *what))

    def note_length(self) -> None:
        self._reads_length |= bool(self._open)

    def _watch_numbers(self, name: str, tensor: torch.Tensor, result: Any) -> Any:
        """Numbers that tell what they are compared with. `int(x)` and `float(x)` insist on plain ones."""
        if name not in ("item", "tolist") or tensor.numel() > _MOST_WATCHED:
            return result
        source = None if self._margins is None else self._margins.surrogate(tensor)
        return watch_list(result, source)

    def note_size(self, comparison: str, answer: bool, sides: tuple[float, float]) -> None:
        self.note(SIZE, (comparison, answer), compared=sides)

    def note_number(self, answer: bool, margin_of: Callable[[], torch.Tensor] | None) -> None:
        if margin_of is None or self._margins is None:
            self.note(BOOL, answer)
            return
        with torch.enable_grad():
            margin = margin_of()
        self.note(BOOL, answer, -margin if answer else margin)


def _picks_by_truth(name: str, args: tuple[Any, ...]) -> bool:
    """`x[mask]`, and `torch.where(mask)`, which is `nonzero`."""
    return (name == "where" and len(args) == 1) or (name == "__getitem__" and _find_mask(args[1]) is not None)


def _find_mask(index: object) -> torch.Tensor | None:
    """Of an index, the tensor that picks elements by truth values."""
    items = _flatten(index) if isinstance(index, tuple) else (index,)
    return next((item for item in items if isinstance(item, torch.Tensor) and item.dtype is torch.bool), None)


def _flatten(index: tuple[Any, ...]) -> Iterator[object]:
    for item in index:
        yield from _flatten(item) if isinstance(item, tuple) else (item,)


def _plain(result: Any) -> object:
    """A number as it is; of many numbers a digest, which is enough to see that they are others."""
    if isinstance(result, bool | int | float | complex):
        return result
    return hashlib.blake2b(repr(result).encode(), digest_size=8).hexdigest()


def _program_line() -> str:
    """File and line of the innermost code that is neither torch's nor this recorder's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _HERE and not name.startswith((_TORCH, "<")):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
