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

from modelexport.graph.algorithms import ValueNumbers
from modelexport.graph.index import Node
from modelexport.inspect.diff.match_keys import (
    BACKWARDS,
    CERTAIN,
    CONTENT,
    CONTENT_USED,
    NEAR,
    REST,
    Description,
    DiffGraph,
    Key,
    NodeSignatures,
    WeightKey,
    attribute_key,
    both_key,
    by_content,
    by_shape,
    module_neighbourhood_key,
    near_key,
    neighbourhood_key,
    number_neighbourhoods,
    operator_key,
    own_keys,
    reads_unordered,
    same_readers_key,
    same_value_keys,
    within_module,
)
from modelexport.inspect.diff.node_diff import NodePairs
from modelexport.record.lineage import Link

# Of several equal nodes, so many are looked at to find the one that fits best.
_LOOKED_AT = 48
# The share of equal weights below which these do not say which layer is which: zeros and ones are everywhere.
_FEW_WEIGHTS = 0.25

Links = Callable[[], Mapping[str, Link]]


def pair_nodes(left: DiffGraph, right: DiffGraph, ends: Mapping[str, str], links: Links) -> NodePairs:
    """links  by the key of a node of the second graph: what it comes from; asked for only if it matters"""
    numbers = ValueNumbers()
    labels = _label_ends(ends)
    exact = NodeSignatures(left, numbers, by_content, labels[0]), NodeSignatures(right, numbers, by_content, labels[1])
    pairs = NodePairs(left, right, ends, exact)
    pairing = _NodePairing(pairs)
    pairing.by_results(exact, CERTAIN)
    # Shape arithmetic is alike in all layers: what reads it tells which is which.
    pairing.above(same_value_keys(exact))
    pairing.by_results(exact, (both_key, same_readers_key))
    if pairing.is_done():
        return pairs
    shaped = NodeSignatures(left, numbers, by_shape, labels[0]), NodeSignatures(right, numbers, by_shape, labels[1])
    akin = _share_of_weights(left, right) >= _FEW_WEIGHTS
    if not akin:
        # Of two models that were trained apart, names are all there is to tell layers from each other.
        beside = [number_neighbourhoods(signatures.flow, numbers, signatures.own, NEAR[1]) for signatures in shaped]
        for steps in range(NEAR[1], -1, -1):
            pairing.by_keys(
                *(
                    module_neighbourhood_key(signatures.flow, numbered[steps])
                    for signatures, numbered in zip(shaped, beside, strict=True)
                )
            )
    near = [
        number_neighbourhoods(flow, numbers, signatures.own, NEAR[0])
        for flow, signatures in zip((left, right), exact, strict=True)
    ]
    # Where all is the same but for weights, nothing else can be meant.
    for steps in NEAR:
        pairing.by_keys(
            *(near_key(signatures, numbered[steps]) for signatures, numbered in zip(shaped, near, strict=True))
        )
    # Weights around a node say more than where it stands.
    for steps in NEAR:
        pairing.by_keys(*(neighbourhood_key(numbered[steps]) for numbered in near), single=True)
    pairing.by_results(exact, CONTENT_USED)
    pairing.above(own_keys(exact))
    pairing.by_results(exact, REST)
    pairing.by_results(shaped, (both_key,))
    pairing.by_keys(WeightKey(left), WeightKey(right), single=True)
    pairing.around(own_keys(exact))
    pairing.by_results(shaped, CONTENT)
    pairing.above(own_keys(shaped))
    pairing.by_results(shaped, REST)
    if akin and not pairing.is_done():
        pairing.by_links(links())
    for likeness in (own_keys(shaped), (attribute_key, attribute_key), (operator_key, operator_key)):
        pairing.around(likeness)
    return pairs


def _share_of_weights(left: DiffGraph, right: DiffGraph) -> float:
    """How many of the weights of both graphs are in both; 1 if there are none."""
    left_digests, right_digests = (
        {constant.digest for constant in flow.constants.values() if not constant.small} for flow in (left, right)
    )
    return (
        len(left_digests & right_digests) / len(left_digests | right_digests) if left_digests | right_digests else 1.0
    )


