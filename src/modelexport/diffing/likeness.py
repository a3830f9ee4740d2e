"""What makes two nodes of two graphs the same: equal keys, from those that are certain to those that are likely."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from modelexport.diffing.flow import Flow, operator_of
from modelexport.diffing.signatures import Signatures
from modelexport.graph.index import Node

Key = Callable[[Node], object]
Described = Callable[[Signatures, Node], object]

# How far around a node is looked for what makes it the only one.
NEAR = (8, 4, 2, 1)


def both(signatures: Signatures, node: Node) -> object:
    """What computes the same and is used alike."""
    return signatures.of_value(node), signatures.own[node.key], signatures.up[node.key]


def read_by_the_same(signatures: Signatures, node: Node) -> object:
    """What computes the same for the same readers, where these have two of their inputs the other way round."""
    return signatures.of_value(node), signatures.own[node.key], signatures.readers(node)


def _computed(signatures: Signatures, node: Node) -> object:
    return signatures.of_value(node)


def _used(signatures: Signatures, node: Node) -> object:
    return signatures.own[node.key], signatures.up[node.key]


def _used_otherwise(signatures: Signatures, node: Node) -> object:
    """Of which the same is made; what it does itself may be something else."""
    return operator_of(node), signatures.up[node.key]


def _of_content(key: Described) -> Described:
    """Without shape arithmetic: that is the same in many places, and goes with what reads it."""

    def found(signatures: Signatures, node: Node) -> object:
        return key(signatures, node) if node.key in signatures.flow.graph.computed else None

    return found


CERTAIN = (_of_content(both), _of_content(read_by_the_same), _of_content(_computed))
# From what is certain to what is likely.
CONTENT_USED: tuple[Described, ...] = (_of_content(_used), _of_content(_used_otherwise))
CONTENT = (_of_content(_computed), *CONTENT_USED)
REST = (_used, _used_otherwise, _computed)
# Those by which nodes are looked at from the outputs on.
BACKWARDS = (*CONTENT_USED, _used, _used_otherwise)


def both_and_near(signatures: Signatures, near: Mapping[str, int]) -> Key:
    return lambda node: (both(signatures, node), near[node.key])


def alone(near: Mapping[str, int]) -> Key:
    return lambda node: near[node.key]


def computing_the_same(signatures: Sequence[Signatures]) -> tuple[Key, Key]:
    one, other = signatures
    return (lambda node: _of_itself(one, node)), (lambda node: _of_itself(other, node))


def _of_itself(signatures: Signatures, node: Node) -> object:
    return signatures.of_value(node), signatures.own[node.key]


def doing_the_same(signatures: Sequence[Signatures]) -> tuple[Key, Key]:
    one, other = signatures
    return (lambda node: one.own[node.key]), (lambda node: other.own[node.key])


def attributes_alike(node: Node) -> object:
    return operator_of(node), node.attributes


def told_alike(key: Described, signatures: Signatures, flow: Flow | None) -> Key:
    """flow  if given, nodes that are said to be in different modules are not the same"""

    def found(node: Node) -> object:
        description = key(signatures, node)
        if description is None or flow is None:
            return description
        return description, flow.told.get(node.key)

    return found


def told_near(flow: Flow, near: Mapping[str, int]) -> Key:
    """What is said to be in the same module, and has the same around it."""

    def found(node: Node) -> object:
        told = flow.told.get(node.key)
        return None if told is None else (told, near[node.key])

    return found


class Weights:
    """By a node: its operator and the weights that it reads; None for a node that reads none."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def __call__(self, node: Node) -> object:
        read = [
            (place, constant.digest)
            for place, constant in self._flow.read_constants(node)
            if not constant.small and constant.digest is not None
        ]
        return (operator_of(node), tuple(read)) if read else None
