"""Attributions that dataflow rules out.

Calls nest: what one call makes can only be read by calls that had not ended before it began. So a node is
credited to the wrong call if all that reads it had ended before that call began (a node of layer 1 that
only layer 0 uses), or if everything that it reads was made after that call had ended. This holds for every
correct attribution, whatever the model does; a shared node is consistent if one of its owners is.
"""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.analysis.findings import Finding, error
from modelexport.graph.index import Graph, Node
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Provenance

Owners = tuple[ModuleCall, ...]


def contradictions(provenance: Provenance, graph: Graph) -> Iterator[Finding]:
    order = _CallOrder(provenance.hierarchy)
    for node in graph.nodes:
        owners = _owners(provenance, node)
        readers = [_owners(provenance, reader) for reader in graph.successors(node)]
        if owners and readers and all(order.ended_before(reader, owners) for reader in readers):
            yield _finding(node, owners, readers[0], "all that use it had ended before")
            continue
        # Constants and shapes may be computed anywhere, for anyone: only data has a time.
        makers = [_owners(provenance, maker) for maker in graph.predecessors(node) if maker.key in graph.computed]
        if owners and makers and all(order.ended_before(owners, maker) for maker in makers):
            yield _finding(node, owners, makers[0], "all that it reads was made later")


class _CallOrder:
    """Which calls had ended when others began."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._began = {site.call: place for place, site in enumerate(hierarchy.calls)}

    def ended_before(self, first: Owners, second: Owners) -> bool:
        """Whether every call of `first` had ended before any of `second` began."""
        pairs = [(early, late) for early in first for late in second]
        return bool(pairs) and all(self._is_earlier(early, late) for early, late in pairs)

    def _is_earlier(self, early: ModuleCall, late: ModuleCall) -> bool:
        if early not in self._began or late not in self._began:
            return False  # a module that ran without being called has no known time
        for one, other in zip(self._hierarchy.stack(early), self._hierarchy.stack(late), strict=False):
            if one != other:
                return self._began[one] < self._began[other]
        return False


def _owners(provenance: Provenance, node: Node) -> Owners:
    entry = provenance.nodes.get(node.key)
    return () if entry is None else entry.attribution.owners


def _finding(node: Node, owners: Owners, others: Owners, why: str) -> Finding:
    credited, seen = " and ".join(map(_named, owners)), " and ".join(map(_named, others))
    return error("dataflow", node.key, f"{node.op_type} is credited to {credited}, but {why}: {seen}")


def _named(call: ModuleCall) -> str:
    return str(call) or "the root module"
