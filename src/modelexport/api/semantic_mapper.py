"""`SemanticMapper`: the default strategy on any ONNX model, given the hierarchy record of the model it came from."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import onnx

from modelexport.graph.index import Graph, index_model
from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import Origin, Provenance
from modelexport.record.signals import Signals
from modelexport.resolve.provenance import build_provenance
from modelexport.strategies.claims import by_initializer, by_node
from modelexport.strategies.enhanced_semantic import NAME, enhanced_semantic


class SemanticMapper:
    """Maps the nodes of an ONNX model to modules. The PyTorch model is not needed."""

    def __init__(self, onnx_model: onnx.ModelProto, hierarchy: Hierarchy) -> None:
        self._graph: Graph = index_model(onnx_model)
        self._hierarchy = hierarchy

    @cached_property
    def provenance(self) -> Provenance:
        claims = enhanced_semantic(self._graph, self._hierarchy, Signals())
        origin = Origin(NAME, "unknown", self._graph.fingerprint)
        return build_provenance(self._graph, self._hierarchy, by_node(claims), by_initializer(claims), origin)

    def map_all_nodes(self) -> dict[str, Attribution]:
        """The attribution of every node, by node name; by node key where the name is missing or not the only one."""
        nodes = self.provenance.nodes
        uses = Counter(entry.name for entry in nodes.values())
        return {
            entry.name if entry.name and uses[entry.name] == 1 else key: entry.attribution
            for key, entry in nodes.items()
        }
