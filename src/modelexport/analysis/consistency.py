"""Attributions that dataflow rules out.

Calls nest, so what one call makes can only be read by calls that had not ended before it began. An edge that goes
back in time (a node credited to layer 1 that layer 0 uses) means that one of its two ends is credited wrongly:
the one with the larger share of such edges, or else the one that is known less well. This holds for every correct
attribution, whatever the model does; a shared node is consistent if one of its owners is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from modelexport.analysis.findings import Finding, error
from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Confidence
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Provenance

Owners = tuple[ModuleCall, ...]


@dataclass(frozen=True, slots=True)
class _Edge:
    maker: Node
    reader: Node


def contradictions(provenance: Provenance, graph: Graph) -> Iterator[Finding]:
    """One finding for each node that must be credited wrongly."""
    order = _CallOrder(provenance.hierarchy)
    edges = [_Edge(maker, reader) for maker in graph.nodes for reader in graph.successors(maker)]
    wrong = [
        edge for edge in edges if order.goes_back(_owners(provenance, edge.maker), _owners(provenance, edge.reader))
    ]
    blame = _Blame(provenance, edges, wrong)
    found: dict[str, _Edge] = {}
    for edge in wrong:
        found.setdefault(blame.node(edge).key, edge)
    for key, edge in found.items():
        yield error("dataflow", key, _message(provenance, edge))


class _CallOrder:
    """Which calls had ended when others began."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._began = {site.call: place for place, site in enumerate(hierarchy.calls)}

    def goes_back(self, maker: Owners, reader: Owners) -> bool:
        """Whether every call of the reader had ended before any of the maker's began."""
        pairs = [(early, late) for early in reader for late in maker]
        return bool(pairs) and all(self._is_earlier(early, late) for early, late in pairs)

    def _is_earlier(self, early: ModuleCall, late: ModuleCall) -> bool:
        if early not in self._began or late not in self._began:
            return False  # a module that ran without being called has no known time
        for one, other in zip(self._hierarchy.stack(early), self._hierarchy.stack(late), strict=False):
            if one != other:
                return self._began[one] < self._began[other]
        return False


class _Blame:
    def __init__(self, provenance: Provenance, edges: list[_Edge], wrong: list[_Edge]) -> None:
        self._provenance = provenance
        self._all = _ends(edges)
        self._wrong = _ends(wrong)

    def node(self, edge: _Edge) -> Node:
        return max(edge.maker, edge.reader, key=self._suspicion)

    def _suspicion(self, node: Node) -> tuple[float, int]:
        entry = self._provenance.nodes.get(node.key)
        confidence = Confidence.NONE if entry is None else entry.attribution.confidence
        return self._wrong[node.key] / self._all[node.key], -confidence


def _ends(edges: list[_Edge]) -> Counter[str]:
    return Counter(node.key for edge in edges for node in (edge.maker, edge.reader))


def _owners(provenance: Provenance, node: Node) -> Owners:
    entry = provenance.nodes.get(node.key)
    return () if entry is None else entry.attribution.owners


def _message(provenance: Provenance, edge: _Edge) -> str:
    maker, reader = (_described(provenance, node) for node in (edge.maker, edge.reader))
    return f"{maker} is read by {reader}, which had ended before"


def _described(provenance: Provenance, node: Node) -> str:
    modules = " and ".join(str(call) or "the root" for call in _owners(provenance, node))
    return f"{node.op_type} {node.key!r} of {modules}"
