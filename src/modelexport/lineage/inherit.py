"""The record of a graph, from the record of the graph that it was made from.

A node belongs to all modules that its sources belonged to, is never surer than they were, and never credited to one of
several alone.

Carrying claims along links: a node belongs to the modules that its sources belonged to, and is never surer.

Finding a place for modules that an exporter folded away.

TorchScript fuses and folds before anything can be seen, so a module can vanish with all its nodes. The same export with
folding switched off still shows them; following those nodes to where they went tells what the module became part of.

What the constants of a graph took the place of: other constants, or what was computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from modelexport.graph.index import Graph, Node
from modelexport.lineage.matching import Matching
from modelexport.record.lineage import Lineage, Link, Relation, is_introduced
from modelexport.record.provenance import (
    Attribution,
    Claim,
    Confidence,
    Evidence,
    EvidenceKind,
    NodeEntry,
    Provenance,
    unattributed,
)

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


def carry(claims: Mapping[str, Claim], links: Mapping[str, Link], tool: str) -> dict[str, Claim]:
    """Claims for the graph after, from claims on the graph before."""
    carried: dict[str, Claim] = {}
    for key, link in links.items():
        sources = [claims[source] for source in link.sources if source in claims]
        if sources:
            carried[key] = _carried(sources, link, tool)
    return carried


def _carried(sources: list[Claim], link: Link, tool: str) -> Claim:
    if link.relation is Relation.KEPT:
        return sources[0]
    owners = dict.fromkeys(owner for claim in sources for owner in claim.owners)
    lineage = Evidence(EvidenceKind.LINEAGE, tool, f"{link.relation} from {len(link.sources)}")
    # What a rewrite brought along nobody named, and a source that nobody knows may have been another module's.
    derived = link.relation is Relation.INTRODUCED or len(sources) < len(link.sources)
    confidence = min(*(claim.confidence for claim in sources), Confidence.STRONG if derived else Confidence.EXACT)
    return Claim(tuple(owners), confidence, (*_kinds(sources), lineage), sources[0].strategy)


def _kinds(sources: list[Claim]) -> tuple[Evidence, ...]:
    """One piece of evidence of each kind: a dozen details help nobody."""
    kept = {(evidence.kind, evidence.source): evidence for claim in reversed(sources) for evidence in claim.evidence}
    return tuple(sorted(kept.values()))


def adopt(
    claims: Mapping[str, Claim],
    links: Mapping[str, Link],
    before: Mapping[str, Claim],
    orphans: set[str],
    tool: str,
) -> dict[str, Claim]:
    """Claims of nodes (or initializers) that orphaned modules have become part of, with those added as owners."""
    changed: dict[str, Claim] = {}
    for key, link in links.items():
        sources = [before[source] for source in link.sources if source in before]
        givers = [claim for claim in sources if any(call.path in orphans for call in claim.owners)]
        if givers:
            claim = claims.get(key)
            if claim is None or claim.confidence is Confidence.INFERRED:
                # What dataflow guessed of a folded constant gives way to what it was computed by.
                claim = sources[0]
            added = [call for giver in givers for call in giver.owners if call.path in orphans]
            changed[key] = Claim(
                owners=tuple(dict.fromkeys((*claim.owners, *added))),
                confidence=min(Confidence.STRONG, *(item.confidence for item in (claim, *givers))),
                evidence=(*claim.evidence, Evidence(EvidenceKind.LINEAGE, tool, link.relation)),
                strategy=claim.strategy,
            )
    return changed


class ConstantHeirs:
    """Told by the nodes that read them, which are linked already."""

    def __init__(self, matching: Matching, nodes: Mapping[str, Link]) -> None:
        self._before, self._after = matching.before, matching.after
        self._anchors = matching.anchors
        self._alive = frozenset(matching.anchors.known.values())
        self._replaced: dict[str, dict[str, None]] = {}
        self._mixed: dict[str, dict[str, None]] = {}
        for node in self._after.graph.nodes:
            for now, was in self._replacements(node, nodes[node.key]):
                self._replaced.setdefault(now, {})[was] = None
            for now, was in self._mixtures(node, nodes[node.key]):
                self._mixed.setdefault(now, {})[was] = None

    def stands_for(self) -> dict[str, tuple[str, ...]]:
        """By the name of an initializer after: those before that it is a copy of or was made from, unless it is just
        the one of its name."""
        held: dict[int, list[str]] = {}
        for name in self._before.graph.initializers:
            held.setdefault(self._before.of[name], []).append(name)
        found: dict[str, tuple[str, ...]] = {}
        for name in self._after.graph.initializers:
            same = held.get(self._anchors.get(self._after.of[name]), [])
            kept = [name] if name in same else []
            others = filter(self._is_gone, self._replaced.get(name, ()))
            names = tuple(dict.fromkeys((*kept, *others, *self._mixed.get(name, ())))) or tuple(same)
            if names and names != (name,):
                found[name] = names
        return found

    def folded(self) -> dict[str, Link]:
        """Initializers after that stand where something was computed, with the nodes that computed it."""
        found: dict[str, dict[str, None]] = {}
        for name in self._after.graph.initializers:
            for was in self._replaced.get(name, (name,)):
                if was in self._before.graph.producers:
                    found.setdefault(name, {}).update(dict.fromkeys(self._computed_by(was)))
        by_key = self._before.graph.by_key
        return {
            name: Link(tuple(sorted(keys, key=lambda key: by_key[key].position)), Relation.FOLDED, Confidence.STRONG)
            for name, keys in found.items()
        }

    def _replacements(self, node: Node, link: Link) -> Iterator[tuple[str, str]]:
        """Constants that a node reads, each with what its sources read in its place."""
        weights = [value for value in node.inputs if value in self._after.graph.initializers]
        if not weights or link.relation is Relation.INTRODUCED:
            return
        sources = [self._before.graph.by_key[key] for key in link.sources]
        alike = [source for source in sources if source.op_type == node.op_type]
        if link.relation is not Relation.SHARED and len(alike) > 1:
            alike = [source for source in alike if source.key == node.key]
        for origin in alike:
            for now, was in zip(node.inputs, origin.inputs, strict=False):
                if was and now in weights and self._can_replace(now, was, node, origin):
                    yield now, was

    def _mixtures(self, node: Node, link: Link) -> Iterator[tuple[str, str]]:
        """Weights that a fused node brought along, each with the weights of its sources, if any of those is gone."""
        sources = [self._before.graph.by_key[key] for key in link.sources] if link.relation is Relation.FUSED else []
        theirs = [value for source in sources for value in source.inputs if self._is_weight(value)]
        if any(self._before.of[value] not in self._alive for value in theirs):
            mine = [value for value in node.inputs if value in self._after.graph.initializers]
            strange = (value for value in mine if self._after.of[value] not in self._anchors)
            yield from ((now, was) for now in strange for was in theirs)

    def _can_replace(self, now: str, was: str, node: Node, origin: Node) -> bool:
        """Whether two values in the same place may be one: the places mean nothing where inputs are interchangeable."""
        known, place = self._anchors.get(self._after.of[now]), self._before.of[was]
        theirs = self._before.inputs(origin)
        if known != place and known in theirs:
            return False
        if self._is_constant(was):
            return True
        others = {self._anchors.get(one) for one in self._after.data_inputs(node)}
        return place not in others and others <= set(theirs)

    def _is_constant(self, value: str) -> bool:
        """Whether a value does not depend on what the model is fed."""
        place = self._before.of[value]
        fixed = place in self._before.constants or place in self._before.fixed
        return fixed or value not in self._before.graph.computed

    def _is_gone(self, name: str) -> bool:
        """Whether it is an initializer before, and none that the graph after has under its name."""
        if name not in self._before.graph.initializers:
            return False
        return name not in self._after.of or self._anchors.get(self._after.of[name]) != self._before.of[name]

    def _is_weight(self, value: str) -> bool:
        tensor = self._before.graph.initializers.get(value)
        return tensor is not None and math.prod(tensor.shape) > 1

    def _computed_by(self, value: str) -> Iterable[str]:
        """The node that made a value, and those before it as far back as nothing but constants is read."""
        graph = self._before.graph
        found: dict[str, None] = {}
        waiting = [graph.producers[value]]
        while waiting:
            node = waiting.pop()
            if node.key not in found:
                found[node.key] = None
                # A literal is data, not work: several modules may share one.
                near = [one for one in graph.predecessors(node) if one.inputs]
                waiting += (one for one in near if one.key not in graph.computed)
        return found
