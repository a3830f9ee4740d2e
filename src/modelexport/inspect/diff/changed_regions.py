"""Changed regions: connected nodes without a partner on one side, and those that do their work on the other.

    before   MatMul ─► Add ─► Relu          one region: (MatMul, Add, Relu) replaced by (FusedGemm)
    after    FusedGemm

Nodes are joined (union-find) if one reads the other within a module, if they make the value that a paired node reads in
the same place, if lineage links them, or if they lie beside the same paired node. `ReplacedWeights` says what became of
the weights of such nodes: cast, quantized, transposed, packed, or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from modelexport.graph.algorithms import UnionFind
from modelexport.graph.index import Node
from modelexport.inspect.diff.match_keys import Constant, DiffGraph
from modelexport.inspect.diff.node_diff import NodeComparison, NodePairs
from modelexport.inspect.diff.weight_diff import WeightDiff, packed_input, unpack_weight, weight_ref
from modelexport.record.lineage import Link, Relation
from modelexport.record.results.diff import WeightChange, WeightForm

_LEFT, _RIGHT = 0, 1
_Member = tuple[int, str]
# Relations of a node to others whose work it does.
_WORKING = frozenset({Relation.FUSED, Relation.REWRITTEN, Relation.SPLIT, Relation.KEPT, Relation.RENAMED})


@dataclass(frozen=True, slots=True)
class ChangedRegion:
    """Nodes of the first file, in order, and the nodes of the second that stand in weight place."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]


