"""Value numbering: which values of one graph are computed by the same operators from the same inputs.

Common-subexpression elimination keeps one of several equal nodes. Knowing beforehand which nodes are equal tells whom
the survivor stands for.
"""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.graph.index import Graph, Node
from modelexport.lineage.operators import is_random


def value_classes(graph: Graph) -> Mapping[str, int]:
    """A number for every value; equal numbers mean equal values."""
    numbers: dict[object, int] = {}
    classes: dict[str, int] = {}

    def number(description: object) -> int:
        return numbers.setdefault(description, len(numbers))

    holders = frozenset(graph.owners.values())
    for tensor in graph.initializers.values():
        classes[tensor.name] = number(("constant", tensor.content) if tensor.content else ("value", tensor.name))
    for node in graph.nodes:
        # Values from outside (graph inputs, a body's inputs) are equal to themselves alone.
        inputs = tuple(classes.get(value, -1 - number(("value", value))) if value else None for value in node.inputs)
        description = ("value", node.key) if node.key in holders else _describe(node, inputs)
        for place, output in enumerate(node.outputs):
            if output:
                classes[output] = number(description if place == 0 else (description, place))
    return classes


def _describe(node: Node, inputs: tuple[int | None, ...]) -> object:
    if node.constant is not None:
        return ("constant", node.constant)
    if is_random(node):
        return ("value", node.key)
    return (node.op_type, node.domain, node.attributes, inputs)
