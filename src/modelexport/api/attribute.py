"""From a graph and signals to claims on the graph that is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from modelexport.graph.index import Graph, Node
from modelexport.lineage.adopt import adopt
from modelexport.lineage.carry import carry
from modelexport.lineage.descent import trace_lineage
from modelexport.record.evidence import Claim, Confidence
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.lineage import TORCH_OPTIMIZER, TORCHSCRIPT_FOLDING, Lineage, Relation
from modelexport.record.signals import Signals
from modelexport.strategies.catalogue import Strategy
from modelexport.strategies.claims import GraphClaims
from modelexport.strategies.dataflow import dataflow_claims, initializer_dataflow
from modelexport.strategies.parameters import (
    absorbed_parameter_claims,
    folded_parameter_claims,
    initializer_claims,
    replaced_parameter_claims,
)


@dataclass(frozen=True)
class Scene:
    """Everything that is judged by.

    graph     the graph that is written
    before    the exporter's graph before its optimizer ran, where there is one
    unfolded  makes the exporter's graph before folding, for an exporter that cannot show it otherwise
    foreign   somebody else made the graph, and may have optimized it
    """

    graph: Graph
    hierarchy: Hierarchy
    signals: Signals
    before: Graph | None = None
    unfolded: Callable[[], Graph] | None = None
    foreign: bool = False

    @cached_property
    def lineage(self) -> Lineage:
        assert self.before is not None
        return trace_lineage(self.before, self.graph)


@dataclass(frozen=True)
class Judged:
    """What one strategy says of the written graph.

    owned_before  the modules that owned something before the exporter's optimizer ran, where that is known
    """

    strategy: str
    claims: GraphClaims
    seconds: float
    owned_before: set[str] | None = None


def judge(strategy: Strategy, scene: Scene) -> Judged:
    start = time.perf_counter()
    owned: set[str] | None = None
    if scene.before is not None and _reads_exporter(strategy, scene.signals):
        claims, owned = _judge_before(strategy, scene, scene.before)
    else:
        claims = strategy.judge(scene.graph, scene.hierarchy, scene.signals)
        if scene.unfolded is not None and strategy.infers and _reads_exporter(strategy, scene.signals):
            claims, owned = _look_behind_folding(strategy, scene, scene.unfolded, claims)
    if scene.foreign and _reads_exporter(strategy, scene.signals):
        claims = GraphClaims({key: _doubted(claim) for key, claim in claims.nodes.items()}, claims.initializers)
    return Judged(strategy.name, claims, time.perf_counter() - start, owned)


def _doubted(claim: Claim) -> Claim:
    """Optimizers leave a merged node with the scope of one of its sources: what is written there is not all."""
    return replace(claim, confidence=min(claim.confidence, Confidence.STRONG))


def _reads_exporter(strategy: Strategy, signals: Signals) -> bool:
    """Whether a strategy rests on what the exporter wrote. FX claims do only if the exporter's FX nodes are known."""
    return strategy.before and (not strategy.needs or (signals.fx is None and bool(signals.scopes.fx_calls)))


def _judge_before(strategy: Strategy, scene: Scene, before: Graph) -> tuple[GraphClaims, set[str]]:
    """Judge the graph before torch's optimizer, where the exporter is right, and carry the claims through it."""
    graph, hierarchy, lineage = scene.graph, scene.hierarchy, scene.lineage
    origin = strategy.judge(before, hierarchy, scene.signals)
    nodes = carry(origin.nodes, lineage.nodes, TORCH_OPTIMIZER)
    initializers = carry(origin.nodes, lineage.initializers, TORCH_OPTIMIZER)
    initializers |= folded_parameter_claims(initializers, _source_nodes(before, lineage), hierarchy)
    initializers |= initializer_claims(graph, hierarchy, strategy.name)
    if strategy.infers:
        nodes |= dataflow_claims(graph, hierarchy, nodes, strategy.name)
        initializers |= initializer_dataflow(graph, hierarchy, nodes, initializers, strategy.name)
    initializers |= _shared_weights(graph, hierarchy, lineage, nodes, initializers)
    return GraphClaims(nodes, initializers), _owners(origin.nodes)


def _look_behind_folding(
    strategy: Strategy, scene: Scene, unfolded: Callable[[], Graph], claims: GraphClaims
) -> tuple[GraphClaims, set[str] | None]:
    """Where an exporter that folds before it can be seen hid a module, find out what it became part of."""
    orphans = orphaned(scene.hierarchy, claims)
    if not orphans:
        return claims, None
    before = unfolded()
    origin = strategy.judge(before, scene.hierarchy, Signals(scopes=scene.signals.scopes))
    lineage = trace_lineage(before, scene.graph)
    nodes = dict(claims.nodes) | adopt(claims.nodes, lineage.nodes, origin.nodes, orphans, TORCHSCRIPT_FOLDING)
    initializers = dict(claims.initializers)
    initializers |= adopt(initializers, lineage.initializers, origin.nodes, orphans, TORCHSCRIPT_FOLDING)
    initializers |= folded_parameter_claims(initializers, _source_nodes(before, lineage), scene.hierarchy)
    initializers |= _shared_weights(scene.graph, scene.hierarchy, lineage, nodes, initializers)
    return GraphClaims(nodes, initializers), _owners(origin.nodes)


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
