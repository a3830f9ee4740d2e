"""Nodes of functions with what the calls around them say: an attribute that refers to the call's has that value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx

from modelexport.graph.canonical import attributes_of
from modelexport.graph.given import Attributes, given_by, resolved
from modelexport.graph.index import Graph, Node, function_id, walk_nodes


def node_protos(
    model: onnx.ModelProto, origins: Mapping[str, Sequence[str]], keys: Iterator[str]
) -> dict[str, onnx.NodeProto]:
    """By the key of a node, functions put in the place of their calls.

    origins  by the key of a node that was put in: the keys of the calls around it and its own, from the outside in
    """
    written = dict(walk_nodes(model))
    functions = {function_id(one): one for one in model.functions}
    found: dict[str, onnx.NodeProto] = {}
    for key in keys:
        *calls, own = origins.get(key, (key,))
        proto = written.get(own)
        if proto is not None:
            around = [written[call] for call in calls if call in written]
            found[key] = _with_attributes(proto, given_by(around, functions)) if around and _refers(proto) else proto
    return found


def with_given(graph: Graph, model: onnx.ModelProto, origins: Mapping[str, Sequence[str]]) -> Graph:
    """The graph, in which nodes differ that are called with different attributes."""
    referring = {key for key, proto in walk_nodes(model) if _refers(proto)}
    wanted = [key for key, found in origins.items() if found[-1] in referring]
    if not wanted:
        return graph
    protos = node_protos(model, origins, iter(wanted))
    nodes: list[Node] = [
        replace(node, attributes=attributes_of(protos[node.key])) if node.key in protos else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def _refers(proto: onnx.NodeProto) -> bool:
    return any(item.ref_attr_name for item in proto.attribute)


def _with_attributes(proto: onnx.NodeProto, given: Attributes) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    del made.attribute[:]
    made.attribute.extend(resolved(proto.attribute, given))
    return made