class RegionFinder:
    """
    homes    by side and key: where a node belongs, the same for both sides where that is the same module
    links    by the key of a node of the second graph: which nodes of the first it comes from
    altered  keys of paired nodes of the second graph that are not the same as weight partners
    """

    def __init__(
        self,
        pairs: NodePairs,
        homes: tuple[Mapping[str, str], Mapping[str, str]],
        links: Mapping[str, Link],
        altered: Callable[[str], bool],
    ) -> None:
        self._pairs, self._homes, self._links, self._altered = pairs, homes, links, altered
        self._flows = (pairs.left_graph, pairs.right_graph)
        self._sets: UnionFind[_Member] = UnionFind()
        self._gone: dict[_Member, set[str]] = {}  # by head: the keys of all nodes of the first graph

    def find_regions(self) -> list[ChangedRegion]:
        for side, flow in enumerate(self._flows):
            for node in flow.order:
                if self._is_open(side, node.key):
                    self._add((side, node.key))
        self._join_neighbours(_LEFT)
        self._join_neighbours(_RIGHT)
        self._join_by_readers()
        self._join_by_outputs()
        self._join_by_links()
        self._join_adjacent()
        return list(self._regions())

    def _add(self, member: _Member) -> None:
        self._sets.add(member)
        self._gone[member] = {member[1]} if member[0] == _LEFT else set()

    def _is_open(self, side: int, key: str) -> bool:
        return key not in (self._pairs.right if side == _LEFT else self._pairs.left)

    def _join(self, member: _Member, other: _Member) -> None:
        heads = self._sets.join(member, other)
        if heads is not None:
            self._gone[heads[0]] |= self._gone.pop(heads[1])

    def _maker(self, side: int, value: str) -> _Member | None:
        """The node without a partner that makes a value."""
        maker = self._flows[side].producers.get(value)
        return (side, maker[0].key) if maker is not None and self._is_open(side, maker[0].key) else None

    def _join_neighbours(self, side: int) -> None:
        """Within a module."""
        homes = self._homes[side]
        for node in self._flows[side].order:
            if self._is_open(side, node.key):
                for value in node.inputs:
                    above = self._maker(side, value)
                    if above is not None and homes.get(above[1]) == homes.get(node.key):
                        self._join(above, (side, node.key))

    def _join_by_readers(self) -> None:
        """What makes the values that a paired node reads in the same place."""
        for node in self._flows[_LEFT].order:
            other = self._pairs.right.get(node.key)
            for value, other_value in self._pairs.aligned_inputs(node, other) if other is not None else ():
                self._join_makers(value, other_value)

    def _join_by_outputs(self) -> None:
        for end, other_value in self._pairs.ends.items():
            if end.startswith("o:"):
                self._join_makers(end[2:], other_value)

    def _join_makers(self, value: str, other_value: str) -> None:
        maker, other = self._maker(_LEFT, value), self._maker(_RIGHT, other_value)
        if maker is not None and other is not None:
            self._join(maker, other)

    def _join_by_links(self) -> None:
        for key, link in self._links.items():
            member = (_RIGHT, key)
            gone = [source for source in link.sources if (_LEFT, source) in self._sets]
            if link.relation not in _WORKING or not gone:
                continue
            if member not in self._sets:
                if not (link.relation is Relation.FUSED and key in self._pairs.left and self._altered(key)):
                    continue
                self._add_pair(key)
            for source in self._connected(member, gone):
                self._join(member, (_LEFT, source))

    def _connected(self, member: _Member, sources: list[str]) -> Iterator[str]:
        """Those sources that are joined to what a node is known to stand for; all if nothing is known."""
        known = set(self._gone[self._sets.find(member)])
        if not known:
            yield from sources
            return
        waiting = [source for source in sources if source not in known]
        while joined := [source for source in waiting if not known.isdisjoint(self._next_to(source))]:
            yield from joined
            known.update(joined)
            waiting = [source for source in waiting if source not in known]

    def _next_to(self, key: str) -> Iterator[str]:
        flow = self._flows[_LEFT]
        node = flow.by_key[key]
        for value in node.inputs:
            maker = flow.producers.get(value)
            if maker is not None:
                yield maker[0].key
        for value in node.outputs:
            yield from (use.reader.key for use in flow.uses.get(value, ()))

    def _add_pair(self, key: str) -> None:
        """A node that is not the same any more: it has taken in what is gone."""
        partner = (_LEFT, self._pairs.left[key].key)
        self._add((_RIGHT, key))
        self._add(partner)
        self._join((_RIGHT, key), partner)

    def _join_adjacent(self) -> None:
        """What is left on both sides of one module, and lies beside the same."""
        alone = self._one_sided()
        left = self._by_neighbour(_LEFT, alone)
        right = self._by_neighbour(_RIGHT, alone)
        for key, heads in left.items():
            others = right.get(key, {})
            if len(heads) == 1 and len(others) == 1:
                self._join(next(iter(heads)), next(iter(others)))

    def _one_sided(self) -> set[_Member]:
        sides: dict[_Member, set[int]] = {}
        for member in self._sets:
            sides.setdefault(self._sets.find(member), set()).add(member[0])
        return {head for head, sides_of_region in sides.items() if len(sides_of_region) == 1}

    def _by_neighbour(self, side: int, alone: set[_Member]) -> dict[tuple[str | None, str], dict[_Member, None]]:
        """By home and neighbour, in the words of the first graph: regions of one side alone."""
        regions: dict[tuple[str | None, str], dict[_Member, None]] = {}
        for member in [candidate for candidate in self._sets if candidate[0] == side]:
            head = self._sets.find(member)
            if head in alone:
                home = self._homes[side].get(member[1])
                for word in self._beside(side, self._flows[side].by_key[member[1]]):
                    regions.setdefault((home, word), {})[head] = None
        return regions

    def _beside(self, side: int, node: Node) -> Iterator[str]:
        """The paired nodes that a node reads from or that read from it, and its weights."""
        flow: DiffGraph = self._flows[side]
        for value in node.outputs:
            for use in flow.uses.get(value, ()):
                reader = self._in_words(side, use.reader)
                if reader is not None:
                    yield f"read by {reader}"
        for value in node.inputs:
            constant = flow.constants.get(value)
            maker = flow.producers.get(value)
            if constant is not None:
                if constant.digest is not None and not constant.small:
                    yield constant.digest
            elif maker is not None:
                above = self._in_words(side, maker[0])
                if above is not None:
                    yield f"{maker[1]} of {above}"

    def _in_words(self, side: int, node: Node) -> str | None:
        """A paired node, as the first graph calls it."""
        if side == _LEFT:
            return node.key if node.key in self._pairs.right else None
        partner = self._pairs.left.get(node.key)
        return None if partner is None else partner.key

    def _regions(self) -> Iterator[ChangedRegion]:
        members: dict[_Member, tuple[list[Node], list[Node]]] = {}
        for side, flow in enumerate(self._flows):
            for node in flow.order:
                if (side, node.key) in self._sets:
                    head = self._sets.find((side, node.key))
                    members.setdefault(head, ([], []))[side].append(node)
        for left, right in members.values():
            yield ChangedRegion(tuple(left), tuple(right))


