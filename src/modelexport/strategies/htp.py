"""`htp`, hierarchical trace and project: what ran in the model, projected on the graph.

It looks at no node name and no metadata, so it is evidence of its own, and works on files that somebody else exported.
"""

from __future__ import annotations

from modelexport.graph.index import Graph
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.signals import Signals, Trace
from modelexport.strategies.claims import GraphClaims
from modelexport.strategies.dataflow import dataflow_claims, initializer_dataflow
from modelexport.strategies.projection import project
from modelexport.strategies.weights import weight_claims

NAME = "htp"


def htp(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    if signals.trace is None or signals.values is None:
        return GraphClaims({}, {})
    return projected(graph, hierarchy, signals, signals.trace, NAME)


def projected(graph: Graph, hierarchy: Hierarchy, signals: Signals, trace: Trace, strategy: str) -> GraphClaims:
    """What the projection of a run says, and dataflow for the rest."""
    assert signals.values is not None
    nodes = project(graph, hierarchy, trace, signals.values, strategy)
    nodes |= dataflow_claims(graph, hierarchy, nodes, strategy)
    initializers = weight_claims(graph, hierarchy, trace, signals.values, strategy)
    initializers |= initializer_dataflow(graph, hierarchy, nodes, initializers, strategy)
    return GraphClaims(nodes, initializers)
