"""Operands: what a node after reads, held against what a node before read. Constants tell nodes of one kind apart.

    before    x ──► MatMul(w) ──► m ──► Add(b) ──► s          after    x ──► Gemm(w, b) ──► t

    w has one reader before: Gemm works as MatMul. Gemm reads b as well, which a reader of m read: it has absorbed Add.

Nothing is concluded here, and nothing kept; `matching.py` does both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from modelexport.graph.index import Node
from modelexport.graph.operators import is_passing, is_view
from modelexport.lineage.anchors import Anchors
from modelexport.lineage.value_classes import NO_CLASS, ValueClasses

# More readers than these say nothing about which of them is meant.
CROWD = 48
# Operators that one operator was ever seen to take in behind it.
FUSED_STEPS = 4
# Elements that a constant must have to tell its reader from others.
_DISTINCTIVE = 16


class Operands:
    """Questions about the inputs of two nodes; the first node is one after, the second one before."""

    def __init__(self, anchors: Anchors) -> None:
        self._before, self._after, self._anchors = anchors.before, anchors.after, anchors

    def find_absorbed(self, node: Node, origin: Node) -> Iterator[Node]:
        """Nodes behind one whose constants the node after reads: it has taken them in."""
        constants = {self._anchors.get(class_id) for class_id in self._after.constant_inputs(node)} - {NO_CLASS}
        origin_constants = self._before.constant_inputs(origin)
        more = {class_id for class_id in constants if not self._anchors.is_like(class_id, origin_constants)}
        for reader in self._before.readers_of(self._before.result(origin))[:CROWD] if more else ():
            if not more.isdisjoint(self._before.inputs(reader)):
                yield reader

    def is_ended_by_reader(self, node: Node, origin: Node) -> bool:
        """Whether what another node made is made by a reader of this one: Shape(start, end), and Shape with a Slice."""
        readers = self._after.readers_of(self._after.result(node))[:CROWD]
        results = (self._anchors.get(self._after.result(reader)) for reader in readers)
        return self._before.result(origin) in results

    def does_part(self, node: Node, origin: Node) -> bool:
        """Whether a node leaves some of another's work to those behind it: they read constants that the other read."""
        constants = [class_id for class_id in self._before.constant_inputs(origin) if self._before.size(class_id) > 1]
        # What it reads itself tells nothing of others: biases of zero are one constant in all layers.
        own = {self._anchors.get(class_id) for class_id in self._after.constant_inputs(node)}
        left = [class_id for class_id in constants if not self._anchors.is_like(class_id, own)]
        result = self._after.result(node)
        for _ in range(FUSED_STEPS if len(constants) > 1 else 0):
            readers = [reader for reader in self._after.readers_of(result)[:CROWD] if not is_passing(reader)]
            read = (class_id for reader in readers for class_id in self._after.constant_inputs(reader))
            if any(self._anchors.is_like(self._anchors.get(class_id), left) for class_id in read):
                return True
            if len(readers) != 1:
                break
            result = self._after.result(readers[0])
        return False

    def is_idle(self, node: Node, origin: Node) -> bool:
        """Whether another node changed nothing, and this one does not do that either: it does not read those zeros.

        before    x ──► MatMul(w) ──► m ──► Add(0) ──► s ──► MatMul(v)          after    x ──► MatMul(w) ──► MatMul(v)
        """
        read = {self._anchors.get(class_id) for class_id in self._after.constant_inputs(node)}
        added = any(self._anchors.is_like(class_id, read) for class_id in self._before.constant_inputs(origin))
        return self._before.is_neutral(origin) and not added

    def is_distinctive(self, class_after: int) -> bool:
        return class_after in self._anchors and self._after.size(class_after) >= _DISTINCTIVE

    def has_unknown_weight(self, node: Node) -> bool:
        return any(class_id not in self._anchors for class_id in self._after.weights(node))

    def share_weight(self, node: Node, origin: Node) -> bool:
        origin_weights = [weight for weight in self._before.constant_inputs(origin) if self._before.is_weight(weight)]
        weights = (self._anchors.get(class_id) for class_id in self._after.weights(node) if class_id in self._anchors)
        return any(self._anchors.is_like(weight, origin_weights) for weight in weights)

    def weights_differ(self, node: Node, origin: Node) -> bool:
        """Whether a node reads weights that are known, and another one read others that hold something else."""
        weights = [self._anchors.get(class_id) for class_id in self._after.weights(node) if class_id in self._anchors]
        origin_weights = list(self._before.weights(origin))
        alike, constants = self._anchors.alike, self._before.constants
        # Of a constant that nobody looked into it is not known which others hold the same.
        known = (weight in alike or constants.get(weight) is not None for weight in (*weights, *origin_weights))
        if not (weights and origin_weights and all(known)):
            return False
        return not any(self._anchors.is_like(weight, origin_weights) for weight in weights)

    def has_swapped_inputs(self, node: Node, origin: Node) -> bool:
        """Whether a node reads what another one read, with two of its inputs exchanged: Sub(a, b), and Sub(b, a)."""
        known = [self._anchors.get(class_id) for class_id in self._after.inputs(node)]
        pairs = [pair for pair in zip(known, self._before.inputs(origin), strict=False) if NO_CLASS not in pair]
        alike = self._anchors.alike
        moves = {(alike.get(now, now), alike.get(was, was)) for now, was in pairs}
        return any(now != was and (was, now) in moves for now, was in moves)


def readers_behind_views(readers: Iterable[Node], classes: ValueClasses) -> Iterator[Node]:
    """What reads a value in the end, be it in another shape."""
    waiting = [(reader, 0) for reader in readers]
    while waiting:
        reader, steps = waiting.pop(0)
        if not is_view(reader):
            yield reader
        elif steps < FUSED_STEPS:
            following = classes.readers_of(classes.result(reader))[:CROWD]
            waiting += [(next_reader, steps + 1) for next_reader in following]
