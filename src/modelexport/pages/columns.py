"""Many rows of the same fields, as the page holds them: one list for each field, and every text once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar

Json = dict[str, Any]

_Value = TypeVar("_Value", bound=Hashable)


class Distinct(Generic[_Value]):
    """Distinct values in the order of first use, and the place of each."""

    def __init__(self, values: Iterable[_Value] = ()) -> None:
        self._places: dict[_Value, int] = {}
        for value in values:
            self.place(value)

    def place(self, value: _Value) -> int:
        return self._places.setdefault(value, len(self._places))

    def places(self, values: Iterable[_Value]) -> list[int]:
        return [self.place(value) for value in values]

    @property
    def values(self) -> list[_Value]:
        return list(self._places)

    def __len__(self) -> int:
        return len(self._places)


Texts = Distinct[str]
