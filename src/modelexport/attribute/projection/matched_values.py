"""A graph and a run side by side, with the values that both have.

Which values of a run and which values of an ONNX graph hold the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import cached_property

from modelexport.graph.fingerprint import distance
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.signals import Fingerprint, GraphValues, Trace

# Two kernels that do the same arithmetic differ by some 1e-6 of a tensor's size, after dozens of layers by some 1e-5;
# 16-bit floats by some 1e-3. Values of other origin differ by far more than this.
_TOLERANCE = 2e-3
# The nearest value is meant if the next one is this many times as far away.
_FAR = 20.0
_NOISE = 1e-6
# What was only copied is equal but for the order in which a sketch was summed up.
_COPIED = 1e-9


class ValueIndex:
    """The values of a trace, by content. The order of elements counts, their arrangement in a shape does not."""

    def __init__(self, trace: Trace) -> None:
        self._prints = trace.values
        self._exact: dict[tuple[str, bytes], list[int]] = {}
        self._floats: dict[int, list[tuple[float, int]]] = {}
        for number, print_ in enumerate(trace.values):
            if print_.kind == "float":
                self._floats.setdefault(size_of(print_), []).append((print_.sketch[0], number))
            elif print_.digest:
                self._exact.setdefault((print_.kind, print_.digest), []).append(number)
        for entries in self._floats.values():
            entries.sort()

    def matches(self, print_: Fingerprint) -> tuple[int, ...]:
        """Numbers of the values that hold the same, those of the same shape if there are any."""
        found = self.alike(print_)
        return tuple(number for number in found if self._prints[number].shape == print_.shape) or found

    def alike(self, print_: Fingerprint) -> tuple[int, ...]:
        """Numbers of the values that hold the same, in whatever shape."""
        return tuple(sorted(self._near(print_) if print_.kind == "float" else self._equal(print_)))

    def copies(self, print_: Fingerprint) -> tuple[int, ...]:
        """Of those that match, the ones that were copied and not computed anew: nothing at all was folded in."""
        near = self.matches(print_)
        return tuple(number for number in near if distance(self._prints[number], print_) <= _COPIED)

    def _equal(self, print_: Fingerprint) -> list[int]:
        found = self._exact.get((print_.kind, print_.digest), [])
        return [number for number in found if size_of(self._prints[number]) == size_of(print_)]

    def _near(self, print_: Fingerprint) -> list[int]:
        entries = self._floats.get(size_of(print_), [])
        reach = _TOLERANCE * max(print_.spread, 1e-30) * 2
        first = bisect_left(entries, (print_.sketch[0] - reach, -1))
        last = bisect_right(entries, (print_.sketch[0] + reach, len(self._prints)))
        apart = {number: distance(self._prints[number], print_) for _, number in entries[first:last]}
        near = {number: far for number, far in apart.items() if far <= _TOLERANCE}
        limit = _FAR * max(min(near.values(), default=0.0), _NOISE)
        return [number for number, far in near.items() if far <= limit]


def size_of(print_: Fingerprint) -> int:
    return math.prod(print_.shape)


def match_values(index: ValueIndex, prints: Mapping[str, Fingerprint]) -> dict[str, tuple[int, ...]]:
    """For each value of a graph, the values of the run that hold the same; those with none are left out."""
    found = {name: index.matches(print_) for name, print_ in prints.items()}
    return {name: numbers for name, numbers in found.items() if numbers}


def data_values(trace: Trace) -> frozenset[int]:
    """Values of the run that depend on what the model was given."""
    found = set(trace.inputs.values())
    for op in trace.ops:
        if not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return frozenset(found)


def rearranges(trace: Trace, place: int) -> bool:
    """Whether an operator makes nothing but what it was given, in another shape."""
    op = trace.ops[place]
    made = [trace.values[value] for value in op.outputs]
    given = [trace.values[value] for value in op.inputs]
    return any(distance(a, b) == 0 for a in made for b in given if a.kind == b.kind and size_of(a) == size_of(b))


class MatchedRun:
    """Operators of the run are known by their place in its order, values of the run by number.

    nodes    the main graph's nodes; what is in bodies and functions has no values of its own
    matches  values of the graph by name, mapped to the values of the run that hold the same
    """

    def __init__(self, graph: Graph, trace: Trace, values: GraphValues) -> None:
        self.graph = graph
        self.trace = trace
        self.prints = values.prints
        self.nodes = [node for node in graph.nodes if node.graph == MAIN]
        self._index = ValueIndex(trace)
        self.matches = match_values(self._index, values.prints)

    @cached_property
    def maker(self) -> Mapping[int, int]:
        """For each value of the run, the place of the operator that made it."""
        return {value: place for place, op in enumerate(self.trace.ops) for value in op.outputs}

    def makers(self, name: str) -> list[int]:
        """Places of the operators that made what the named value holds; not those that passed it on."""
        places, passing = self._places(name)
        return [place for place in places if place not in passing] or places

    def makers_in_any_shape(self, name: str) -> set[int]:
        """Places of all operators that made what the named value holds, be it in another shape."""
        print_ = self.prints.get(name)
        numbers = () if print_ is None else self._index.alike(print_)
        return {self.maker[number] for number in numbers if number in self.maker}

    def passers(self, name: str) -> list[int]:
        """Places of the operators that were given what the named value holds, and passed it on."""
        return sorted(self._places(name)[1])

    def is_copy(self, name: str) -> bool:
        """Whether a value is just what some value of the run is, and not nearly."""
        return name in self.prints and bool(self._index.copies(self.prints[name]))

    @cached_property
    def held(self) -> frozenset[int]:
        """Values of the run that some node of the graph makes, whoever it belongs to."""
        made = (name for node in self.nodes for name in node.outputs if name in self.graph.computed)
        return frozenset(number for name in made for number in self.matches.get(name, ()))

    def passes_on(self, node: Node) -> bool:
        """Whether what a node makes is what it was given: a cast or a reshape that changes nothing."""
        made = {number for output in node.outputs for number in self.matches.get(output, ())}
        return any(not made.isdisjoint(self.matches.get(value, ())) for value in node.inputs)

    def fits(self, node: Node, place: int) -> bool:
        """Whether an exporter can have made such a node of this operator; one that nobody knows can become anything."""
        op = self.trace.ops[place]
        known = [self.trace.operators[name] for name in (op.name, op.function) if name in self.trace.operators]
        return not known or any(node.op_type in operators for operators in known)

    def fits_itself(self, node: Node, place: int) -> bool:
        """The same without the function that the operator is a part of."""
        operators = self.trace.operators.get(self.trace.ops[place].name)
        return operators is None or node.op_type in operators

    @cached_property
    def weights(self) -> frozenset[int]:
        return frozenset(self.trace.tensors.values())

    @cached_property
    def from_data(self) -> frozenset[int]:
        """Values of the run that depend on what the model was given."""
        return data_values(self.trace)

    def rearranges(self, place: int) -> bool:
        """Whether an operator makes nothing but what it was given, in another shape."""
        return rearranges(self.trace, place)

    def calls(self, places: Iterable[int]) -> set[ModuleCall]:
        return {self.trace.ops[place].call for place in places}

    def _places(self, name: str) -> tuple[list[int], set[int]]:
        same = set(self.matches.get(name, ()))
        places = sorted({self.maker[value] for value in same if value in self.maker})
        return places, {place for place in places if not same.isdisjoint(self.trace.ops[place].inputs)}
