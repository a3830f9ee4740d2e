"""Graph matching: the nodes of two graphs paired one to one, from what is certain to what is merely likely.

    1. nodes that compute the same and are used alike (value numbers of both directions)
    2. nodes whose neighbourhood is unique: same weights around them, at most eight steps away
    3. nodes that do the same beside nodes that are paired already, spreading outwards
    4. what lineage says of the rest

The name of a node never counts, and its module only where several candidates would do. `lineage` matches graphs too,
but many to many and with evidence: a fusion has several sources. A diff needs one partner or none, and exactness.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from modelexport.graph.algorithms import ValueNumbers
from modelexport.graph.index import Node
from modelexport.graph.related import does_same_work
from modelexport.inspect.diff import match_keys as keys
from modelexport.inspect.diff.match_keys import (
    DiffGraph,
    Key,
    NodeSignatures,
    by_content,
    by_shape,
    operand,
    operator_key,
    reads_unordered,
)
from modelexport.inspect.diff.node_diff import NodePairs
from modelexport.inspect.diff.sides import MatchedIO
from modelexport.record.lineage import Lineage, Link

# Of several equal nodes, so many are looked at to find the one that fits best.
_LOOKED_AT = 48
# The share of equal weights below which these do not say which layer is which: zeros and ones are everywhere.
_FEW_WEIGHTS = 0.25

Links = Callable[[], Lineage]


def pair_nodes(left: DiffGraph, right: DiffGraph, io: MatchedIO, links: Links) -> NodePairs:
    """links  what the nodes of the second graph come from; asked for only if it matters"""
    numbers = ValueNumbers()
    labels = _label_ends(io)
    # Both sides draw from one table of numbers: what is equal in both graphs has an equal number.
    exact = NodeSignatures(left, numbers, by_content, labels[0]), NodeSignatures(right, numbers, by_content, labels[1])
    pairs = NodePairs(left, right, io, exact)
    pairing = _NodePairing(pairs)
    pairing.by_results(exact, keys.CERTAIN)
    # Shape arithmetic is alike in all layers: what reads it tells which is which.
    pairing.above(keys.same_value_keys(exact))
    pairing.by_results(exact, (keys.both_key, keys.same_readers_key))
    if pairing.is_done():
        return pairs
    shaped = NodeSignatures(left, numbers, by_shape, labels[0]), NodeSignatures(right, numbers, by_shape, labels[1])
    akin = _share_of_weights(left, right) >= _FEW_WEIGHTS
    if not akin:
        # Of two models that were trained apart, names are all there is to tell layers from each other.
        beside = [keys.number_neighbourhoods(side.flow, numbers, side.own, keys.NEAR[1]) for side in shaped]
        for steps in range(keys.NEAR[1], -1, -1):
            pairing.by_keys(
                keys.module_neighbourhood_key(left, beside[0][steps]),
                keys.module_neighbourhood_key(right, beside[1][steps]),
            )
    near = [keys.number_neighbourhoods(side.flow, numbers, side.own, keys.NEAR[0]) for side in exact]
    # Where all is the same but for weights, nothing else can be meant.
    for steps in keys.NEAR:
        pairing.by_keys(keys.near_key(shaped[0], near[0][steps]), keys.near_key(shaped[1], near[1][steps]))
    # Weights around a node say more than where it stands.
    for steps in keys.NEAR:
        pairing.by_keys(*(keys.neighbourhood_key(numbered[steps]) for numbered in near), single=True)
    pairing.by_results(exact, keys.CONTENT_USED)
    pairing.above(keys.own_keys(exact))
    pairing.by_results(exact, keys.REST)
    pairing.by_results(shaped, (keys.both_key,))
    pairing.by_keys(keys.weight_key(left), keys.weight_key(right), single=True)
    pairing.around(keys.own_keys(exact))
    pairing.by_results(shaped, keys.CONTENT)
    pairing.above(keys.own_keys(shaped))
    pairing.by_results(shaped, keys.REST)
    # Traced only for nodes that are left. It says little of models that were trained apart; but few weights are equal
    # too where an optimizer has taken normalizations into them.
    if not pairing.is_done() and (akin or does_same_work(links())):
        pairing.by_links(links().nodes)
    for likeness in (keys.own_keys(shaped), (keys.attribute_key,) * 2, (operator_key,) * 2):
        pairing.around(likeness)
    return pairs


def _share_of_weights(left: DiffGraph, right: DiffGraph) -> float:
    """How many of the weights of both graphs are in both; 1 if there are none."""
    digests = [{weight.digest for weight in flow.constants.values() if not weight.small} for flow in (left, right)]
    union = digests[0] | digests[1]
    return len(digests[0] & digests[1]) / len(union) if union else 1.0


def _label_ends(io: MatchedIO) -> tuple[dict[str, int], dict[str, int]]:
    """The same number for an input or output of both graphs; of the rest the name is all there is."""
    ends = [*((f"i:{name}", f"i:{now}") for name, now in io.inputs.items())]
    ends += ((f"o:{name}", f"o:{now}") for name, now in io.outputs.items())
    return {end[0]: number for number, end in enumerate(ends)}, {end[1]: number for number, end in enumerate(ends)}


class _NodePairing:
    """The ways to pair nodes that are still open. A pair is never undone: what comes first must be the surest.

    by_results  equal value numbers, of what is computed or of what it is used for
    by_keys     any key of both sides; several nodes with one key are told apart by their neighbours
    by_links    lineage
    above       from readers to makers
    around      from a node to all its neighbours
    """

    def __init__(self, pairs: NodePairs) -> None:
        self._pairs = pairs
        self._left, self._right = pairs.left_graph, pairs.right_graph
        self._fresh: deque[tuple[Node, Node]] = deque()

    def is_done(self) -> bool:
        return next(self._open_left(), None) is None or next(self._open_right(), None) is None

    def _open_left(self) -> Iterator[Node]:
        return (node for node in self._left.order if node.key not in self._pairs.right)

    def _open_right(self) -> Iterator[Node]:
        return (node for node in self._right.order if node.key not in self._pairs.left)

    def by_results(self, signatures: Sequence[NodeSignatures], descriptions: Sequence[keys.Description]) -> None:
        """By what signatures say; first those that are said to be in the same module."""
        for describe in descriptions:
            # What is known by its use is paired from the outputs on: then its readers have been paired before it.
            backwards = describe in keys.BACKWARDS
            self.by_keys(*(keys.within_module(describe, side) for side in signatures), backwards=backwards)
            self.by_keys(*(partial(describe, side) for side in signatures), backwards=backwards)

    def by_keys(self, left_key: Key, right_key: Key, *, backwards: bool = False, single: bool = False) -> None:
        left, right = _group_nodes(self._open_left(), left_key), _group_nodes(self._open_right(), right_key)
        order = [key for key in (reversed(left) if backwards else left) if key is not None and key in right]
        several: list[object] = []
        for key in order:
            if len(left[key]) == 1 and len(right[key]) == 1:
                self._pair(left[key][0], right[key][0])
            elif not single:
                several.append(key)
        candidates = {key: right[key] for key in several}
        waiting = [node for key in several for node in left[key]]
        waiting.sort(key=lambda node: node.position, reverse=backwards)
        for node in waiting:
            self._pair_best(node, candidates[left_key(node)])

    def by_links(self, links: Mapping[str, Link]) -> None:
        """What comes from one node that does the same, where everything around it may be another thing."""
        for other in list(self._open_right()):
            sources = links[other.key].sources if other.key in links else ()
            node = self._left.by_key.get(sources[0]) if len(sources) == 1 else None
            if node is not None and operator_key(node) == operator_key(other) and self._may_be_paired(node, other):
                self._pair(node, other)

    def _pair_best(self, node: Node, candidates: list[Node]) -> None:
        while candidates and candidates[0].key in self._pairs.left:
            candidates.pop(0)
        looked_at = [candidate for candidate in candidates[:_LOOKED_AT] if candidate.key not in self._pairs.left]
        if looked_at:
            # The first of the best: candidates are in the order of their graph.
            self._pair(node, max(looked_at, key=lambda other: self._fitness(node, other)))

    def _fitness(self, node: Node, other: Node) -> tuple[int, bool, bool]:
        """How many neighbours say that two nodes are the same, less those that say they are not."""
        score = sum(1 if partner is neighbour else -1 for partner, neighbour in self._neighbours(node, other))
        call = self._left.calls.get(node.key)
        return score, call is not None and call == self._right.calls.get(other.key), node.key == other.key

    def _neighbours(self, node: Node, other: Node) -> Iterator[tuple[Node, Node | None]]:
        """The partner that a neighbour of the one has, and the neighbour of the other in the same place."""
        makers = [self._right.maker(value) for value in other.inputs]
        for value, other_maker in zip(node.inputs, makers, strict=False):
            maker = self._left.maker(value)
            partner = None if maker is None else self._pairs.right.get(maker.key)
            if partner is not None:
                anywhere = reads_unordered(node) and partner in makers
                yield partner, partner if anywhere else other_maker
        for value, right in zip(node.outputs, other.outputs, strict=False):
            # A value may have thousands of readers (a mask, say); the first ones tell enough.
            readers = {use.reader.key: use.reader for use in self._right.uses.get(right, ())[: 2 * _LOOKED_AT]}
            for use in self._left.uses.get(value, ())[:_LOOKED_AT]:
                partner = self._pairs.right.get(use.reader.key)
                if partner is not None:
                    yield partner, readers.get(partner.key)

    def _pair(self, node: Node, other: Node) -> None:
        self._pairs.add(node, other)
        self._fresh.append((node, other))

    def above(self, likeness: tuple[Key, Key]) -> None:
        """What makes the values that paired nodes read, where only one on each side is meant; and so on upwards."""
        self._spread(likeness, down=False)

    def around(self, likeness: tuple[Key, Key]) -> None:
        """The neighbours of what is paired, in both directions."""
        self._spread(likeness, down=True)

    def _spread(self, likeness: tuple[Key, Key], *, down: bool) -> None:
        self._fresh = deque((node, self._pairs.right[node.key]) for node in self._left.order if self._is_edge(node))
        while self._fresh:
            node, other = self._fresh.popleft()
            self._pair_above(node, other, likeness)
            if down:
                self._pair_below(node, other, likeness)

    def _is_edge(self, node: Node) -> bool:
        """Whether a node is paired and something beside it is not."""
        paired, flow = self._pairs.right, self._left
        return node.key in paired and any(
            beside.key not in paired for beside in (*flow.makers(node), *flow.readers(node))
        )

    def _pair_above(self, node: Node, other: Node, likeness: tuple[Key, Key]) -> None:
        left = list(_open_makers(node, self._left, self._pairs.right))
        right = list(_open_makers(other, self._right, self._pairs.left))
        self._pair_alike(left, right, likeness)

    def _pair_below(self, node: Node, other: Node, likeness: tuple[Key, Key]) -> None:
        for value, same in zip(node.outputs, other.outputs, strict=False):
            left = list(_open_readers(value, self._left, self._pairs.right))
            right = list(_open_readers(same, self._right, self._pairs.left))
            # Of so many readers one is not told from the next, and to try them all takes time squared.
            if len(left) <= _LOOKED_AT and len(right) <= _LOOKED_AT:
                self._pair_alike(left, right, likeness)

    def _pair_alike(
        self, left_nodes: list[tuple[int, Node]], right_nodes: list[tuple[int, Node]], likeness: tuple[Key, Key]
    ) -> None:
        if not left_nodes or not right_nodes:
            return
        left, right = _group_by_kind(left_nodes, likeness[0]), _group_by_kind(right_nodes, likeness[1])
        for kind, nodes in left.items():
            others = right.get(kind, [])
            if len(nodes) == 1 and len(others) == 1 and self._may_be_paired(nodes[0], others[0]):
                self._pair(nodes[0], others[0])

    def _may_be_paired(self, node: Node, other: Node) -> bool:
        if node.key in self._pairs.right or other.key in self._pairs.left:
            return False
        # A node of a body runs once for each round of a Loop: it is never the same as one outside.
        return (node.graph in self._left.graph.body_owner) == (other.graph in self._right.graph.body_owner)


def _group_nodes(nodes: Iterable[Node], key: Key) -> dict[object, list[Node]]:
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        groups.setdefault(key(node), []).append(node)
    return groups


def _open_makers(node: Node, flow: DiffGraph, paired: Mapping[str, Node]) -> Iterator[tuple[int, Node]]:
    for index, value in enumerate(node.inputs):
        maker = flow.maker(value)
        if maker is not None and maker.key not in paired:
            yield operand(node, index), maker


def _open_readers(value: str, flow: DiffGraph, paired: Mapping[str, Node]) -> Iterator[tuple[int, Node]]:
    return ((use.operand, use.reader) for use in flow.uses.get(value, ()) if use.reader.key not in paired)


def _group_by_kind(nodes: Iterable[tuple[int, Node]], kind_of: Key) -> dict[object, list[Node]]:
    """By operand and kind; a node that reads or makes a value twice over is one candidate."""
    by_kind: dict[object, list[Node]] = {}
    for index, node in nodes:
        group = by_kind.setdefault((index, kind_of(node)), [])
        if node not in group:
            group.append(node)
    return by_kind


# Modules with fewer nodes do not say whether they are gone.
_FEWEST = 3
_Stack = Callable[[str], tuple[str, ...]]


def prefer_same_module(pairs: NodePairs, side: int, calls: Mapping[str, str], stack: _Stack) -> None:
    """side  of the file whose modules are known: 0 for the first"""
    flow = (pairs.left_graph, pairs.right_graph)[side]
    partners = (pairs.right, pairs.left)[side]
    left, right = pairs.exact[side], pairs.exact[1 - side]
    gone = _find_removed_calls(flow.order, partners, calls, stack)
    if not gone:
        return

    def lost(node: Node) -> int:
        """How many nodes the largest module around a node has that is gone."""
        return max((gone[call] for call in stack(calls.get(node.key, "")) if call in gone), default=0)

    spare: dict[object, list[Node]] = {}
    for node in flow.order:
        if node.key not in partners:
            for word in _match_keys(node, left):
                spare.setdefault(word, []).append(node)
    for node in [candidate for candidate in flow.order if candidate.key in partners and lost(candidate)]:
        partner = partners[node.key]
        candidates = (candidate for word in _match_keys(partner, right) for candidate in spare.get(word, ()))
        open_candidates = (candidate for candidate in candidates if candidate.key not in partners)
        better = next((candidate for candidate in open_candidates if lost(candidate) < lost(node)), None)
        if better is not None:
            del partners[node.key]
            pairs.add(*((better, partner) if side == 0 else (partner, better)))


def _match_keys(node: Node, signatures: NodeSignatures) -> tuple[object, ...]:
    """What else is the same node: what computes the same and is used alike; what does the one or the other."""
    own, value, use = signatures.own[node.key], signatures.of_value(node), signatures.up[node.key]
    return ("both", own, value, use), ("computed", own, value), ("used", own, use)


def _find_removed_calls(
    nodes: list[Node], partners: Mapping[str, Node], calls: Mapping[str, str], stack: _Stack
) -> dict[str, int]:
    """Calls most of whose nodes have no partner, and how many nodes they have."""
    counts: Counter[str] = Counter()
    paired: Counter[str] = Counter()
    for node in nodes:
        # Without the model itself: that is never gone.
        inner = stack(calls.get(node.key, ""))[1:]
        counts.update(inner)
        paired.update(inner if node.key in partners else ())
    return {call: count for call, count in counts.items() if count >= _FEWEST and paired[call] < count / 2}
