"""`enhanced_semantic`, the default: what the exporter wrote about its own nodes, then dataflow for what it did not.

It works from the ONNX model and the hierarchy record alone. The PyTorch model is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelexport.graph.index import Graph
from modelexport.record.evidence import Claim
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.signals import ExporterScopes
from modelexport.strategies.dataflow import dataflow_claims, initializer_dataflow
from modelexport.strategies.dynamo_scopes import dynamo_claims
from modelexport.strategies.lost_scopes import mend_lost_scopes
from modelexport.strategies.parameters import initializer_claims, parameter_claims
from modelexport.strategies.torchscript_scopes import torchscript_claims

NAME = "enhanced_semantic"


@dataclass(frozen=True)
class GraphClaims:
    """What a strategy says of one graph: at most one claim for each node and for each initializer."""

    nodes: Mapping[str, Claim]
    initializers: Mapping[str, Claim]


def enhanced_semantic(graph: Graph, hierarchy: Hierarchy, scopes: ExporterScopes) -> GraphClaims:
    named = torchscript_claims(graph, hierarchy, NAME) | dynamo_claims(graph, hierarchy, scopes, NAME)
    nodes = named | mend_lost_scopes(graph, hierarchy, named, NAME)
    unnamed = [node for node in graph.nodes if node.key not in nodes]
    nodes |= parameter_claims(hierarchy, unnamed, NAME)
    nodes |= dataflow_claims(graph, hierarchy, nodes, NAME)
    initializers = initializer_claims(graph, hierarchy, NAME)
    initializers |= initializer_dataflow(graph, hierarchy, nodes, initializers, NAME)
    return GraphClaims(nodes, initializers)
