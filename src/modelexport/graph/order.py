"""Nodes in an order in which each comes after what it reads.

ONNX asks for that, and everything here relies on it. ONNX Runtime does not mind any order, and some tools append the
nodes that they add.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from modelexport.graph.bodies import captured


def in_order(nodes: Sequence[onnx.NodeProto]) -> Sequence[onnx.NodeProto]:
    """The nodes as they are if that is an order to run them in; else each after those that it reads from."""
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    before = [[makers[name] for name in names_read(node) if name in makers] for node in nodes]
    if all(other < place for place, others in enumerate(before) for other in others):
        return nodes
    return [nodes[place] for place in _sorted(before)]


def names_read(node: onnx.NodeProto) -> set[str]:
    """Names that a node, or a body inside of it, reads from outside."""
    return {name for name in node.input if name} | {*captured(node)}


def _sorted(before: Sequence[Sequence[int]]) -> list[int]:
    """Places, each after those that it needs and otherwise as early as it was. A circle is left as it is."""
    found: dict[int, None] = {}
    started: set[int] = set()
    waiting = list(reversed(range(len(before))))
    while waiting:
        place = waiting.pop()
        missing = [other for other in before[place] if other not in found and other not in started]
        if missing and place not in started and place not in found:
            started.add(place)
            waiting += [place, *sorted(missing, reverse=True)]
        else:
            found.setdefault(place)
    return list(found)
