"""Order inside of a region: what a node after cannot have replaced, as others around it have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from modelexport.graph.index import Node
from modelexport.lineage.matching import Matching


class RegionOrder:
    """Dataflow inside of one region: what a node after cannot have replaced, as others around it have.

        before    a ──► MatMul ──► Erf ──► Mul ──► MatMul ──► b
        after     a ──► MatMulNBits ──► Gelu ──► MatMulNBits ──► b

    If the products are known, Gelu reads what the first one makes: neither that nor anything above it is Gelu's work.
    Nor is what comes behind the second one, which reads what Gelu makes. Sets of nodes before are numbers, bit by bit.
    """

    def __init__(self, region: Iterable[Node], nodes: Sequence[Node], matching: Matching) -> None:
        """
        region  the nodes before
        nodes   those after, in file order
        """
        self.region = sorted(region, key=lambda node: node.position)
        self._matching = matching
        self._bits = {node.key: 1 << number for number, node in enumerate(self.region)}
        before, after = matching.before, matching.after
        inputs, outputs = before.data_inputs, before.outputs
        self._all_above = self._spread(self.region, inputs, outputs)
        all_below = self._spread(self.region[::-1], outputs, inputs)
        works = {node.key: self._works(node) for node in nodes}
        self._own = {key: self._join(self._bits, work) for key, work in works.items()}
        done_above = {key: self._join(self._all_above, work) for key, work in works.items()}
        done_below = {key: self._join(all_below, work) for key, work in works.items()}
        self._above = _collect(nodes, done_above, after.data_inputs, after.outputs)
        self._below = _collect(nodes[::-1], done_below, after.outputs, after.data_inputs)
        self._possible: dict[str, frozenset[str]] = {}

    def possible_keys(self, node: Node) -> frozenset[str]:
        """The keys of nodes that a node may have replaced, all or some of them.

        If others have replaced all of them, it finishes what the node above it does.
        """
        if node.key not in self._possible:
            everything = (1 << len(self.region)) - 1
            above, below = self._above[node.key], self._below[node.key]
            left = (everything & ~(above | below)) | self._own[node.key]
            possible = left or self._latest(above & ~below) or everything
            keys = (source.key for source in self.region if possible & self._bits[source.key])
            self._possible[node.key] = frozenset(keys)
        return self._possible[node.key]

    def _latest(self, mask: int) -> int:
        """Those of some nodes that none of the others comes behind."""
        earlier = 0
        for source in self.region:
            if mask & self._bits[source.key]:
                earlier |= self._all_above[source.key] & ~self._bits[source.key]
        return mask & ~earlier

    def _works(self, node: Node) -> list[str]:
        return [work.key for work in self._matching.known_works(node) if work.key in self._bits]

    def _spread(self, nodes: Sequence[Node], read: _Classes, made: _Classes) -> dict[str, int]:
        """By key: a node and all others of the region that it comes behind, where what it reads is made first."""
        return _collect(nodes, self._bits, read, made, including=True)

    @staticmethod
    def _join(masks: Mapping[str, int], keys: Iterable[str]) -> int:
        joined = 0
        for key in keys:
            joined |= masks[key]
        return joined


_Classes = Callable[[Node], Sequence[int]]


def _collect(
    nodes: Iterable[Node], masks: Mapping[str, int], read: _Classes, made: _Classes, *, including: bool = False
) -> dict[str, int]:
    """By key: the masks of all nodes that a node comes behind, joined; with its own if that is to be included."""
    by_class: dict[int, int] = {}
    collected: dict[str, int] = {}
    for node in nodes:
        mask = 0
        for class_id in read(node):
            mask |= by_class.get(class_id, 0)
        collected[node.key] = mask | masks[node.key] if including else mask
        for class_id in made(node):
            by_class[class_id] = by_class.get(class_id, 0) | mask | masks[node.key]
    return collected
