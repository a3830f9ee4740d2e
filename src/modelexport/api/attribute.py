"""From an exporter's graph to claims on the graph that is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from modelexport.graph.index import Graph, Node
from modelexport.lineage.adopt import adopt
from modelexport.lineage.carry import carry
from modelexport.lineage.relink import relink
from modelexport.record.evidence import Claim, Confidence
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.lineage import Lineage, Relation
from modelexport.record.signals import ExporterScopes
from modelexport.strategies.dataflow import dataflow_claims, initializer_dataflow
from modelexport.strategies.enhanced_semantic import NAME, GraphClaims, enhanced_semantic
from modelexport.strategies.parameters import (
    absorbed_parameter_claims,
    folded_parameter_claims,
    initializer_claims,
    replaced_parameter_claims,
)

_TORCH_OPTIMIZER = "torch optimizer"
_TORCHSCRIPT_FOLDING = "torchscript folding"


@dataclass(frozen=True)
class Judged:
    """Claims on the written graph, and the modules that owned something before the exporter's optimizer ran."""

    claims: GraphClaims
    owned_before: set[str] | None


def judge_optimized(graph: Graph, before: Graph, hierarchy: Hierarchy, scopes: ExporterScopes) -> Judged:
    """Judge the graph before torch's optimizer, where the exporter is right, and carry the claims through it."""
    origin = enhanced_semantic(before, hierarchy, scopes)
    lineage = relink(before, graph)
    nodes = carry(origin.nodes, lineage.nodes, _TORCH_OPTIMIZER)
    nodes |= dataflow_claims(graph, hierarchy, nodes, NAME)
    initializers = carry(origin.nodes, lineage.initializers, _TORCH_OPTIMIZER)
    initializers |= folded_parameter_claims(initializers, _source_nodes(before, lineage), hierarchy)
    initializers |= initializer_claims(graph, hierarchy, NAME)
    initializers |= initializer_dataflow(graph, hierarchy, nodes, initializers, NAME)
    initializers |= _shared_weights(graph, hierarchy, lineage, nodes, initializers)
    return Judged(GraphClaims(nodes, initializers), _owners(origin.nodes))


def judge_folded(graph: Graph, hierarchy: Hierarchy, unfolded: Callable[[], Graph]) -> Judged:
    """Judge a graph whose exporter folds before it can be seen; look behind the folding where that hid a module."""
    claims = enhanced_semantic(graph, hierarchy, ExporterScopes())
    orphans = orphaned(hierarchy, claims)
    if not orphans:
        return Judged(claims, None)
    before = unfolded()
    origin = enhanced_semantic(before, hierarchy, ExporterScopes())
    lineage = relink(before, graph)
    nodes = dict(claims.nodes) | adopt(claims.nodes, lineage.nodes, origin.nodes, orphans, _TORCHSCRIPT_FOLDING)
    initializers = dict(claims.initializers)
    initializers |= adopt(initializers, lineage.initializers, origin.nodes, orphans, _TORCHSCRIPT_FOLDING)
    initializers |= folded_parameter_claims(initializers, _source_nodes(before, lineage), hierarchy)
    initializers |= _shared_weights(graph, hierarchy, lineage, nodes, initializers)
    return Judged(GraphClaims(nodes, initializers), _owners(origin.nodes))


def _shared_weights(
    graph: Graph, hierarchy: Hierarchy, lineage: Lineage, nodes: Mapping[str, Claim], claims: Mapping[str, Claim]
) -> dict[str, Claim]:
    """Claims of weights that stand for more than one parameter: merged because they were equal, or fused."""
    replaced = replaced_parameter_claims(claims, lineage.stands_for, hierarchy)
    links = lineage.nodes
    fused = {key: claim for key, claim in nodes.items() if key in links and links[key].relation is Relation.FUSED}
    weights = [name for name in graph.initializers if name in hierarchy.parameter_owners or name in lineage.stands_for]
    return replaced | absorbed_parameter_claims(graph, hierarchy, {**claims, **replaced}, fused, weights)


def _source_nodes(before: Graph, lineage: Lineage) -> dict[str, list[Node]]:
    """The nodes that each folded initializer was computed by."""
    return {name: [before.by_key[key] for key in link.sources] for name, link in lineage.initializers.items()}


def orphaned(hierarchy: Hierarchy, claims: GraphClaims) -> set[str]:
    """Modules with parameters that ran and own neither a node nor an initializer."""
    owned = _owners(claims.nodes) | _owners(claims.initializers)
    ran = {path for path in hierarchy.call_counts if hierarchy.modules[path].parameters}
    return ran - owned


def _owners(claims: Mapping[str, Claim]) -> set[str]:
    firm = [claim for claim in claims.values() if claim.confidence is not Confidence.NONE]
    return {call.path for claim in firm for call in claim.owners}
