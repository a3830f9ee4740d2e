"""What is known of a file that a tool made, from the names that the tool left in it.

This is no part of the relinker, and knows nothing of it: a value that kept its name is the value of that name, and what
a node does is everything between the named values that it reads and the one that it makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

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


def is_passing(node: Node) -> bool:
    return node.op_type in _PASSING


class Truth:
    def __init__(self, before: Graph, after: Graph, record: Provenance) -> None:
        """after  with all the names that the tool left"""
        self._before, self._after, self._record = before, after, record

    def origin(self, node: Node) -> Node | None:
        """The node before that made the value of the same name. A cast or quantizer is not what it is put behind."""
        found = self._before.producers.get(self._name(node.key))
        if found is None or is_passing(found) != is_passing(node):
            return None
        return found

    def modules(self, node: Node) -> set[ModuleCall]:
        """The modules that may be named for a node; none if names do not tell.

        Of the same operator, that of the node before, or the one around all that it took over; of another, the latter.
        """
        origin = self.origin(node)
        if origin is None:
            return set()
        whole = self.work(node)
        told = [self._module([origin.key])] if origin.op_type == node.op_type else []
        told += [self._module(key for key in whole)] if whole else []
        return {call for call in told if call is not None}

    def owners(self, node: Node) -> frozenset[ModuleCall]:
        """Every module that a node works for; none if names do not tell."""
        return frozenset(self._owners(self.work(node)))

    def work(self, node: Node) -> list[str]:
        """The nodes before, by key, between what a node reads and what it makes. Nothing where a name is missing."""
        origin = self.origin(node)
        read = {self._known(value) for value in node.inputs if value in self._after.computed}
        if origin is None or None in read:
            return []
        found: dict[str, None] = {}
        waiting = [origin]
        while waiting:
            one = waiting.pop()
            if one.key in found:
                continue
            found[one.key] = None
            above = [value for value in one.inputs if value in self._before.computed and value not in read]
            if len(found) > _LARGEST or any(value not in self._before.producers for value in above):
                return []  # the tool computes it from something else
            waiting += (self._before.producers[value] for value in above)
        return list(found)

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