def _label_ends(ends: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    left = {name: number for number, name in enumerate(ends)}
    right = {f"{name[:2]}{ends[name]}": number for name, number in left.items()}
    return left, right


class _NodePairing:
    def __init__(self, pairs: NodePairs) -> None:
        self._pairs = pairs
        self._left, self._right = pairs.left_graph, pairs.right_graph
        self._fresh: deque[tuple[Node, Node]] = deque()

    def is_done(self) -> bool:
        return not any(True for _ in self._open_left()) or not any(True for _ in self._open_right())

    def _open_left(self) -> Iterator[Node]:
        return (node for node in self._left.order if node.key not in self._pairs.right)

    def _open_right(self) -> Iterator[Node]:
        return (node for node in self._right.order if node.key not in self._pairs.left)

    def by_results(self, signatures: Sequence[NodeSignatures], keys: Sequence[Description]) -> None:
        """By what signatures say; first those that are said to be in the same module."""
        for key in keys:
            for within in (True, False):
                left, right = (
                    within_module(key, signature, flow if within else None)
                    for signature, flow in zip(signatures, (self._left, self._right), strict=True)
                )
                self.by_keys(left, right, backwards=key in BACKWARDS)

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
            open_ones = [key for key in sources if key in self._left.by_key and key not in self._pairs.right]
            node = self._left.by_key[open_ones[0]] if len(sources) == len(open_ones) == 1 else None
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
        score = 0
        for partner, fitness in self._neighbours(node, other):
            if partner is not None:
                score += 1 if partner is fitness else -1
        call = self._left.calls.get(node.key)
        return score, call is not None and call == self._right.calls.get(other.key), node.key == other.key

    def _neighbours(self, node: Node, other: Node) -> Iterator[tuple[Node | None, Node | None]]:
        """The partner that a neighbour of the one has, and the neighbour of the other in the same place."""
        makers = [self._right.producers.get(value) for value in other.inputs]
        for value, same_place in zip(node.inputs, makers, strict=False):
            maker = self._left.producers.get(value)
            if maker is None:
                continue
            partner = self._pairs.right.get(maker[0].key)
            anywhere = reads_unordered(node) and any(maker is not None and maker[0] is partner for maker in makers)
            yield partner, partner if anywhere else same_place and same_place[0]
        for value, right in zip(node.outputs, other.outputs, strict=False):
            uses = self._left.uses.get(value, ())[:_LOOKED_AT]
            readers = {use.reader.key: use.reader for use in self._right.uses.get(right, ())[: 2 * _LOOKED_AT]}
            for use in uses:
                partner = self._pairs.right.get(use.reader.key)
                if partner is not None:
                    yield partner, readers.get(partner.key)

    def _pair(self, node: Node, other: Node) -> None:
        self._pairs.add(node, other)
        self._fresh.append((node, other))

    # from neighbour to neighbour

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
        if node.key not in self._pairs.right:
            return False
        makers = (self._left.producers.get(value) for value in node.inputs)
        if any(maker is not None and maker[0].key not in self._pairs.right for maker in makers):
            return True
        readers = (use.reader for value in node.outputs for use in self._left.uses.get(value, ()))
        return any(reader.key not in self._pairs.right for reader in readers)

    def _pair_above(self, node: Node, other: Node, likeness: tuple[Key, Key]) -> None:
        left = list(_open_makers(node, self._left, self._pairs.right))
        right = list(_open_makers(other, self._right, self._pairs.left))
        if not left or not right:
            return
        self._pair_alike(left, right, likeness, ordered=not reads_unordered(node))

    def _pair_below(self, node: Node, other: Node, likeness: tuple[Key, Key]) -> None:
        for value, same in zip(node.outputs, other.outputs, strict=False):
            left = list(_open_readers(value, self._left, self._pairs.right))
            right = list(_open_readers(same, self._right, self._pairs.left))
            if left and right and len(left) <= _LOOKED_AT and len(right) <= _LOOKED_AT:
                self._pair_alike(left, right, likeness, ordered=True)

    def _pair_alike(
        self,
        left_nodes: Iterable[tuple[int, Node]],
        right_nodes: Iterable[tuple[int, Node]],
        likeness: tuple[Key, Key],
        *,
        ordered: bool,
    ) -> None:
        left = _group_by_kind(left_nodes, likeness[0], ordered=ordered)
        right = _group_by_kind(right_nodes, likeness[1], ordered=ordered)
        for kind, nodes in left.items():
            others = right.get(kind, [])
            if len(nodes) == 1 and len(others) == 1 and self._may_be_paired(nodes[0], others[0]):
                self._pair(nodes[0], others[0])

    def _may_be_paired(self, node: Node, other: Node) -> bool:
        if node.key in self._pairs.right or other.key in self._pairs.left:
            return False
        return _is_in_subgraph(node, self._left) == _is_in_subgraph(other, self._right)


def _is_in_subgraph(node: Node, flow: DiffGraph) -> bool:
    """Whether a node is inside of a body."""
    return node.graph in flow.graph.body_owner


def _group_nodes(nodes: Iterable[Node], key: Key) -> dict[object, list[Node]]:
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        groups.setdefault(key(node), []).append(node)
    return groups


def _open_makers(node: Node, flow: DiffGraph, paired_ones: Mapping[str, Node]) -> Iterator[tuple[int, Node]]:
    for index, value in enumerate(node.inputs):
        maker = flow.producers.get(value)
        if maker is not None and maker[0].key not in paired_ones:
            yield index, maker[0]


def _open_readers(value: str, flow: DiffGraph, paired_ones: Mapping[str, Node]) -> Iterator[tuple[int, Node]]:
    for use in flow.uses.get(value, ()):
        if use.reader.key not in paired_ones:
            yield use.operand, use.reader


def _group_by_kind(nodes: Iterable[tuple[int, Node]], kind_of: Key, *, ordered: bool) -> dict[object, list[Node]]:
    by_kind: dict[object, list[Node]] = {}
    for index, node in nodes:
        group = by_kind.setdefault((index if ordered else 0, kind_of(node)), [])
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
        better = next(
            (candidate for candidate in candidates if candidate.key not in partners and lost(candidate) < lost(node)),
            None,
        )
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
    whole: Counter[str] = Counter()
    paired: Counter[str] = Counter()
    for node in nodes:
        for call in stack(calls.get(node.key, ""))[1:]:
            whole[call] += 1
            paired[call] += node.key in partners
    return {call: count for call, count in whole.items() if count >= _FEWEST and paired[call] < count / 2}
