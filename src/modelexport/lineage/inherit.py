"""The record of a graph, from the record of the graph that it was made from.

A node belongs to all modules that its sources belonged to, is never surer than they were, and never credited to one of
several alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Attribution, Confidence, Evidence, EvidenceKind, unattributed
from modelexport.record.lineage import Lineage, Link, Relation, is_introduced
from modelexport.record.provenance import NodeEntry, Provenance

_T = TypeVar("_T")
_UNCHANGED = (Relation.KEPT, Relation.RENAMED)
_NO_SOURCE = "nothing in the graph before explains it"
_NOBODY_READS = "no node reads it"


def inherited(record: Provenance, lineage: Lineage, graph: Graph, tool: str) -> Provenance:
    """What is known about `graph`. `tool` is who made it, for the evidence."""
    heir = _Heir(record, lineage, tool)
    nodes = {node.key: heir.entry(node) for node in graph.nodes}
    weights = {name: heir.weight(name, graph, nodes) for name in graph.initializers}
    origin = replace(record.origin, graph=graph.fingerprint)
    return replace(record, nodes=nodes, initializers=weights, origin=origin, edges=None)


class _Heir:
    def __init__(self, record: Provenance, lineage: Lineage, tool: str) -> None:
        self._record = record
        self._lineage = lineage
        self._tool = tool

    def entry(self, node: Node) -> NodeEntry:
        link = self._lineage.nodes.get(node.key)
        found = unattributed(_NO_SOURCE) if link is None else self._node(link)
        return NodeEntry(node.key, node.name, node.op_type, found)

    def _node(self, link: Link) -> Attribution:
        sources = [self._record.nodes[key].attribution for key in link.sources if key in self._record.nodes]
        if link.relation in _UNCHANGED and len(sources) == 1 and link.confidence is Confidence.EXACT:
            return sources[0]
        return self._joined(sources, link)

    def weight(self, name: str, graph: Graph, nodes: Mapping[str, NodeEntry]) -> Attribution:
        """What it took the place of; else what it was computed by; else it belongs to what reads it."""
        same = [self._record.initializers[one] for one in self._lineage.stands_for.get(name, ())]
        if not same and name in self._record.initializers:
            return self._record.initializers[name]
        if same:
            return self._joined(same, Link((), Relation.RENAMED, Confidence.STRONG))
        if name in self._lineage.initializers:
            return self._node(self._lineage.initializers[name])
        readers = [nodes[node.key].attribution for node in graph.consumers.get(name, ())]
        if not readers:
            return unattributed(_NOBODY_READS)
        return self._joined(readers, Link((), Relation.INTRODUCED, Confidence.INFERRED))

    def _joined(self, sources: Sequence[Attribution], link: Link) -> Attribution:
        known = [source for source in sources if source.owners]
        # A quantizer that is one with the operator behind it is that one's part. By itself it stays what it is.
        working = [source for source in known if not is_introduced(source)]
        known, link = (working, link) if working else (known, replace(link, relation=Relation.INTRODUCED))
        if not known:
            return unattributed(next((source.reason for source in sources), "") or _NO_SOURCE)
        owners = tuple(dict.fromkeys(owner for source in known for owner in source.owners))
        # A source that nobody knows may have been another module's.
        unsure = Confidence.EXACT if all(source.owners for source in sources) else Confidence.STRONG
        return Attribution(
            owners=owners,
            ancestor=self._record.hierarchy.common_ancestor(owners),
            confidence=min(link.confidence, unsure, *(source.confidence for source in known)),
            evidence=(*_one_of_each(known), Evidence(EvidenceKind.LINEAGE, self._tool, str(link))),
            role=_common(source.role for source in known) or "",
            layer_id=_common(source.layer_id for source in known),
        )


def _one_of_each(sources: Iterable[Attribution]) -> tuple[Evidence, ...]:
    """One piece of evidence of each kind: a dozen details help nobody."""
    kept = {(item.kind, item.source): item for source in sources for item in reversed(source.evidence)}
    return tuple(sorted(kept.values()))


def _common(values: Iterable[_T]) -> _T | None:
    """What all of them are."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None
