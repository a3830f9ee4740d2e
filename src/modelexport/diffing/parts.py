"""A part of a graph as a graph: what one module does."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from modelexport.diffing.flow import is_literal
from modelexport.graph.index import MAIN, Graph


def part_of(graph: Graph, keys: Collection[str]) -> Graph:
    """The nodes with these keys, bodies and constants included; it is given what they read, and returns what others
    read of what they make."""
    inside = set(keys)
    for node in graph.nodes:  # bodies come behind the node that owns them
        if graph.owners.get(node.graph) in inside:
            inside.add(node.key)
    nodes = tuple(node for node in graph.nodes if node.key in inside or is_literal(node))
    working = [node for node in nodes if not is_literal(node)]
    made = {value for node in nodes for value in node.outputs}
    within = {value for body in graph.owners for value in graph.takes[body]}
    enters = dict.fromkeys(
        value
        for node in working
        for value in node.inputs
        if value and value not in made and value not in graph.initializers and value not in within
    )
    returned = {value for graph_id, values in graph.yields.items() if graph_id == MAIN for value in values}
    read = {value for node in graph.nodes if node.key not in inside for value in node.inputs} | returned
    leaves = dict.fromkeys(value for node in working if not node.graph for value in node.outputs if value in read)
    used = {value for node in working for value in node.inputs} | {
        value for one in graph.yields.values() for value in one
    }
    # Those of others are not even looked at.
    weights = {name: tensor for name, tensor in graph.initializers.items() if name in used}
    return replace(graph, nodes=nodes, inputs=tuple(enters), outputs=tuple(leaves), initializers=weights)
