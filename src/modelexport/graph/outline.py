"""Outlines of graphs, and graphs of outlines."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import MappingProxyType

from modelexport.graph.index import MAIN, Graph, Node, Tensor
from modelexport.record.outline import Body, Outline, OutlineNode, OutlineTensor
from modelexport.record.sketch import Sketches

# Enough to tell the attributes and constants of one graph apart.
_DIGEST_SIZE = 4


def outlined(graph: Graph, sketches: Sketches) -> Outline:
    constants = [*graph.initializers, *(node.key for node in graph.nodes if node.constant is not None)]
    found = {name: sketches(name) for name in constants}
    return Outline(
        nodes=tuple(map(_outline_node, graph.nodes)),
        inputs=graph.inputs,
        outputs=graph.outputs,
        initializers={
            name: OutlineTensor(tensor.dtype, tensor.shape, digest(tensor.content))
            for name, tensor in graph.initializers.items()
        },
        bodies={
            graph_id: Body(graph.owners.get(graph_id, ""), graph.takes[graph_id], yields)
            for graph_id, yields in graph.yields.items()
            if graph_id != MAIN
        },
        sketches={name: one for name, one in found.items() if one is not None and not one.quantized},
    )


def graph_of(outline: Outline) -> Graph:
    """The graph, with digests in the place of attributes and constants: as `digested` gives it."""
    bodies = outline.bodies.items()
    return Graph(
        nodes=tuple(_node(node, place) for place, node in enumerate(outline.nodes)),
        inputs=outline.inputs,
        outputs=outline.outputs,
        initializers=MappingProxyType(
            {
                name: Tensor(name, one.dtype, one.shape, one.content.encode() or None)
                for name, one in outline.initializers.items()
            }
        ),
        owners=MappingProxyType({name: body.owner for name, body in bodies if body.owner}),
        yields=MappingProxyType({MAIN: outline.outputs, **{name: body.yields for name, body in bodies}}),
        takes=MappingProxyType({MAIN: outline.inputs, **{name: body.takes for name, body in bodies}}),
    )


def digested(graph: Graph) -> Graph:
    """A graph that can be compared with one from an outline."""
    return replace(
        graph,
        nodes=tuple(
            replace(
                node,
                attributes=digest(node.attributes).encode(),
                constant=None if node.constant is None else digest(node.constant).encode(),
            )
            for node in graph.nodes
        ),
        initializers=MappingProxyType(
            {
                name: replace(tensor, content=digest(tensor.content).encode() or None)
                for name, tensor in graph.initializers.items()
            }
        ),
    )


def _outline_node(node: Node) -> OutlineNode:
    return OutlineNode(
        key=node.key,
        op_type=node.op_type,
        domain=node.domain,
        graph=node.graph,
        inputs=node.inputs,
        outputs=node.outputs,
        attributes=digest(node.attributes),
        constant=digest(node.constant),
    )


def _node(node: OutlineNode, place: int) -> Node:
    return Node(
        key=node.key,
        name="",
        op_type=node.op_type,
        domain=node.domain,
        graph=node.graph,
        position=place,
        inputs=node.inputs,
        outputs=node.outputs,
        attributes=node.attributes.encode(),
        constant=node.constant.encode() or None,
        metadata={},
    )


def digest(data: bytes | None) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_SIZE).hexdigest() if data else ""
