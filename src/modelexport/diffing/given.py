"""Nodes of functions with what the calls around them say: an attribute that refers to the call's has that value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx

from modelexport.graph.canonical import attributes_of
from modelexport.graph.index import Graph, Node, walk_nodes


def node_protos(
    model: onnx.ModelProto, origins: Mapping[str, Sequence[str]], keys: Iterator[str]
) -> dict[str, onnx.NodeProto]:
    """By the key of a node, functions put in the place of their calls.

    origins  by the key of a node that was put in: the keys of the calls around it and its own, from the outside in
    """
    written = dict(walk_nodes(model))
    functions = {f"{one.domain}::{one.name}": one for one in model.functions}
    found: dict[str, onnx.NodeProto] = {}
    for key in keys:
        *calls, own = origins.get(key, (key,))
        proto = written.get(own)
        if proto is not None:
            around = [written[call] for call in reversed(calls) if call in written]
            found[key] = _given(proto, around, functions) if around else proto
    return found


def with_given(graph: Graph, model: onnx.ModelProto, origins: Mapping[str, Sequence[str]]) -> Graph:
    """The graph, in which nodes differ that are called with different attributes."""
    referring = {key for key, proto in walk_nodes(model) if any(item.ref_attr_name for item in proto.attribute)}
    wanted = [key for key, found in origins.items() if found[-1] in referring]
    if not wanted:
        return graph
    protos = node_protos(model, origins, iter(wanted))
    nodes: list[Node] = [
        replace(node, attributes=attributes_of(protos[node.key])) if node.key in protos else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def _given(
    proto: onnx.NodeProto, around: Sequence[onnx.NodeProto], functions: Mapping[str, onnx.FunctionProto]
) -> onnx.NodeProto:
    """around  the calls, from the inside out"""
    if not any(item.ref_attr_name for item in proto.attribute):
        return proto
    call, *outer = around
    stated = (
        {item.name: item for item in _given(call, outer, functions).attribute}
        if outer
        else {item.name: item for item in call.attribute}
    )
    function = functions.get(f"{call.domain}::{call.op_type}")
    usual = {item.name: item for item in function.attribute_proto} if function is not None else {}
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    del made.attribute[:]
    for item in proto.attribute:
        value = {**usual, **stated}.get(item.ref_attr_name) if item.ref_attr_name else item
        if value is not None:
            made.attribute.add().CopyFrom(value)
            made.attribute[-1].name = item.name
    return made
