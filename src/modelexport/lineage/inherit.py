"""Inheritance: what was known of the nodes before, carried along links to the nodes after.

A node belongs to all modules that its sources belonged to, is never surer than they were, and is never credited to one
of several alone:

    before    MatMul: layers.0.fc (exact)    Relu: layers.0.act (strong)
    after     FusedMatMul ◄── MatMul, Relu:  layers.0.fc, layers.0.act (strong), ancestor layers.0

- `inherit_record` does this for a whole record, for `relink`.
- `carry_claims` does it for the claims of a strategy, along the links of an exporter's own optimizer.
- `claim_folded_modules` adds modules that an exporter folded away with all their nodes.
- `ConstantOrigins` says what an initializer has replaced: other initializers, or nodes (constant folding).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import Graph, Node
from modelexport.lineage.matching import Matching
from modelexport.lineage.value_classes import NO_CLASS
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


def inherit_record(record: Provenance, lineage: Lineage, graph: Graph, tool: str) -> Provenance:
    """The record of `graph`, from the record of the graph that `tool` made it from."""
    carrier = RecordCarrier(record, lineage, tool)
    nodes = {node.key: carrier.carry_node(node) for node in graph.nodes}
    weights = {name: carrier.carry_weight(name, graph, nodes) for name in graph.initializers}
    origin = replace(record.origin, graph=graph.fingerprint)
    # The edges would be those of the graph before.
    return replace(record, nodes=nodes, initializers=weights, origin=origin, edges=None)


class RecordCarrier:
    def __init__(self, record: Provenance, lineage: Lineage, tool: str) -> None:
        self._record, self._lineage, self._tool = record, lineage, tool

    def carry_node(self, node: Node) -> NodeEntry:
        link = self._lineage.nodes.get(node.key)
        attribution = unattributed(_NO_SOURCE) if link is None else self._carry_link(link)
        return NodeEntry(node.key, node.name, node.op_type, attribution)

    def _carry_link(self, link: Link) -> Attribution:
        sources = [self._record.nodes[key].attribution for key in link.sources if key in self._record.nodes]
        if link.relation in _UNCHANGED and len(sources) == 1 and link.confidence is Confidence.EXACT:
            return sources[0]
        return self._join_attributions(sources, link)

    def carry_weight(self, name: str, graph: Graph, nodes: Mapping[str, NodeEntry]) -> Attribution:
        """What it has replaced; else what it was computed by; else it belongs to what reads it."""
        replaced = [self._record.initializers[origin] for origin in self._lineage.stands_for.get(name, ())]
        if not replaced and name in self._record.initializers:
            return self._record.initializers[name]
        if replaced:
            return self._join_attributions(replaced, Link((), Relation.RENAMED, Confidence.STRONG))
        if name in self._lineage.initializers:
            return self._carry_link(self._lineage.initializers[name])
        readers = [nodes[node.key].attribution for node in graph.consumers.get(name, ())]
        link = Link((), Relation.INTRODUCED, Confidence.INFERRED)
        return self._join_attributions(readers, link) if readers else unattributed(_NOBODY_READS)

    def _join_attributions(self, sources: Sequence[Attribution], link: Link) -> Attribution:
        known = [source for source in sources if source.owners]
        # A quantizer that is one with the operator behind it is that one's part. By itself it stays what it is.
        working = [source for source in known if not is_introduced(source)]
        known, link = (working, link) if working else (known, replace(link, relation=Relation.INTRODUCED))
        if not known:
            return unattributed(next((source.reason for source in sources), "") or _NO_SOURCE)
        owners = tuple(dict.fromkeys(owner for source in known for owner in source.owners))
        # A source that nobody knows may have been another module's.
        unsure = Confidence.EXACT if all(source.owners for source in sources) else Confidence.STRONG
        kinds = _one_per_kind(item for source in known for item in reversed(source.evidence))
        return Attribution(
            owners=owners,
            ancestor=self._record.hierarchy.common_ancestor(owners),
            confidence=min(link.confidence, unsure, *(source.confidence for source in known)),
            evidence=(*kinds, Evidence(EvidenceKind.LINEAGE, self._tool, str(link))),
            role=_common_value(source.role for source in known) or "",
            layer_id=_common_value(source.layer_id for source in known),
        )


def _one_per_kind(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """One piece of evidence of each kind, the last: a dozen details help nobody."""
    return tuple(sorted({(item.kind, item.source): item for item in evidence}.values()))


def _common_value(values: Iterable[_T]) -> _T | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def carry_claims(claims: Mapping[str, Claim], links: Mapping[str, Link], tool: str) -> dict[str, Claim]:
    carried: dict[str, Claim] = {}
    for key, link in links.items():
        sources = [claims[source] for source in link.sources if source in claims]
        if sources:
            carried[key] = _join_claims(sources, link, tool)
    return carried


def _join_claims(sources: list[Claim], link: Link, tool: str) -> Claim:
    if link.relation is Relation.KEPT:
        return sources[0]
    owners = dict.fromkeys(owner for claim in sources for owner in claim.owners)
    lineage = Evidence(EvidenceKind.LINEAGE, tool, f"{link.relation} from {len(link.sources)}")
    # What a rewrite brought along nobody named, and a source that nobody knows may have been another module's.
    derived = link.relation is Relation.INTRODUCED or len(sources) < len(link.sources)
    confidence = min(*(claim.confidence for claim in sources), Confidence.STRONG if derived else Confidence.EXACT)
    kinds = _one_per_kind(item for claim in reversed(sources) for item in claim.evidence)
    return Claim(tuple(owners), confidence, (*kinds, lineage), sources[0].strategy)


def claim_folded_modules(
    claims: Mapping[str, Claim],
    links: Mapping[str, Link],
    before: Mapping[str, Claim],
    folded_paths: set[str],
    tool: str,
) -> dict[str, Claim]:
    """Claims of nodes (or initializers) that modules were folded into, with those modules added as owners.

    TorchScript fuses and folds before anything can be seen, so a module can vanish with all its nodes. The same export
    with folding switched off still shows them; `links` lead from the one to the other:

        folding off    x ──► Conv (conv) ──► BatchNormalization (bn) ──► y
        folding on     x ──► Conv (conv) ──► y                               Conv: conv, bn

    before        claims on the export without folding
    folded_paths  modules that have no node in the export with folding
    """
    changed: dict[str, Claim] = {}
    for key, link in links.items():
        sources = [before[source] for source in link.sources if source in before]
        folded = [claim for claim in sources if any(call.path in folded_paths for call in claim.owners)]
        if folded:
            claim = claims.get(key)
            if claim is None or claim.confidence is Confidence.INFERRED:
                # What dataflow guessed of a folded constant gives way to what it was computed by.
                claim = sources[0]
            added = [call for source in folded for call in source.owners if call.path in folded_paths]
            changed[key] = Claim(
                owners=tuple(dict.fromkeys((*claim.owners, *added))),
                confidence=min(Confidence.STRONG, *(item.confidence for item in (claim, *folded))),
                evidence=(*claim.evidence, Evidence(EvidenceKind.LINEAGE, tool, link.relation)),
                strategy=claim.strategy,
            )
    return changed


class ConstantOrigins:
    """What the constants of the graph after have replaced. The nodes that read them tell; these are linked already.

    before    w ──► Transpose ──► t ──► MatMul          after    w_t ──► MatMul          w_t: folded from Transpose
    before    w, b ──► Conv, scale ──► BatchNorm        after    w2, b2 ──► Conv         w2, b2: stand for w, b, scale
    """

    def __init__(self, matching: Matching, nodes: Mapping[str, Link]) -> None:
        self._before, self._after = matching.before, matching.after
        self._anchors = matching.anchors
        self._still_there = matching.anchors.classes_still_there()
        self._replaced: dict[str, dict[str, None]] = {}
        self._mixed: dict[str, dict[str, None]] = {}
        for node in self._after.graph.nodes:
            for name, origin in self._pair_replaced(node, nodes[node.key]):
                self._replaced.setdefault(name, {})[origin] = None
            for name, origin in self._pair_mixed(node, nodes[node.key]):
                self._mixed.setdefault(name, {})[origin] = None

    def stands_for(self) -> dict[str, tuple[str, ...]]:
        """By initializer after: those before that it copies or was made from, unless that is the one of its name."""
        names_of: dict[int, list[str]] = {}
        gone: set[str] = set()  # initializers that the graph after does not have under their names
        for name in self._before.graph.initializers:
            names_of.setdefault(self._before.class_of[name], []).append(name)
            if self._anchors.get(self._after.class_of.get(name, NO_CLASS)) != self._before.class_of[name]:
                gone.add(name)
        origins: dict[str, tuple[str, ...]] = {}
        for name in self._after.graph.initializers:
            same = names_of.get(self._anchors.get(self._after.class_of[name]), [])
            kept = [name] if name in same else []
            replaced = [origin for origin in self._replaced.get(name, ()) if origin in gone]
            names = tuple(dict.fromkeys((*kept, *replaced, *self._mixed.get(name, ())))) or tuple(same)
            if names and names != (name,):
                origins[name] = names
        return origins

    def folded_from(self) -> dict[str, Link]:
        """Initializers after that stand where something was computed, with the nodes that computed it."""
        keys_of: dict[str, dict[str, None]] = {}
        for name in self._after.graph.initializers:
            for origin in self._replaced.get(name, (name,)):
                if origin in self._before.graph.producers:
                    nodes = self._slice_constants(origin)
                    keys_of.setdefault(name, {}).update(dict.fromkeys(node.key for node in nodes))
        by_key = self._before.graph.by_key
        return {
            name: Link(tuple(sorted(keys, key=lambda key: by_key[key].position)), Relation.FOLDED, Confidence.STRONG)
            for name, keys in keys_of.items()
        }

    def _pair_replaced(self, node: Node, link: Link) -> Iterator[tuple[str, str]]:
        """Constants that a node reads, each with what its sources read at the same input."""
        weights = [value for value in node.inputs if value in self._after.graph.initializers]
        if not weights or link.relation is Relation.INTRODUCED:
            return
        sources = [self._before.graph.by_key[key] for key in link.sources]
        alike = [source for source in sources if source.op_type == node.op_type]
        if link.relation is not Relation.SHARED and len(alike) > 1:
            alike = [source for source in alike if source.key == node.key]
        for source in alike:
            for name, origin in zip(node.inputs, source.inputs, strict=False):
                if origin and name in weights and self._can_replace(name, origin, node, source):
                    yield name, origin

    def _pair_mixed(self, node: Node, link: Link) -> Iterator[tuple[str, str]]:
        """Weights that a fused node brought along, each with the weights of its sources, if any of those is gone."""
        sources = [self._before.graph.by_key[key] for key in link.sources] if link.relation is Relation.FUSED else []
        origins = [value for source in sources for value in source.inputs if self._is_weight(value)]
        if any(self._before.class_of[value] not in self._still_there for value in origins):
            names = [value for value in node.inputs if value in self._after.graph.initializers]
            unknown = (value for value in names if self._after.class_of[value] not in self._anchors)
            yield from ((name, origin) for name in unknown for origin in origins)

    def _can_replace(self, name: str, origin: str, node: Node, source: Node) -> bool:
        """Whether two values at the same input may be one: positions mean nothing to a commutative operator."""
        known, class_before = self._anchors.get(self._after.class_of[name]), self._before.class_of[origin]
        source_inputs = self._before.inputs(source)
        if known != class_before and known in source_inputs:
            return False
        fixed = class_before in self._before.constants or class_before in self._before.foldable
        if fixed or origin not in self._before.graph.computed:
            return True
        others = {self._anchors.get(class_id) for class_id in self._after.data_inputs(node)}
        return class_before not in others and others <= set(source_inputs)

    def _is_weight(self, value: str) -> bool:
        tensor = self._before.graph.initializers.get(value)
        return tensor is not None and math.prod(tensor.shape) > 1

    def _slice_constants(self, value: str) -> list[Node]:
        """The node that made a value, and those before it as far back as nothing but constants is read."""
        graph = self._before.graph

        def step(node: Node) -> Iterator[Node]:
            # A literal is data, not work: several modules may share one.
            working = (producer for producer in graph.predecessors(node) if producer.inputs)
            return (producer for producer in working if producer.key not in graph.computed)

        return backward_slice([graph.producers[value]], step)
