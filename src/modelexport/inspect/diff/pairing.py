"""Pairing the nodes of two graphs one to one, from what is certain to what is merely likely.

First come nodes that compute the same, or of which the same is made; then those that read the same weights; then the
neighbours of what is paired. What a node is called never counts, and which module it is in only where several would do.

Which node of the one graph is which of the other, and what that makes the same thing in both.

Of two nodes that would do as the partner of a third, the one whose module is still there.

Where a layer is taken out, what came first in it and what comes first behind it may be the same operator, on the same
value now. Which of the two is gone cannot be told from what they compute; that all of one module is gone can.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modelexport.graph.algorithms import ValueNumbers
from modelexport.graph.index import Node
from modelexport.inspect.diff.flow import (
    BACKWARDS,
    CERTAIN,
    CONTENT,
    CONTENT_USED,
    NEAR,
    REST,
    Described,
    Flow,
    Key,
    Signatures,
    Weights,
    alone,
    attributes_alike,
    both,
    both_and_near,
    by_content,
    by_shape,
    computing_the_same,
    doing_the_same,
    neighbourhoods,
    operator_of,
    read_by_the_same,
    reads_unordered,
    told_alike,
    told_near,
)
from modelexport.record.lineage import Link


@dataclass(frozen=True)
class Pairs:
    """
    right  by the key of a node of the first graph: the node of the second
    left   the other way round
    ends   inputs and outputs of the first graph (`i:name`, `o:name`), mapped to their names in the second
    exact  the signatures of both, with what weights hold
    """

    left_flow: Flow
    right_flow: Flow
    ends: Mapping[str, str]
    exact: tuple[Signatures, Signatures]
    right: dict[str, Node] = field(default_factory=dict)
    left: dict[str, Node] = field(default_factory=dict)

    def add(self, one: Node, other: Node) -> None:
        self.right[one.key] = other
        self.left[other.key] = one

    def are_same(self, value: str, other: str) -> bool:
        """Whether two values that are no constants are the same thing in both graphs; one may have several makers."""
        if not value or not other:
            return value == other
        mine, theirs = self.left_flow.producers.get(value), self.right_flow.producers.get(other)
        if mine is None or theirs is None:
            return mine is None and theirs is None and self._are_given(value, other)
        if mine[1] != theirs[1]:
            return False
        partner, origin = self.right.get(mine[0].key), self.left.get(theirs[0].key)
        if partner is None or origin is None:
            return False
        if partner is theirs[0]:
            return True
        # Several nodes may compute one value: it does not matter which of them is read.
        left, right = self.exact[0].down, self.exact[1].down
        twins = right.get(partner.outputs[theirs[1]]) == right.get(other)
        return twins or left.get(origin.outputs[mine[1]]) == left.get(value)

    def aligned_inputs(self, node: Node, other: Node) -> list[tuple[str, str]]:
        """What two paired nodes read in the same place; an input that only one of them has goes with an empty name.

        The inputs of a commutative operator have no places: `Max(a, b)` beside `Max(b, c)` gives `(b, b), (a, c)`.
        """
        length = max(len(node.inputs), len(other.inputs))
        left, right = ([*one.inputs, *[""] * (length - len(one.inputs))] for one in (node, other))
        if reads_unordered(node):
            right = self._reordered(left, right)
        return list(zip(left, right, strict=True))

    def _reordered(self, left: list[str], right: list[str]) -> list[str]:
        """The inputs of the second node, each in the place of the one that is the same; the rest as they come."""
        spare = dict(enumerate(right))
        matches: dict[int, str] = {}
        for place, value in enumerate(left):
            candidates = sorted(spare, key=lambda other: other != place)
            match = next((other for other in candidates if self._are_equal(value, spare[other])), None)
            if match is not None:
                matches[place] = spare.pop(match)
        rest = iter(spare.values())
        return [matches[place] if place in matches else next(rest) for place in range(len(left))]

    def _are_equal(self, value: str, other: str) -> bool:
        """The same value, or constants of the same content."""
        one, now = self.left_flow.constants.get(value), self.right_flow.constants.get(other)
        if one is None and now is None:
            return self.are_same(value, other)
        return one is not None and now is not None and (one.digest, one.shape) == (now.digest, now.shape)

    def _are_given(self, value: str, other: str) -> bool:
        if self.ends.get(f"i:{value}") == other:
            return True
        mine, theirs = _place_in_body(value, self.left_flow), _place_in_body(other, self.right_flow)
        if mine is None or theirs is None:
            return False
        owner, body, place = mine
        partner = self.right.get(owner)
        return partner is not None and (partner.key, body, place) == theirs


def _place_in_body(value: str, flow: Flow) -> tuple[str, str, int] | None:
    """For what a body is given: the node that runs it, which of its bodies, and the place."""
    body = value.rpartition("|")[0]
    if body not in flow.graph.body_owner or value not in flow.graph.body_inputs[body]:
        return None
    owner = flow.graph.body_owner[body]
    return owner, body.removeprefix(owner), flow.graph.body_inputs[body].index(value)


# Of several equal nodes, so many are looked at to find the one that fits best.
_LOOKED_AT = 48
# The share of equal weights below which these do not say which layer is which: zeros and ones are everywhere.
_FEW_WEIGHTS = 0.25

Links = Callable[[], Mapping[str, Link]]


def paired(left: Flow, right: Flow, ends: Mapping[str, str], links: Links) -> Pairs:
    """links  by the key of a node of the second graph: what it comes from; asked for only if it matters"""
    numbers = ValueNumbers()
    labels = _labels(ends)
    exact = Signatures(left, numbers, by_content, labels[0]), Signatures(right, numbers, by_content, labels[1])
    pairs = Pairs(left, right, ends, exact)
    pairing = _Pairing(pairs)
    pairing.by_results(exact, CERTAIN)
    # Shape arithmetic is alike in all layers: what reads it tells which is which.
    pairing.above(computing_the_same(exact))
    pairing.by_results(exact, (both, read_by_the_same))
    if pairing.is_done():
        return pairs
    shaped = Signatures(left, numbers, by_shape, labels[0]), Signatures(right, numbers, by_shape, labels[1])
    akin = _share_of_weights(left, right) >= _FEW_WEIGHTS
    if not akin:
        # Of two models that were trained apart, names are all there is to tell layers from each other.
        beside = [neighbourhoods(one.flow, numbers, one.own, NEAR[1]) for one in shaped]
        for steps in range(NEAR[1], -1, -1):
            pairing.by_keys(*(told_near(one.flow, found[steps]) for one, found in zip(shaped, beside, strict=True)))
    near = [neighbourhoods(flow, numbers, one.own, NEAR[0]) for flow, one in zip((left, right), exact, strict=True)]
    # Where all is the same but for weights, nothing else can be meant.
    for steps in NEAR:
        pairing.by_keys(*(both_and_near(one, found[steps]) for one, found in zip(shaped, near, strict=True)))
    # Weights around a node say more than where it stands.
    for steps in NEAR:
        pairing.by_keys(*(alone(found[steps]) for found in near), single=True)
    pairing.by_results(exact, CONTENT_USED)
    pairing.above(doing_the_same(exact))
    pairing.by_results(exact, REST)
    pairing.by_results(shaped, (both,))
    pairing.by_keys(Weights(left), Weights(right), single=True)
    pairing.around(doing_the_same(exact))
    pairing.by_results(shaped, CONTENT)
    pairing.above(doing_the_same(shaped))
    pairing.by_results(shaped, REST)
    if akin and not pairing.is_done():
        pairing.by_links(links())
    for likeness in (doing_the_same(shaped), (attributes_alike, attributes_alike), (operator_of, operator_of)):
        pairing.around(likeness)
    return pairs


def _share_of_weights(left: Flow, right: Flow) -> float:
    """How many of the weights of both graphs are in both; 1 if there are none."""
    mine, theirs = ({one.digest for one in flow.constants.values() if not one.small} for flow in (left, right))
    return len(mine & theirs) / len(mine | theirs) if mine | theirs else 1.0


def _labels(ends: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    mine = {name: number for number, name in enumerate(ends)}
    theirs = {f"{name[:2]}{ends[name]}": number for name, number in mine.items()}
    return mine, theirs


class _Pairing:
    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._left, self._right = pairs.left_flow, pairs.right_flow
        self._fresh: deque[tuple[Node, Node]] = deque()

    def is_done(self) -> bool:
        return not any(True for _ in self._open_left()) or not any(True for _ in self._open_right())

    def _open_left(self) -> Iterator[Node]:
        return (node for node in self._left.order if node.key not in self._pairs.right)

    def _open_right(self) -> Iterator[Node]:
        return (node for node in self._right.order if node.key not in self._pairs.left)

    def by_results(self, signatures: Sequence[Signatures], keys: Sequence[Described]) -> None:
        """By what signatures say; first those that are said to be in the same module."""
        for key in keys:
            for told in (True, False):
                mine, theirs = (
                    told_alike(key, one, flow if told else None)
                    for one, flow in zip(signatures, (self._left, self._right), strict=True)
                )
                self.by_keys(mine, theirs, backwards=key in BACKWARDS)

    def by_keys(self, mine: Key, theirs: Key, *, backwards: bool = False, single: bool = False) -> None:
        left, right = _grouped(self._open_left(), mine), _grouped(self._open_right(), theirs)
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
            self._pair_best(node, candidates[mine(node)])

    def by_links(self, links: Mapping[str, Link]) -> None:
        """What comes from one node that does the same, where everything around it may be another thing."""
        for other in list(self._open_right()):
            sources = links[other.key].sources if other.key in links else ()
            open_ones = [key for key in sources if key in self._left.by_key and key not in self._pairs.right]
            node = self._left.by_key[open_ones[0]] if len(sources) == len(open_ones) == 1 else None
            if node is not None and operator_of(node) == operator_of(other) and self._may_be_paired(node, other):
                self._pair(node, other)

    def _pair_best(self, node: Node, candidates: list[Node]) -> None:
        while candidates and candidates[0].key in self._pairs.left:
            candidates.pop(0)
        looked_at = [one for one in candidates[:_LOOKED_AT] if one.key not in self._pairs.left]
        if looked_at:
            # The first of the best: candidates are in the order of their graph.
            self._pair(node, max(looked_at, key=lambda other: self._fitness(node, other)))

    def _fitness(self, node: Node, other: Node) -> tuple[int, bool, bool]:
        """How many neighbours say that two nodes are the same, less those that say they are not."""
        score = 0
        for partner, found in self._neighbours(node, other):
            if partner is not None:
                score += 1 if partner is found else -1
        told = self._left.told.get(node.key)
        return score, told is not None and told == self._right.told.get(other.key), node.key == other.key

    def _neighbours(self, node: Node, other: Node) -> Iterator[tuple[Node | None, Node | None]]:
        """The partner that a neighbour of the one has, and the neighbour of the other in the same place."""
        makers = [self._right.producers.get(value) for value in other.inputs]
        for value, same_place in zip(node.inputs, makers, strict=False):
            maker = self._left.producers.get(value)
            if maker is None:
                continue
            partner = self._pairs.right.get(maker[0].key)
            anywhere = reads_unordered(node) and any(one is not None and one[0] is partner for one in makers)
            yield partner, partner if anywhere else same_place and same_place[0]
        for value, theirs in zip(node.outputs, other.outputs, strict=False):
            uses = self._left.uses.get(value, ())[:_LOOKED_AT]
            readers = {use.reader.key: use.reader for use in self._right.uses.get(theirs, ())[: 2 * _LOOKED_AT]}
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
        mine = list(_makers(node, self._left, self._pairs.right))
        theirs = list(_makers(other, self._right, self._pairs.left))
        if not mine or not theirs:
            return
        self._pair_alike(mine, theirs, likeness, ordered=not reads_unordered(node))

    def _pair_below(self, node: Node, other: Node, likeness: tuple[Key, Key]) -> None:
        for value, same in zip(node.outputs, other.outputs, strict=False):
            mine = list(_readers(value, self._left, self._pairs.right))
            theirs = list(_readers(same, self._right, self._pairs.left))
            if mine and theirs and len(mine) <= _LOOKED_AT and len(theirs) <= _LOOKED_AT:
                self._pair_alike(mine, theirs, likeness, ordered=True)

    def _pair_alike(
        self,
        mine: Iterable[tuple[int, Node]],
        theirs: Iterable[tuple[int, Node]],
        likeness: tuple[Key, Key],
        *,
        ordered: bool,
    ) -> None:
        left = _by_kind(mine, likeness[0], ordered=ordered)
        right = _by_kind(theirs, likeness[1], ordered=ordered)
        for kind, nodes in left.items():
            others = right.get(kind, [])
            if len(nodes) == 1 and len(others) == 1 and self._may_be_paired(nodes[0], others[0]):
                self._pair(nodes[0], others[0])

    def _may_be_paired(self, node: Node, other: Node) -> bool:
        if node.key in self._pairs.right or other.key in self._pairs.left:
            return False
        return _root_kind(node, self._left) == _root_kind(other, self._right)


def _root_kind(node: Node, flow: Flow) -> bool:
    """Whether a node is inside of a body."""
    return node.graph in flow.graph.body_owner


def _grouped(nodes: Iterable[Node], key: Key) -> dict[object, list[Node]]:
    found: dict[object, list[Node]] = {}
    for node in nodes:
        found.setdefault(key(node), []).append(node)
    return found


def _makers(node: Node, flow: Flow, paired_ones: Mapping[str, Node]) -> Iterator[tuple[int, Node]]:
    for place, value in enumerate(node.inputs):
        maker = flow.producers.get(value)
        if maker is not None and maker[0].key not in paired_ones:
            yield place, maker[0]


def _readers(value: str, flow: Flow, paired_ones: Mapping[str, Node]) -> Iterator[tuple[int, Node]]:
    for use in flow.uses.get(value, ()):
        if use.reader.key not in paired_ones:
            yield use.operand, use.reader


def _by_kind(nodes: Iterable[tuple[int, Node]], kind_of: Key, *, ordered: bool) -> dict[object, list[Node]]:
    found: dict[object, list[Node]] = {}
    for place, node in nodes:
        group = found.setdefault((place if ordered else 0, kind_of(node)), [])
        if node not in group:
            group.append(node)
    return found


# Modules with fewer nodes do not say whether they are gone.
_FEWEST = 3
_Stack = Callable[[str], tuple[str, ...]]


def settle(pairs: Pairs, side: int, told: Mapping[str, str], stack: _Stack) -> None:
    """side  of the file whose modules are known: 0 for the first"""
    flow = (pairs.left_flow, pairs.right_flow)[side]
    partners = (pairs.right, pairs.left)[side]
    mine, theirs = pairs.exact[side], pairs.exact[1 - side]
    gone = _gone(flow.order, partners, told, stack)
    if not gone:
        return

    def lost(node: Node) -> int:
        """How many nodes the largest module around a node has that is gone."""
        return max((gone[call] for call in stack(told.get(node.key, "")) if call in gone), default=0)

    spare: dict[object, list[Node]] = {}
    for node in flow.order:
        if node.key not in partners:
            for word in _words(node, mine):
                spare.setdefault(word, []).append(node)
    for node in [one for one in flow.order if one.key in partners and lost(one)]:
        partner = partners[node.key]
        candidates = (one for word in _words(partner, theirs) for one in spare.get(word, ()))
        better = next((one for one in candidates if one.key not in partners and lost(one) < lost(node)), None)
        if better is not None:
            del partners[node.key]
            pairs.add(*((better, partner) if side == 0 else (partner, better)))


def _words(node: Node, signatures: Signatures) -> tuple[object, ...]:
    """What else is the same node: what computes the same and is used alike; what does the one or the other."""
    own, value, use = signatures.own[node.key], signatures.of_value(node), signatures.up[node.key]
    return ("both", own, value, use), ("computed", own, value), ("used", own, use)


def _gone(nodes: list[Node], partners: Mapping[str, Node], told: Mapping[str, str], stack: _Stack) -> dict[str, int]:
    """Calls most of whose nodes have no partner, and how many nodes they have."""
    whole: Counter[str] = Counter()
    paired: Counter[str] = Counter()
    for node in nodes:
        for call in stack(told.get(node.key, ""))[1:]:
            whole[call] += 1
            paired[call] += node.key in partners
    return {call: count for call, count in whole.items() if count >= _FEWEST and paired[call] < count / 2}
