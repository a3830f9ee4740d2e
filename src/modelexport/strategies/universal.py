"""`universal`: what the exporter's own module tracking says, and nothing else.

A scope that can only mean one module is claimed for it, down to the modules of torch.nn. What the exporter leaves open
stays open: no dataflow, no order of nodes, no weights that a node reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.signals import Signals
from modelexport.strategies.claims import GraphClaims
from modelexport.strategies.dynamo_scopes import dynamo_calls
from modelexport.strategies.parameters import initializer_claims
from modelexport.strategies.torchscript_scopes import torchscript_calls

NAME = "universal"


def universal(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    nodes = _claims("torchscript", torchscript_calls(graph, hierarchy, signals.scopes.parts))
    nodes |= _claims("dynamo", dynamo_calls(graph, hierarchy, signals.scopes))
    return GraphClaims(nodes, initializer_claims(graph, hierarchy, NAME))


def _claims(exporter: str, found: Mapping[Node, tuple[ModuleCall, ...]]) -> dict[str, Claim]:
    certain = {node: calls for node, calls in found.items() if len({call.path for call in calls}) == 1}
    return {node.key: _claim(exporter, calls) for node, calls in certain.items()}


def _claim(exporter: str, calls: tuple[ModuleCall, ...]) -> Claim:
    one = len(calls) == 1
    evidence = Evidence(EvidenceKind.SCOPE, exporter, "" if one else "calls not told apart")
    return Claim(calls, Confidence.EXACT if one else Confidence.STRONG, (evidence,), NAME)
