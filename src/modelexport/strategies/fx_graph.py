"""`fx_graph`: the module stack that FX keeps with every node.

Dynamo's exporter makes its ONNX nodes from the FX nodes of torch.export and says of which: those are exact, with the
number of the call. On any other graph the FX program is run like the model itself, and projected.
"""

from __future__ import annotations

from modelexport.graph.index import MAIN, Graph
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.signals import Signals
from modelexport.strategies.claims import GraphClaims
from modelexport.strategies.dataflow import dataflow_claims, initializer_dataflow
from modelexport.strategies.dynamo_scopes import fx_node
from modelexport.strategies.htp import projected
from modelexport.strategies.parameters import initializer_claims

NAME = "fx_graph"


def fx_graph(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    """Claims from `signals.fx` if it was recorded, else from the exporter's own FX nodes if it has any."""
    if signals.fx is not None and signals.values is not None:
        return projected(graph, hierarchy, signals, signals.fx, NAME)
    return _named(graph, hierarchy, signals)


def _named(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    calls = signals.scopes.fx_calls
    names = {node.key: fx_node(node) for node in graph.nodes if node.graph == MAIN}
    nodes = {
        key: Claim((calls[name],), Confidence.EXACT, (Evidence(EvidenceKind.FX, "torch.export", name),), NAME)
        for key, name in names.items()
        if name in calls
    }
    nodes |= dataflow_claims(graph, hierarchy, nodes, NAME)
    initializers = initializer_claims(graph, hierarchy, NAME)
    initializers |= initializer_dataflow(graph, hierarchy, nodes, initializers, NAME)
    return GraphClaims(nodes, initializers)
