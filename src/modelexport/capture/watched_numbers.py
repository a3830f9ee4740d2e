"""Watched numbers: sizes and numbers of tensors as Python has them, which tell what they are compared with.

    x.shape[1] / 2 > 5      WatchedSize, then WatchedRatio     a size was compared
    1 - x.mean().item() < 0 WatchedNumber, also the difference a number was compared, and how far it is from the border

They are plain ones as soon as nobody listens, so that a model may keep them. What has a `float` on its left is not seen
(`0.5 * size`): Python asks the left side first, and a `float` takes any number.
https://docs.python.org/3/reference/datamodel.html#emulating-numeric-types
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import torch


class Listener(Protocol):
    """Whoever wants to know what becomes of sizes and numbers."""

    def note_length(self, length: int) -> None:
        """A size was used in a way that does not show what it is held against."""

    def note_hidden(self, value: object, *, depends: bool) -> None:
        """The same of a number of a tensor; whether the inputs are known to go into it."""

    def note_size(self, comparison: str, answer: bool, sides: tuple[float, float]) -> None: ...

    def note_number(self, answer: bool, margin_of: Callable[[], torch.Tensor] | None) -> None:
        """
        margin_of  what is positive where the comparison is true; None if the number has no tensor that it came from
        """


class _Ear:
    listener: ClassVar[Listener | None] = None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    before, _Ear.listener = _Ear.listener, listener
    try:
        yield
    finally:
        _Ear.listener = before


def watch_sizes(result: Any) -> Any:
    if isinstance(result, torch.Size):
        return torch.Size([WatchedSize(size) for size in result])
    return _watch_size(result)


def _watch_size(size: Any) -> Any:
    if type(size) is float:
        return WatchedRatio(size)
    return WatchedSize(size) if type(size) is int else size


def _apply(base: type, name: str, number: Any, others: tuple[object, ...]) -> Any:
    """A method of the plain number; an `int` leaves what it is to do with a `float` to the `float`."""
    kind = float if any(isinstance(other, float) for other in others) else base
    return getattr(kind, name)(kind(_make_plain(number)), *others)


def _make_plain(number: Any) -> Any:
    return int.__int__(number) if isinstance(number, int) else float.__float__(number)


def _compared(base: type, name: str) -> Callable[[Any, object], bool]:
    def answer(self: Any, other: object) -> bool:
        result: bool = _apply(base, name, self, (other,))
        listener = _Ear.listener
        if listener is not None and isinstance(other, int | float) and result is not NotImplemented:
            listener.note_size(name, result, (base(self), other + 0))
        return result

    return answer


def _computed(base: type, name: str) -> Callable[..., Any]:
    def answer(self: Any, *others: object) -> Any:
        result = _apply(base, name, self, others)
        return _watch_size(result) if _Ear.listener is not None else result

    return answer


def _tell_length(length: int) -> None:
    if _Ear.listener is not None:
        _Ear.listener.note_length(int(length))


class WatchedSize(int):
    """A size that notes what it is compared with, and whose sums and quotients do so, too."""

    def __hash__(self) -> int:
        # Looked up in a table: which answer another size would get cannot be seen.
        _tell_length(self)
        return int.__hash__(self)

    def __float__(self) -> float:
        _tell_length(self)
        return float(_make_plain(self))

    def __format__(self, how: str) -> str:
        _tell_length(self)
        return format(int(self), how)

    def __bool__(self) -> bool:
        listener = _Ear.listener
        if listener is not None:
            listener.note_size("__bool__", int(self) != 0, (int(self), 0))
        return int(self) != 0

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class WatchedRatio(float):
    """What sizes were divided by; `int()` and the like make a size of it again."""

    __hash__ = float.__hash__

    def __int__(self) -> int:
        # `int()` insists on a plain one.
        whole = int(float(self))
        _tell_length(whole)
        return whole

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


for _size, _plain_number in ((WatchedSize, int), (WatchedRatio, float)):
    for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
        setattr(_size, _name, _compared(_plain_number, _name))
    for _name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow"):
        setattr(_size, f"__{_name}__", _computed(_plain_number, f"__{_name}__"))
        setattr(_size, f"__r{_name}__", _computed(_plain_number, f"__r{_name}__"))
    for _name in ("__neg__", "__abs__", "__round__", "__floor__", "__ceil__"):
        setattr(_size, _name, _computed(_plain_number, _name))


# What is positive, or nearest to it, where a comparison of a number is true.
_MARGINS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("__gt__", "__ge__"), lambda apart: apart),
    **dict.fromkeys(("__lt__", "__le__"), lambda apart: -apart),
    "__eq__": lambda apart: -abs(apart),
    "__ne__": abs,
}
_ARITHMETIC = ("add", "sub", "mul", "truediv")


class _Watched:
    """A number of a tensor that notes what it is compared with.

    source  the tensor, or what stands for it, in a run with margins
    """

    source: torch.Tensor | None = None

    def __bool__(self) -> bool:
        return bool(operator.ne(self, 0))


class WatchedNumber(_Watched, float):
    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (_make_plain(self),)


class WatchedCount(_Watched, int):
    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (_make_plain(self),)


def _source_of(value: Any) -> Any:
    return value.source if isinstance(value, _Watched) and value.source is not None else value


def _watch_number(value: Any, source: torch.Tensor | None) -> Any:
    if type(value) not in (int, float):
        return value
    number: Any = WatchedCount(value) if type(value) is int else WatchedNumber(value)
    if source is not None:
        number.source = source
    return number


def watch_list(numbers: Any, source: torch.Tensor | None) -> Any:
    if isinstance(numbers, list):
        parts = [None] * len(numbers) if source is None else list(source)
        return [watch_list(item, part) for item, part in zip(numbers, parts, strict=True)]
    return _watch_number(numbers, source)


def _compared_number(base: type, name: str) -> Callable[[Any, object], bool]:
    margin = _MARGINS[name]

    def answer(self: _Watched, other: object) -> bool:
        result: bool = _apply(base, name, self, (other,))
        listener = _Ear.listener
        if listener is not None and isinstance(other, int | float) and result is not NotImplemented:
            source = self.source
            listener.note_number(result, None if source is None else lambda: margin(source - _source_of(other)))
        return result

    return answer


def _computed_number(base: type, name: str, *, reflected: bool = False) -> Callable[..., Any]:
    method, of_tensors = f"__{'r' if reflected else ''}{name}__", getattr(operator, name)

    def answer(self: _Watched, *others: object) -> Any:
        result = _apply(base, method, self, others)
        if _Ear.listener is None or result is NotImplemented:
            return result
        operands = (self.source, *map(_source_of, others))
        source = None if self.source is None else of_tensors(*(operands[::-1] if reflected else operands))
        return _watch_number(result, source)

    return answer


def _escaped(base: type, name: str) -> Callable[..., Any]:
    """What gives a plain number, or a text: what becomes of it cannot be seen."""

    def answer(self: Any, *others: object) -> Any:
        result = _apply(base, name, self, others)
        if _Ear.listener is not None and result is not NotImplemented:
            _Ear.listener.note_hidden(result, depends=self.source is not None)
        return result

    return answer


_ESCAPES = ("hash", "int", "float", "format", "round", "trunc", "floor", "ceil", "mod", "floordiv", "divmod", "pow")

for _class, _base in ((WatchedNumber, float), (WatchedCount, int)):
    for _name in _MARGINS:
        setattr(_class, _name, _compared_number(_base, _name))
    for _name in _ARITHMETIC:
        setattr(_class, f"__{_name}__", _computed_number(_base, _name))
        setattr(_class, f"__r{_name}__", _computed_number(_base, _name, reflected=True))
    for _name in ("neg", "abs"):
        setattr(_class, f"__{_name}__", _computed_number(_base, _name))
    for _name in _ESCAPES:
        setattr(_class, f"__{_name}__", _escaped(_base, f"__{_name}__"))
