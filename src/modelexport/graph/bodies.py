"""The graphs that control flow nodes hold, and what these read from outside."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def with_inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """A node and all that are in its bodies, however deep."""
    yield node
    for body in bodies_of(node):
        for inner in body.node:
            yield from with_inner(inner)


def captured(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names that the bodies of a node read from outside of it, in the order in which they first occur."""
    found: dict[str, None] = {}
    for body in bodies_of(node):
        for name in _free(body, frozenset()):
            found.setdefault(name)
    return tuple(found)


def _free(graph: onnx.GraphProto, known: frozenset[str]) -> Iterator[str]:
    inside = known | frozenset(declared(graph))
    for node in graph.node:
        yield from (name for name in node.input if name and name not in inside)
        for body in bodies_of(node):
            yield from _free(body, inside)
    yield from (value.name for value in graph.output if value.name not in inside)


def declared(graph: onnx.GraphProto) -> Iterator[str]:
    """Names that a graph gives to values of its own."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)
