"""Enclosure: whose work a node lies in, told by the shown nodes that read it. A fixpoint, against the dataflow.

What a module computes for itself alone is its own: sizes, axes, constants and masks, none of which has numbers that
tell. A node that is shown so shows those before it in turn:

    x ─► Shape ─► Gather ─► Concat ─► Reshape (proved: attention)      Concat, then Gather, then Shape: attention's

Sizes and constants that several modules need are in the graph once. They were there when the first of their readers
ran, so they are the work of that one:

    Gather ─┬─► Concat (shown: layer.0)
            └─► Concat (shown: layer.1)                                Gather: layer.0's
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from modelexport.graph.index import Graph, Node
from modelexport.record.hierarchy import ModuleCall

_Calls = frozenset[ModuleCall]

READ_BY_ITS_MODULE = "all that reads it is its module's work"
READ_FIRST_BY_ITS_MODULE = "its module is the first that reads it"


class Enclosure:
    """The shown nodes of one graph, and those that they enclose.

    owners  what each node is credited to, by key
    shown   keys of the nodes whose owners values have shown
    """

    def __init__(self, graph: Graph, owners: Mapping[str, _Calls], shown: Collection[str]) -> None:
        self._graph, self._owners = graph, owners
        self._shown = set(shown)
        self._returned = frozenset(value for values in graph.body_outputs.values() for value in values)

    def extend(self, candidates: Collection[str], shareable: Collection[str]) -> dict[str, str]:
        """The candidates that are enclosed, by key, each with how.

        shareable  keys of nodes that make nothing from what the model is fed: sizes, constants, and copies
        """
        waiting = [node for node in reversed(self._graph.running_order) if node.key in candidates]
        enclosed: dict[str, str] = {}
        while True:
            before = len(enclosed)
            for node in waiting:
                reason = "" if node.key in enclosed else self._reason(node, node.key in shareable)
                if reason:
                    enclosed[node.key] = reason
                    self._shown.add(node.key)
            if len(enclosed) == before:
                return enclosed

    def _reason(self, node: Node, is_shareable: bool) -> str:
        """How its readers enclose a node; empty if they do not."""
        owners = self._owners[node.key]
        readers = sorted(set(self._graph.successors(node)), key=lambda reader: reader.position)
        shown = [self._owners[reader.key] for reader in readers if reader.key in self._shown]
        if not owners or not owners <= _union(shown):
            return ""
        is_private = len(shown) == len(readers) and self._returned.isdisjoint(node.outputs)
        if is_private and not any(owners.isdisjoint(calls) for calls in shown):
            return READ_BY_ITS_MODULE
        is_first = readers[0].key in self._shown and not owners.isdisjoint(self._owners[readers[0].key])
        return READ_FIRST_BY_ITS_MODULE if is_shareable and is_first else ""


def _union(sets: Iterable[_Calls]) -> _Calls:
    return frozenset().union(*sets)
