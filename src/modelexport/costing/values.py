"""What is known of a value before anything runs, and of an operator with the values that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from modelexport.costing.axes import Shape, Unknown, settled
from modelexport.record.polynomial import Polynomial, Size

UNDEFINED = onnx.TensorProto.UNDEFINED
# More numbers than this are no shape.
MOST_NUMBERS = 256


__all__ = ["CANNOT", "MOST_NUMBERS", "NOTHING", "UNDEFINED", "Operator", "Unknown", "Value"]

# What a rule raises that cannot say anything: shapes of a damaged file fit no rule.
CANNOT = (Unknown, ValueError, LookupError, TypeError, ArithmeticError, AttributeError)


@dataclass(frozen=True, eq=False)
class Value:
    """
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
class Operator:
    """One node with what it reads. `domain` is empty for ONNX itself. Inputs that are left out are None."""

    op_type: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: tuple[Value | None, ...]
    names: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    opset: int = 0

    def has(self, place: int) -> bool:
        return place < len(self.inputs) and self.inputs[place] is not None

    def value(self, place: int) -> Value:
        found = self.inputs[place] if place < len(self.inputs) else None
        if found is None:
            raise Unknown(f"{self.op_type} has no input {place}")
        return found

    def dtype(self, place: int = 0) -> int:
        found = self.inputs[place] if place < len(self.inputs) else None
        return UNDEFINED if found is None else found.dtype

    def shape(self, place: int = 0) -> Shape:
        found = self.value(place).shape
        if found is None:
            name = self.names[place] if place < len(self.names) else str(place)
            raise Unknown(f"the shape of {name!r} is not known")
        return found

    def content(self, place: int) -> np.ndarray:
        found = self.value(place).content
        if found is None:
            name = self.names[place] if place < len(self.names) else str(place)
            raise Unknown(f"the numbers in {name!r} are computed while the model runs")
        return found

    def sizes(self, place: int) -> list[Size]:
        return [_whole(size) for size in self.content(place).reshape(-1).tolist()]

    def numbers(self, place: int) -> list[int]:
        """As `sizes`, where they must be plain numbers: axes, pads, steps."""
        found = self.sizes(place)
        if any(isinstance(size, Polynomial) for size in found):
            raise Unknown(f"the numbers in {self.names[place]!r} depend on the axes")
        return [int(size) for size in found]  # type: ignore[arg-type]

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def listed(self, name: str, place: int, default: Sequence[int] | None = None) -> list[int] | None:
        """Numbers that older operator sets have as an attribute and newer ones as an input."""
        if name in self.attributes:
            found = self.attributes[name]
            return [int(one) for one in found] if isinstance(found, list | tuple) else [int(found)]
        if self.has(place):
            return self.numbers(place)
        return None if default is None else list(default)

    @cached_property
    def fixed(self) -> bool:
        return all(value.fixed for value in self.inputs if value is not None)


def _whole(number: Any) -> Size:
    if isinstance(number, Polynomial):
        return settled(number)
    if number != int(number):
        raise Unknown(f"{number} is no size")
    return int(number)