# A weight that is paired with more others than these is not looked for any further.
_TRIED = 24
# So near, two weights are the same as far as tools keep them.
_NEAR = 0.25


class ReplacedWeights:
    def __init__(self, pairs: NodePairs, nodes: NodeComparison, weights: WeightDiff) -> None:
        self._pairs, self._nodes, self._weights = pairs, nodes, weights

    def changes(self, region: ChangedRegion) -> Iterator[WeightChange]:
        """Weights that hold the same, whoever reads them, are left out; so are those that are gone with their nodes."""
        readers = self._readers(region)
        left_weights = {
            weight.name: weight for node in region.left for _, weight in self._pairs.left_graph.read_constants(node)
        }
        right_weights = {
            weight.name: weight for node in region.right for _, weight in self._pairs.right_graph.read_constants(node)
        }
        right_weights.update(
            (weight.name, weight) for node in region.left for weight in self._nodes.folded.get(node.key, ())
        )
        left_weights.update(
            (weight.name, weight) for node in region.right for weight in self._nodes.unfolded.get(node.key, ())
        )
        if not left_weights or not right_weights:
            return
        left, right = _drop_equal(left_weights, right_weights)
        packed = dict(self._unpacked(region)) if left else {}
        for weight in left:
            known = readers.get(weight.name, ())
            changes = self._packed(weight, right, packed, known) or self._nearest(weight, right, known)
            if changes is None:
                continue
            right.remove(changes[0])
            if changes[1] is not None:
                yield changes[1]
            readers.pop(weight.name, None)
        for weight in (weight for weight in left if weight.name in readers):
            yield WeightChange(WeightForm.REMOVED, weight_ref(weight), None, readers=readers[weight.name])

    def _unpacked(self, region: ChangedRegion) -> Iterator[tuple[str, np.ndarray]]:
        """By the name of a packed weight: the numbers that it stands for."""
        for node in region.right:
            proto = self._nodes.right_proto(node)
            index = packed_input(proto)
            if index is None or not self._is_read(node.inputs[index]):
                continue
            stored = (value if value in self._pairs.right_graph.constants else "" for value in node.inputs)
            numbers = unpack_weight(proto, self._weights.read_right(stored))
            if numbers is not None:
                yield node.inputs[index], numbers

    def _is_read(self, value: str) -> bool:
        constant = self._pairs.right_graph.constants.get(value)
        return constant is not None and constant.digest is not None

    def _packed(
        self, constant: Constant, others: list[Constant], numbers: Mapping[str, np.ndarray], readers: tuple[str, ...]
    ) -> tuple[Constant, WeightChange] | None:
        for other in others:
            change = (
                self._weights.compare_packed(constant, other, numbers[other.name], readers)
                if other.name in numbers
                else None
            )
            if change is not None:
                return other, change
        return None

    def _readers(self, region: ChangedRegion) -> dict[str, tuple[str, ...]]:
        readers: dict[str, tuple[str, ...]] = {}
        for node in region.left:
            for _, weight in self._pairs.left_graph.read_constants(node):
                readers[weight.name] = (*readers.get(weight.name, ()), node.key)
        return readers

    def _nearest(
        self, constant: Constant, others: list[Constant], readers: tuple[str, ...]
    ) -> tuple[Constant, WeightChange | None] | None:
        """The weight that one has become: of the same size, and with the least loss."""
        best: tuple[float, Constant, WeightChange | None] | None = None
        alike = [other for other in others if prod(other.shape) == prod(constant.shape)]
        for other in alike[:_TRIED]:
            change = self._weights.compare(constant, other, readers)
            loss = 0.0 if change is None else change.relative
            if loss is None:
                loss = float(len(alike) > 1)
            if best is None or loss < best[0]:
                best = loss, other, change
        return (best[1], best[2]) if best is not None and (best[0] <= _NEAR or len(alike) == 1) else None


def _drop_equal(left: Mapping[str, Constant], right: Mapping[str, Constant]) -> tuple[list[Constant], list[Constant]]:
    """Weights of both sides that the other does not hold as they are."""
    known = {weight.digest for weight in left.values() if weight.digest is not None}
    present = {weight.digest for weight in right.values() if weight.digest is not None}
    return (
        [weight for weight in left.values() if not weight.small and weight.digest not in present],
        [weight for weight in right.values() if not weight.small and weight.digest not in known],
    )
