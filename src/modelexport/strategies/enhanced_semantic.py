"""`enhanced_semantic`, the default: what the exporter wrote about its own nodes, then dataflow for what it did not.

It works from the ONNX model and the hierarchy record alone. The PyTorch model is not needed.
"""

from __future__ import annotations

from modelexport.graph.index import Graph
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.signals import Signals
from modelexport.strategies.claims import GraphClaims
from modelexport.strategies.dataflow import dataflow_claims, initializer_dataflow
from modelexport.strategies.dynamo_scopes import dynamo_claims
from modelexport.strategies.lost_scopes import mend_lost_scopes
from modelexport.strategies.parameters import initializer_claims, parameter_claims
from modelexport.strategies.torchscript_scopes import torchscript_claims

NAME = "enhanced_semantic"


def enhanced_semantic(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    scopes = signals.scopes
    named = torchscript_claims(graph, hierarchy, NAME, scopes.parts) | dynamo_claims(graph, hierarchy, scopes, NAME)
    nodes = named | mend_lost_scopes(graph, hierarchy, named, NAME)
    unnamed = [node for node in graph.nodes if node.key not in nodes]
    nodes |= parameter_claims(hierarchy, unnamed, NAME)
    nodes |= dataflow_claims(graph, hierarchy, nodes, NAME)
    initializers = initializer_claims(graph, hierarchy, NAME)
    initializers |= initializer_dataflow(graph, hierarchy, nodes, initializers, NAME)
    return GraphClaims(nodes, initializers)
