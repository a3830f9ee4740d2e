"""Constants and shape arithmetic that a cut needs and that lie outside of it.

A constant is taken along, however it was made. Arithmetic with sizes is taken along if it can start from what the cut
is given: from an input of it, or from one that has an axis of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.cutting.nest import Nest
from modelexport.graph.index import SHAPE_READERS, Node
from modelexport.graph.value_types import ValueTypes

_SHAPE = "Shape"
Part = Callable[[str], slice]
"""By key of a Shape node: the part of the shape that it returns."""


@dataclass(frozen=True)
class Axis:
    """A size: a number, or that of an axis of a value that the cut is given."""

    size: int = 0
    value: str = ""
    axis: int = 0


@dataclass(frozen=True)
class Chains:
    """
    keys    nodes that come along
    shapes  by key of a Shape node among them that reads a value which is not there: what it returns, axis by axis
    """

    keys: frozenset[str]
    shapes: Mapping[str, tuple[Axis, ...]]


def constant_values(nest: Nest) -> frozenset[str]:
    """Values that depend on nothing that the model is given, not even on a shape."""
    graph = nest.graph
    varying = {value for values in graph.takes.values() for value in values} - set(graph.initializers)
    for node in graph.nodes:
        if any(value in varying for value in nest.reads(node)):
            varying.update(filter(None, node.outputs))
    return frozenset(value for node in graph.nodes for value in node.outputs if value and value not in varying)


class ChainFinder:
    """For one cut after the other of one file."""

    def __init__(self, nest: Nest, types: ValueTypes, part: Part) -> None:
        self._nest = nest
        self._types = types
        self._part = part

    @cached_property
    def _constants(self) -> frozenset[str]:
        return constant_values(self._nest)

    def find(self, taken: Collection[str]) -> Chains:
        """What has to come along with these nodes."""
        graph = self._nest.graph
        entering = [value for value in _entering(self._nest, taken) if value in graph.producers]
        given = [value for value in entering if not self._may_come_along(value)]
        given += [value for value in _entering(self._nest, taken) if value not in graph.producers]
        search = _Search(self._nest, self._types, self._part, self._constants, frozenset(taken), tuple(given))
        for value in entering:
            if value not in given:
                search.take(value)
        return Chains(frozenset(search.keys), search.shapes)

    def _may_come_along(self, value: str) -> bool:
        if value in self._constants:
            return True
        return value not in self._nest.graph.computed and self._types.may_be_sizes(value)


def _entering(nest: Nest, taken: Iterable[str]) -> tuple[str, ...]:
    graph = nest.graph
    found = dict.fromkeys(value for key in nest.outermost(taken) for value in nest.reads(graph.by_key[key]))
    chosen = set(taken)
    return tuple(
        value
        for value in found
        if value not in graph.initializers
        and (value not in graph.producers or graph.producers[value].key not in chosen)
    )


class _Search:
    """
    given  values that the cut is given whatever comes along
    """

    def __init__(
        self,
        nest: Nest,
        types: ValueTypes,
        part: Part,
        constants: frozenset[str],
        taken: frozenset[str],
        given: tuple[str, ...],
    ) -> None:
        self.keys: set[str] = set()
        self.shapes: dict[str, tuple[Axis, ...]] = {}
        self._nest = nest
        self._types = types
        self._part = part
        self._constants = constants
        self._taken = taken
        self._given = given

    def take(self, value: str) -> None:
        """Let a value's whole chain come along, if it can start from what is given; else nothing of it."""
        chain: dict[str, None] = {}
        shapes: dict[str, tuple[Axis, ...]] = {}
        waiting = [value]
        while waiting:
            maker = self._nest.graph.producers.get(waiting.pop())
            if maker is None:
                return
            if maker.key in chain or maker.key in self._taken or maker.key in self.keys:
                continue
            chain[maker.key] = None
            if self._starts_here(maker):
                continue
            if maker.op_type in SHAPE_READERS and maker.key not in self._constants:
                axes = self._axes(maker)
                if axes is None:
                    return
                shapes[maker.key] = axes
                continue
            if maker.key in self._nest.graph.computed:
                return
            waiting += [one for one in self._nest.reads(maker) if one not in self._nest.graph.initializers]
        self.keys.update(chain)
        self.shapes.update(shapes)

    def _starts_here(self, maker: Node) -> bool:
        """Whether a node reads the shape of something that is there."""
        if maker.op_type not in SHAPE_READERS:
            return False
        return all(self._is_there(value) for value in maker.inputs)

    def _is_there(self, value: str) -> bool:
        maker = self._nest.graph.producers.get(value)
        return value in self._given or (maker is not None and maker.key in self._taken)

    def _axes(self, maker: Node) -> tuple[Axis, ...] | None:
        """The shape of a value that is not there, from axes of the same name."""
        dims = self._types.dims(maker.inputs[0]) if maker.op_type == _SHAPE else None
        if dims is None:
            return None
        wanted = dims[self._part(maker.key)]
        found = [Axis(size=dim) if isinstance(dim, int) else self._axis_named(dim) for dim in wanted]
        return tuple(axis for axis in found if axis is not None) if None not in found else None

    def _axis_named(self, name: str) -> Axis | None:
        return self._named_axes.get(name)

    @cached_property
    def _named_axes(self) -> Mapping[str, Axis]:
        found: dict[str, Axis] = {}
        for value in self._given:
            for place, dim in enumerate(self._types.dims(value) or ()):
                if isinstance(dim, str) and dim:
                    found.setdefault(dim, Axis(value=value, axis=place))
        return found
