"""What is known of a file that a tool made, from the names that the tool left in it.

This is no part of the relinker, and knows nothing of it: a value that kept its name is the value of that name, and what
a node does is everything between the named values that it reads and the one that it makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from matrix.plan import PREFIX
from modelexport.graph.index import Graph, Node
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance

# Operators that hand on what they read, in another type or layout.
_PASSING = frozenset(
    {
        "Identity",
        "Cast",
        "CastLike",
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "ReorderInput",
        "ReorderOutput",
    }
)
_LARGEST = 500

Values = Mapping[str, np.ndarray]


def is_passing(node: Node) -> bool:
    return node.op_type in _PASSING


def _varying(graph: Graph) -> frozenset[str]:
    """Values that depend on what the model is given, if only on its shape."""
    found = set(graph.inputs) - set(graph.initializers)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(filter(None, node.outputs))
    return frozenset(found)


class Truth:
    def __init__(self, before: Graph, after: Graph, record: Provenance, values: Values) -> None:
        """
        after   with all the names that the tool left
        values  of the graph before
        """
        self._before, self._after, self._record, self._values_before = before, after, record, values

    def origin(self, node: Node) -> Node | None:
        """The node before that made the value of the same name. A cast or quantizer is not what it is put behind."""
        found = self._before.producers.get(self._name(node.key))
        other = found is not None and found.op_type != node.op_type
        return None if found is None or (other and (is_passing(found) or is_passing(node))) else found

    def origins(self, node: Node) -> set[str]:
        """The keys of all that made it: a tool may put the name of what did nothing on the node before it."""
        origin = self.origin(node)
        if origin is None:
            return set()
        same = [key for key in self.work(node) if self._numbers(key) == self._numbers(origin.key) is not None]
        return {origin.key, *same}

    def modules(self, node: Node) -> set[ModuleCall]:
        """The modules that may be named for a node; none if names do not tell.

        Of the same operator, that of the node before, or the one around all that it took over; of another, the latter.
        """
        whole = self.work(node)
        told = [[key] for key in self.origins(node) if self._before.by_key[key].op_type == node.op_type]
        told += [whole] if whole else []
        return {call for call in map(self._module, told) if call is not None}

    def are_merged(self, node: Node, sources: Sequence[str]) -> bool:
        """Whether all that a node is said to stand for made the same as the true one, and is gone otherwise."""
        origin = self.origin(node)
        return origin is not None and {origin.key, *self._merged(origin.key)}.issuperset(sources)

    def owners(self, node: Node) -> frozenset[ModuleCall]:
        """Every module that a node works for; none if names do not tell. What did nothing is nobody's work."""
        return frozenset(self._owners(key for key in self.work(node) if not self._is_idle(key)))

    def work(self, node: Node) -> list[str]:
        """The nodes before, by key, between what a node reads and what it makes. Nothing where a name is missing."""
        origin = self.origin(node)
        # Of a node that works on shapes, all that goes on is of interest; of others, what happens to the data.
        on_data = node.key in self._after.computed
        before, after = (self._before.computed, self._after.computed) if on_data else self._varying

        read = {self._known(value) for value in node.inputs if value in after}
        if origin is None or None in read:
            return []
        found: dict[str, None] = {}
        waiting = [origin]
        while waiting:
            one = waiting.pop()
            if one.key in found:
                continue
            found[one.key] = None
            above = [value for value in one.inputs if value in before and value not in read]
            if len(found) > _LARGEST or any(value not in self._before.producers for value in above):
                return []  # the tool computes it from something else
            waiting += (self._before.producers[value] for value in above)
        return list(found)

    def _merged(self, key: str) -> Iterator[str]:
        """Nodes that made the same as another in the same way, and whose names are gone."""
        for other in self._equal.get((self._before.by_key[key].op_type, self._numbers(key)), ()):
            if other != key and other not in self._names_after:
                yield other

    @cached_property
    def _equal(self) -> dict[tuple[str, bytes | None], list[str]]:
        found: dict[tuple[str, bytes | None], list[str]] = {}
        for node in self._before.nodes:
            if node.key in self._values_before:
                found.setdefault((node.op_type, self._numbers(node.key)), []).append(node.key)
        return found

    @cached_property
    def _varying(self) -> tuple[frozenset[str], frozenset[str]]:
        return _varying(self._before), _varying(self._after)

    @cached_property
    def _names_after(self) -> frozenset[str]:
        return frozenset(map(self._name, self._after.producers))

    def _is_idle(self, key: str) -> bool:
        """Whether a node made the numbers that it read."""
        made = self._numbers(key)
        return made is not None and any(self._numbers(value) == made for value in self._before.by_key[key].inputs)

    def _numbers(self, key: str) -> bytes | None:
        """What a node made, or any other value, whatever its shape; None if that is not known."""
        array = self._values_before.get(key)
        return None if array is None else array.dtype.str.encode() + array.tobytes()

    def _known(self, value: str) -> str | None:
        """The value before of the same name, looked for behind casts and quantizers."""
        while self._name(value) not in self._values:
            maker = self._after.producers.get(value)
            if maker is None or not is_passing(maker):
                return None
            value = maker.inputs[0]
        return self._name(value)

    @cached_property
    def _values(self) -> frozenset[str]:
        return frozenset((*self._before.producers, *self._before.inputs, *self._before.initializers))

    def _name(self, value: str) -> str:
        return value.removeprefix(PREFIX)

    def _module(self, keys: Iterable[str]) -> ModuleCall | None:
        owners = set(self._owners(keys))
        return self._record.hierarchy.common_ancestor(owners) if owners else None

    def _owners(self, keys: Iterable[str]) -> Iterator[ModuleCall]:
        for key in keys:
            yield from self._record.nodes[key].attribution.owners
