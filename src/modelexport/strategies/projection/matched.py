"""A graph and a run side by side, with the values that both have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.signals import GraphValues, Trace
from modelexport.strategies.projection.content import ValueIndex, data_values, match_values, rearranges


class Matched:
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
