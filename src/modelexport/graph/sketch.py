"""A weight in a dozen numbers: enough to know it again after it was cast, turned or quantized.

They are taken along the diagonal, so that they are the same ones whatever the order of the axes; reading them reads
nothing else of the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.numpy_helper

from modelexport.graph.contents import content_of
from modelexport.graph.index import walk_nodes
from modelexport.graph.opened import ModelFile

PLACES = 12
# The same number in another float format.
_CLOSE = 4e-3
# Of numbers that were rounded to a few bits with their original; by chance, twelve numbers never come near.
_QUANTIZED = 0.97


@dataclass(frozen=True, slots=True)
class Sketch:
    """
    sides   the axes that are longer than one, shortest first
    values  what is on the diagonal
    """

    sides: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def rounded(self) -> tuple[tuple[int, ...], bytes]:
        """The same for all float formats down to half precision, and for integers."""
        with np.errstate(over="ignore"):
            return self.sides, np.array(self.values, np.float16).tobytes()

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left out."""
        return not self.sides or (len(self.sides) == 1 and self.sides[0] <= PLACES)

    @property
    def is_telling(self) -> bool:
        """Whether another weight would hardly have the same."""
        return len(set(self.values)) > PLACES // 2


Sketches = Callable[[str], "Sketch | None"]


def sketch(array: np.ndarray) -> Sketch:
    """Of anything that is not empty and has numbers in it."""
    places = [((np.arange(PLACES) * 2 + 1) * side) // (2 * PLACES) for side in array.shape]
    found = array[tuple(places)] if array.ndim else np.broadcast_to(array, PLACES)
    return Sketch(tuple(sorted(side for side in array.shape if side > 1)), tuple(map(float, found)))


def sketches_of(file: ModelFile) -> Sketches:
    """The sketches of a file's constants by name, each made when it is asked for."""
    tensors = {tensor.name: tensor for tensor in file.proto.graph.initializer}
    for key, node in walk_nodes(file.proto):
        if node.op_type == "Constant":
            tensors.update((key, item.t) for item in node.attribute if item.name == "value")

    def find(name: str) -> Sketch | None:
        tensor = tensors.get(name)
        if tensor is None or 0 in tensor.dims or tensor.data_type == onnx.TensorProto.STRING:
            return None
        array = content_of(file, tensor)
        return None if array.dtype.kind == "c" else sketch(array)

    return find


def likeness(one: Sketch, other: Sketch) -> float:
    """1 for the same numbers, less for numbers that go up and down together, 0 for others."""
    if one.sides != other.sides:
        return 0.0
    a, b = np.array(one.values), np.array(other.values)
    if np.all(np.abs(a - b) <= _CLOSE * np.maximum(np.abs(a), np.abs(b))):
        return 1.0
    spread = float(np.std(a) * np.std(b))
    if not spread or not np.isfinite(spread):
        return 0.0
    correlation = abs(float(np.mean((a - a.mean()) * (b - b.mean())))) / spread
    return min(correlation, 0.999) if correlation >= _QUANTIZED else 0.0
