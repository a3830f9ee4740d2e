"""Changed regions: connected nodes without a partner on one side, and those that do their work on the other.

    before   MatMul ─► Add ─► Relu          one region: (MatMul, Add, Relu) replaced by (FusedGemm)
    after    FusedGemm

Nodes are joined (union-find) if one reads the other within a module, if they make the value that a paired node reads in
the same place, if lineage links them, or if they lie beside the same paired node. `ReplacedWeights` says what became of
the weights of such nodes: cast, quantized, transposed, packed, or gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
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
_Homes = Mapping[str, str]
# Relations of a node to others whose work it does.
_WORKING = frozenset({Relation.FUSED, Relation.REWRITTEN, Relation.SPLIT, Relation.KEPT, Relation.RENAMED})


@dataclass(frozen=True, slots=True)
class ChangedRegion:
    """Nodes of the first file, in order, and the nodes of the second that stand in their place."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]


class RegionFinder:
    """
    homes    by side and key: where a node belongs, the same for both sides where that is the same module
    links    by the key of a node of the second graph: which nodes of the first it comes from
    altered  keys of paired nodes of the second graph that are not the same as their partners
    """

    def __init__(
        self, pairs: NodePairs, homes: tuple[_Homes, _Homes], links: Mapping[str, Link], altered: Collection[str]
    ) -> None:
        self._pairs, self._homes, self._links, self._altered = pairs, homes, links, altered
        self._flows = (pairs.left_graph, pairs.right_graph)
        self._sets: UnionFind[_Member] = UnionFind()
        self._gone: dict[_Member, set[str]] = {}  # by head: the keys of all nodes of the first graph

    def find_regions(self) -> list[ChangedRegion]:
        for side, (flow, paired) in enumerate(zip(self._flows, (self._pairs.right, self._pairs.left), strict=True)):
            for node in flow.order:
                if node.key not in paired:
                    self._add((side, node.key))
        # From what is certain to what is likely: each step sees the regions that those before it have made.
        self._join_neighbours()
        self._join_by_readers()
        self._join_by_links()
        self._join_adjacent()
        members: dict[_Member, tuple[list[Node], list[Node]]] = {}
        for side, flow in enumerate(self._flows):
            for node in flow.order:
                if (side, node.key) in self._sets:
                    members.setdefault(self._sets.find((side, node.key)), ([], []))[side].append(node)
        return [ChangedRegion(tuple(left), tuple(right)) for left, right in members.values()]

    def _add(self, member: _Member) -> None:
        self._sets.add(member)
        self._gone[member] = {member[1]} if member[0] == _LEFT else set()

    def _join(self, member: _Member, other: _Member) -> None:
        heads = self._sets.join(member, other)
        if heads is not None:
            self._gone[heads[0]] |= self._gone.pop(heads[1])

    def _join_neighbours(self) -> None:
        """Within a module: an unpaired chain that runs through two modules is one region in each."""
        for side, key in list(self._sets):
            homes, flow = self._homes[side], self._flows[side]
            for maker in flow.makers(flow.by_key[key]):
                if (side, maker.key) in self._sets and homes.get(maker.key) == homes.get(key):
                    self._join((side, maker.key), (side, key))

    def _join_by_readers(self) -> None:
        """What makes the values that a paired node reads in the same place, or that the model returns as one output."""
        pairs, (left, right) = self._pairs, self._flows
        paired = [node for node in left.order if node.key in pairs.right]
        read = [values for node in paired for values in pairs.aligned_inputs(node, pairs.right[node.key])]
        for value, other_value in (*read, *pairs.io.outputs.items()):
            maker, other = left.maker(value), right.maker(other_value)
            if maker is None or other is None:
                continue
            member, other_member = (_LEFT, maker.key), (_RIGHT, other.key)
            if member in self._sets and other_member in self._sets:
                self._join(member, other_member)

    def _join_by_links(self) -> None:
        for key, link in self._links.items():
            member = (_RIGHT, key)
            gone = [source for source in link.sources if (_LEFT, source) in self._sets]
            if link.relation not in _WORKING or not gone:
                continue
            if member not in self._sets:
                # A paired node that is not the same any more may have taken in what is gone: Gemm of MatMul and Add.
                if not (link.relation is Relation.FUSED and key in self._pairs.left and key in self._altered):
                    continue
                partner = (_LEFT, self._pairs.left[key].key)
                self._add(member)
                self._add(partner)
                self._join(member, partner)
            for source in self._connected(member, gone):
                self._join(member, (_LEFT, source))

    def _connected(self, member: _Member, sources: list[str]) -> Iterator[str]:
        """Those sources that are joined to what a node is known to stand for; all if nothing is known."""
        known = set(self._gone[self._sets.find(member)])
        if not known:
            yield from sources
            return
        flow = self._flows[_LEFT]
        nodes = {key: flow.by_key[key] for key in sources}
        beside = {key: [near.key for near in (*flow.makers(node), *flow.readers(node))] for key, node in nodes.items()}
        # Lineage may name nodes of other layers too; only those that can be reached step by step are meant.
        while joined := [key for key in sources if key not in known and not known.isdisjoint(beside[key])]:
            yield from joined
            known.update(joined)

    def _join_adjacent(self) -> None:
        """What is left on both sides of one module, and lies beside the same."""
        sides: dict[_Member, set[int]] = {}
        for member in self._sets:
            sides.setdefault(self._sets.find(member), set()).add(member[0])
        left, right = (self._by_neighbour(side, [head for head in sides if sides[head] == {side}]) for side in (0, 1))
        for key, heads in left.items():
            others = right.get(key, set())
            # Of several candidates none is taken: a wrong replacement is worse than a removed and an added node.
            if len(heads) == 1 and len(others) == 1:
                self._join(*heads, *others)

    def _by_neighbour(self, side: int, heads: Iterable[_Member]) -> dict[tuple[str | None, str], set[_Member]]:
        """By home and neighbour, in the words of the first graph: regions of one side alone."""
        regions: dict[tuple[str | None, str], set[_Member]] = {}
        alone, flow = set(heads), self._flows[side]
        partners = (self._pairs.right, self._pairs.left)[side]
        names = {key: key if side == _LEFT else partner.key for key, partner in partners.items()}
        for member in self._sets:
            head = self._sets.find(member)
            for word in _describe_beside(flow, flow.by_key[member[1]], names) if head in alone else ():
                regions.setdefault((self._homes[side].get(member[1]), word), set()).add(head)
        return regions


