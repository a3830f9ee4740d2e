"""The nodes of a file with functions put in the place of their calls, each with its attributes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx

from modelexport.costing.constants import plain_attribute
from modelexport.graph.domains import plain_domain
from modelexport.graph.given import given_by, resolved
from modelexport.graph.index import Graph, Node, function_id, walk_nodes
from modelexport.graph.inlining import inlined

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


class Unfolded:
    def __init__(self, proto: onnx.ModelProto, graph: Graph) -> None:
        found = inlined(graph)
        self.graph = found.graph
        self._origins = found.origins
        self._protos = dict(walk_nodes(proto))
        self._functions = {function_id(one): one for one in proto.functions}
        self._opsets = {plain_domain(opset.domain): opset.version for opset in proto.opset_import}
        self._members: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            self._members.setdefault(node.graph, []).append(node)

    def nodes(self, graph_id: str) -> Sequence[Node]:
        return self._members.get(graph_id, ())

    def origin(self, node: Node) -> tuple[tuple[str, ...], str]:
        """The keys of the calls that it is for, from the outside in, and its own key in the file."""
        *calls, key = self._origins.get(node.key, (node.key,))
        return tuple(calls), key

    def proto(self, node: Node) -> onnx.NodeProto:
        return self._protos[self.origin(node)[1]]

    def domain(self, node: Node) -> str:
        return plain_domain(node.domain)

    def opset(self, node: Node) -> int:
        return self._opsets.get(plain_domain(node.domain), 1)

    def attributes(self, node: Node) -> dict[str, Any]:
        found: Iterable[onnx.AttributeProto] = self.proto(node).attribute
        if any(item.ref_attr_name for item in found):
            calls, _ = self.origin(node)
            found = resolved(found, given_by((self._protos[key] for key in calls), self._functions))
        return {item.name: plain_attribute(item) for item in found if item.type not in _GRAPHS}