def _describe_beside(flow: DiffGraph, node: Node, names: Mapping[str, str]) -> Iterator[str]:
    """The paired nodes that a node reads from or that read from it, and its weights.

    names  of paired nodes, by key: as the first graph calls them
    """
    yield from (f"read by {names[reader.key]}" for reader in flow.readers(node) if reader.key in names)
    for value in node.inputs:
        constant, (maker, index) = flow.constants.get(value), flow.producers.get(value, (None, 0))
        if constant is not None and constant.digest is not None and not constant.small:
            yield constant.digest
        elif maker is not None and maker.key in names:
            yield f"{index} of {names[maker.key]}"


# A weight that is paired with more others than these is not looked for any further: each try reads both.
_TRIED = 24
# Beyond this relative loss a weight is not what another has become, unless no other has its size.
_NEAR = 0.25


class ReplacedWeights:
    """What became of the weights that the nodes of a region read."""

    def __init__(self, pairs: NodePairs, nodes: NodeComparison, weights: WeightDiff) -> None:
        self._pairs, self._nodes, self._weights = pairs, nodes, weights

    def changes(self, region: ChangedRegion) -> Iterator[WeightChange]:
        """Weights that hold the same, whoever reads them, are left out; so are those that are gone with their nodes."""
        flows, nodes = (self._pairs.left_graph, self._pairs.right_graph), self._nodes
        readers: dict[str, tuple[str, ...]] = {}
        read = [(node.key, weight) for node in region.left for _, weight in flows[0].read_constants(node)]
        for key, weight in read:
            readers[weight.name] = (*readers.get(weight.name, ()), key)
        right_read = [weight for node in region.right for _, weight in flows[1].read_constants(node)]
        # A constant may stand for all that a node computed, and a node for a constant: folded, or unfolded.
        right_read += [weight for node in region.left for weight in nodes.folded.get(node.key, ())]
        unfolded = [weight for node in region.right for weight in nodes.unfolded.get(node.key, ())]
        if not right_read:
            return
        left, right = _drop_equal([*(weight for _, weight in read), *unfolded], right_read)
        packed = dict(self._unpack_weights(region)) if left else {}
        for weight in left:
            known = readers.get(weight.name, ())
            match = self._match_packed(weight, right, packed, known) or self._match_nearest(weight, right, known)
            if match is not None:
                right.remove(match[0])
                if match[1] is not None:
                    yield match[1]
                readers.pop(weight.name, None)
        for weight in left:
            if weight.name in readers:
                yield WeightChange(WeightForm.REMOVED, weight_ref(weight), None, readers=readers[weight.name])

    def _unpack_weights(self, region: ChangedRegion) -> Iterator[tuple[str, np.ndarray]]:
        """By the name of a packed weight: the numbers that it stands for."""
        constants = self._pairs.right_graph.constants
        for node in region.right:
            proto = self._nodes.right_proto(node)
            index = packed_input(proto)
            packed = None if index is None else constants.get(node.inputs[index])
            # Without a digest, weights are not to be read (`diff --no-weights`).
            if packed is None or packed.digest is None:
                continue
            stored = (value if value in constants else "" for value in node.inputs)
            numbers = unpack_weight(proto, self._weights.read_right(stored))
            if numbers is not None:
                yield packed.name, numbers

    def _match_packed(
        self, constant: Constant, others: list[Constant], numbers: Mapping[str, np.ndarray], readers: tuple[str, ...]
    ) -> tuple[Constant, WeightChange] | None:
        for other in (candidate for candidate in others if candidate.name in numbers):
            change = self._weights.compare_packed(constant, other, numbers[other.name], readers)
            if change is not None:
                return other, change
        return None

    def _match_nearest(
        self, constant: Constant, others: list[Constant], readers: tuple[str, ...]
    ) -> tuple[Constant, WeightChange | None] | None:
        """The weight that one has become: of the same size, and with the least loss."""
        best: tuple[float, Constant, WeightChange | None] | None = None
        alike = [other for other in others if prod(other.shape) == prod(constant.shape)]
        for other in alike[:_TRIED]:
            change = self._weights.compare(constant, other, readers)
            loss = 0.0 if change is None else change.relative
            # What cannot be compared is the one if there is no other, and else the last that is meant.
            if loss is None:
                loss = float(len(alike) > 1)
            if best is None or loss < best[0]:
                best = loss, other, change
        return best[1:] if best is not None and (best[0] <= _NEAR or len(alike) == 1) else None


def _drop_equal(left: Iterable[Constant], right: Iterable[Constant]) -> tuple[list[Constant], list[Constant]]:
    """Weights of both sides, each once, that the other does not hold as they are."""
    sides = [{weight.name: weight for weight in weights} for weights in (left, right)]
    known, present = ({weight.digest for weight in side.values()} - {None} for side in sides)
    return (
        [weight for weight in sides[0].values() if not weight.small and weight.digest not in present],
        [weight for weight in sides[1].values() if not weight.small and weight.digest not in known],
    )
