"""What is known of values: which classes of the graph after are which classes of the graph before.

What two nodes read that do the same work: which value of the one is which of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from modelexport.graph.index import Node
from modelexport.graph.operators import family, is_commutative, is_linear, is_rearranging, is_view
from modelexport.graph.protos import plain_domain
from modelexport.lineage.value_classes import NOTHING, Classes


class Anchors:
    """
    known   classes after, mapped to classes before
    also    further classes before that a class after stands for: what lay between did nothing, or is gone
    alike   constants before that hold the same but for type and shape, mapped to one of them
    """

    def __init__(self, before: Classes, after: Classes) -> None:
        self.before, self.after = before, after
        self.known: dict[int, int] = {}
        self.also: dict[int, dict[int, None]] = {}
        self.alike: Mapping[int, int] = {}
        self._groups: dict[int, list[int]] = {}

    def set_alike(self, alike: Mapping[int, int]) -> None:
        self.alike = alike
        for place, group in alike.items():
            self._groups.setdefault(group, []).append(place)

    def readers_before(self, place: int) -> list[Node]:
        """Who read what a value after is, or a constant like it."""
        known = self.get(place)
        group = self._groups.get(self._group(known), [known])
        if len(group) == 1:
            return self.before.readers_of(group[0])  # there may be thousands: no copy
        return [reader for one in group for reader in self.before.readers_of(one)]

    def __contains__(self, place: int) -> bool:
        return place in self.known

    def alive(self) -> frozenset[int]:
        """The classes before that are still there."""
        return frozenset(self.known.values())

    def get(self, place: int) -> int:
        """The class before, or NOTHING."""
        return self.known.get(place, NOTHING)

    def add(self, place: int, other: int) -> bool:
        """Whether this was news. The first word counts; another one is kept beside it."""
        if NOTHING in (place, other) or place in self.after.constants:
            return False
        if place in self.known:
            if self.known[place] != other:
                self.also.setdefault(place, {})[other] = None
            return False
        self.known[place] = other
        return True

    def agreement(self, node: Node, origin: Node) -> int | None:
        """How many inputs of two nodes are known to be the same; None if they cannot do the same work."""
        kind = family(node.op_type)
        if kind != family(origin.op_type):
            return None
        mine, theirs = self.after.inputs(node), self.before.inputs(origin)
        same_operator = node.op_type == origin.op_type
        if same_operator and not is_commutative(kind):
            return self._in_place(mine, theirs)
        return self._anywhere(mine, theirs, strictly=same_operator)

    def is_same_work(self, node: Node, origin: Node) -> bool:
        """Whether nothing can have been thrown in: the same operator with the same constants."""
        if not _is_same_operator(node, origin):
            return False
        if len(self.after.data_inputs(node)) != len(self.before.data_inputs(origin)):
            return False
        return self._has_same_constants(node, origin)

    def may_be_same_work(self, node: Node, origin: Node) -> bool:
        """The same if what always had the same value has become a constant."""
        if not _is_same_operator(node, origin):
            return False
        if self.after.count_varying(node) != self.before.count_varying(origin):
            return False
        return self._has_same_constants(node, origin)

    def _has_same_constants(self, node: Node, origin: Node) -> bool:
        mine = {self._group(self.get(place)) for place in self.after.constant_inputs(node)}
        theirs = {self._group(place) for place in self.before.constant_inputs(origin)}
        small = {place for place in theirs if self.before.constants.get(place) is not None}
        return theirs <= mine or (NOTHING not in mine and theirs - mine <= small)

    def _in_place(self, mine: Sequence[int], theirs: Sequence[int]) -> int | None:
        found = 0
        for place, other in zip(mine, theirs, strict=False):
            known = self.get(place)
            if NOTHING in (known, other):
                continue
            if self._group(known) == self._group(other):
                found += 1
            elif self._contradict(place, other) and not self.is_next(known, other):
                return None
        return found

    def _anywhere(self, mine: Sequence[int], theirs: Sequence[int], *, strictly: bool) -> int | None:
        """The same for inputs whose places mean nothing. An operator that does more may read more."""
        left = [other for other in theirs if other != NOTHING]
        present = len(left)
        strange: list[int] = []
        for place in mine:
            known = self.get(place)
            same = next((other for other in left if self._group(known) == self._group(other)), None)
            if same is not None:
                left.remove(same)
            elif known != NOTHING:
                strange.append(place)
        if strictly and any(self._contradict(place, other) for place in strange for other in left):
            rest = [other for other in left if other not in self.before.constants]
            if len(strange) != len(rest) or not self._are_next(strange, rest):
                return None
        return present - len(left)

    def reads_alike(self, node: Node, origin: Node) -> bool:
        """Whether all that a node reads is known, and is what another one read or what that was made from alone."""
        mine, theirs = self.after.data_inputs(node), self.before.data_inputs(origin)
        return len(mine) == len(theirs) and all(place in self.known for place in mine) and self._are_next(mine, theirs)

    def _are_next(self, places: Sequence[int], others: Sequence[int]) -> bool:
        """Whether each of some values after is one of others before, or one of these is made from it alone."""
        left = list(others)
        for place in places:
            known = self.get(place)
            found = next((other for other in left if known == other or self.is_next(known, other)), None)
            if found is None:
                return False
            left.remove(found)
        return True

    def _contradict(self, place: int, other: int) -> bool:
        """Whether two values in the same place cannot be the same: a constant may stand for what was computed."""
        return (place in self.after.constants) == (other in self.before.constants)

    def is_next(self, known: int, other: int) -> bool:
        """Whether one value is made from the other alone: what did that may have been dropped."""
        return known in self.before.made_from(other)

    def is_like(self, place: int, others: Iterable[int]) -> bool:
        """Whether a constant before holds the same as one of others."""
        return any(self._group(place) == self._group(other) for other in others)

    def _group(self, place: int) -> int:
        return self.alike.get(place, place)


def _is_same_operator(node: Node, origin: Node) -> bool:
    """An operator of the same name in another domain may do more: ONNX Runtime's own Conv has an activation inside."""
    return (node.op_type, plain_domain(node.domain)) == (origin.op_type, plain_domain(origin.domain))


# Nodes that are stepped over in search of the same value.
_STEPS = 4
# Inputs of a sum that are tried in every order.
_UNORDERED = 3

# The node before that a node after matches, or whose work it does, and whether it is a match.
Done = Callable[[Node], "tuple[Node, bool] | None"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A class after, the class before that it is, and the nodes before that were between it and the reader."""

    place: int
    other: int
    skipped: tuple[Node, ...] = ()


def paired_inputs(node: Node, origin: Node, anchors: Anchors, done: Done) -> Iterator[Pair]:
    mine, theirs = anchors.after.data_inputs(node), anchors.before.data_inputs(origin)
    if is_commutative(family(node.op_type)):
        mine, theirs = _unpaired(mine, theirs, anchors)
        if len(mine) == len(theirs) == 1:
            yield Pair(mine[0], theirs[0])
        elif len(mine) == len(theirs) <= _UNORDERED and not any(place in anchors for place in mine):
            yield from _unordered(mine, theirs, anchors, done)
        else:
            yield from _next_ones(mine, theirs, anchors)
    elif node.op_type == origin.op_type:
        for place, other in zip(anchors.after.inputs(node), anchors.before.inputs(origin), strict=False):
            if other not in anchors.before.constants:
                yield Pair(place, other)
    elif len(mine) >= len(theirs):
        more = len(mine) > len(theirs)
        for place, other in zip(mine, theirs, strict=False):
            # What reads more has taken in what put values together, and none of these is what that made.
            if not (more and _is_joined(other, anchors)):
                yield from _in_like_places(node, place, other, anchors)
        yield from _behind_joints(node, theirs, anchors, done) if more else ()


def _is_joined(place: int, anchors: Anchors) -> bool:
    """Whether a value before is put together of several."""
    maker = anchors.before.makers.get(place)
    return maker is not None and len(anchors.before.content(maker)) > 1


def _behind_joints(node: Node, theirs: Sequence[int], anchors: Anchors, done: Done) -> Iterator[Pair]:
    """Values that were joined before they were read, each with the one that comes from the same work."""
    mine = anchors.after.data_inputs(node)
    joined = _before_joints(theirs, len(mine), anchors)
    weights = [anchors.get(place) for place in anchors.after.constant_inputs(node) if place in anchors]
    for place in mine:
        maker = anchors.after.makers.get(place)
        found = None if maker is None or place in anchors else done(maker)
        if found is None or found[1]:
            continue  # what a match makes is known
        if any(anchors.is_like(weight, anchors.before.constant_inputs(found[0])) for weight in weights):
            continue  # some of that work is done here
        fitting = [other for other in joined if _distance(other, found[0], anchors) is not None]
        if len(fitting) == 1:
            yield Pair(place, fitting[0])


def _before_joints(values: Sequence[int], wanted: int, anchors: Anchors) -> list[int]:
    """What some values were made from, as far up as it takes for there to be so many; else nothing."""
    found = list(values)
    for _ in range(_STEPS):
        if len(found) >= wanted:
            break
        makers = [anchors.before.makers.get(value) for value in found]
        read = [
            [value] if maker is None else anchors.before.content(maker)
            for value, maker in zip(found, makers, strict=True)
        ]
        found = [value for values in read for value in values]
    return found if len(found) == wanted else []


def _unpaired(mine: Sequence[int], theirs: Sequence[int], anchors: Anchors) -> tuple[list[int], list[int]]:
    """What is left when those that are known to be the same are taken away, one by one."""
    left = list(theirs)
    spare: list[int] = []
    for place in mine:
        if anchors.get(place) in left:
            left.remove(anchors.get(place))
        else:
            spare.append(place)
    return spare, left


def _next_ones(mine: Sequence[int], theirs: Sequence[int], anchors: Anchors) -> Iterator[Pair]:
    """Values that are known, with what was made from them alone: what did that is gone."""
    for place in mine:
        following = [other for other in theirs if anchors.is_next(anchors.get(place), other)]
        if len(following) == 1:
            yield Pair(place, following[0])


def _unordered(mine: Sequence[int], theirs: Sequence[int], anchors: Anchors, done: Done) -> Iterator[Pair]:
    """Values of which each is one of the others: those that come from the same work."""
    above = [_work_above(place, anchors, done) for place in mine]
    fitting = [order for order in permutations(theirs) if _is_plausible(above, order, anchors)]
    if len(fitting) == 1:
        yield from map(Pair, mine, fitting[0])


def _is_plausible(above: Sequence[tuple[int, Node | None]], order: Sequence[int], anchors: Anchors) -> bool:
    """Whether each value can come from the work that is above it; what is nearer to the same work stays nearer."""
    far: dict[str, list[tuple[int, int]]] = {}
    for (steps, origin), other in zip(above, order, strict=True):
        if origin is None:
            continue
        distance = _distance(other, origin, anchors)
        if distance is None or (steps == 0 and distance > 0):
            return False
        far.setdefault(origin.key, []).append((steps, distance))
    return all((a - c) * (b - d) > 0 for pairs in far.values() for (a, b), (c, d) in combinations(pairs, 2))


def _work_above(place: int, anchors: Anchors, done: Done) -> tuple[int, Node | None]:
    """The nearest node before whose work is in a value, and how many nodes lie between."""
    for steps in range(_STEPS):
        maker = anchors.after.makers.get(place)
        if maker is None:
            break
        found = done(maker)
        if found is not None:
            origin, is_match = found
            return steps + (not is_match), origin
        read = anchors.after.data_inputs(maker)
        if not read:
            break
        place = read[0]
    return 0, None


def _distance(other: int, origin: Node, anchors: Anchors) -> int | None:
    """How many nodes lie between a value and a node above it; None if it does not come from there."""
    for steps in range(2 * _STEPS):
        maker = anchors.before.makers.get(other)
        if maker is origin:
            return steps
        read = [] if maker is None else anchors.before.data_inputs(maker)
        if not read:
            return None
        other = read[0]
    return None


def _in_like_places(reader: Node, place: int, other: int, anchors: Anchors) -> Iterator[Pair]:
    """Two values that different operators read: one of these may do what the other's neighbours did."""
    maker, origin = anchors.after.makers.get(place), anchors.before.makers.get(other)
    same = None if maker is None else _same_above(place, maker, other, anchors)
    if maker is None or origin is None:
        yield Pair(place, other)
    elif same is not None:
        yield same if _has_taken_in(reader, maker, same, anchors) else Pair(place, other)
    elif _is_left_to_reader(maker, origin, anchors):
        yield Pair(place, anchors.before.content(origin)[0], (origin,))
    else:
        yield Pair(place, other)
        if is_rearranging(maker) and not is_rearranging(origin):
            for read in anchors.after.data_inputs(maker)[:1]:
                yield from _in_like_places(reader, read, other, anchors)


def _has_taken_in(reader: Node, maker: Node, pair: Pair, anchors: Anchors) -> bool:
    """Whether what lay between two nodes is in the reader now: an operator of another kind may have taken it in itself,
    unless it is the reader that has its constants or is of its kind."""
    kinds = {family(node.op_type) for node in pair.skipped}
    if maker.op_type == anchors.before.makers[pair.other].op_type or family(reader.op_type) in kinds:
        return True
    constants = {place for node in pair.skipped for place in anchors.before.constant_inputs(node)}
    return any(anchors.get(place) in constants for place in anchors.after.constant_inputs(reader))


def _is_left_to_reader(maker: Node, origin: Node, anchors: Anchors) -> bool:
    """Whether what a node did with a number is not in another that works with weights, as these are what they were."""
    weights = list(anchors.after.weights(maker))
    changes = is_linear(origin) and len(anchors.before.content(origin)) == 1
    by_number = not anchors.before.weighs(origin) and bool(anchors.before.constant_inputs(origin))
    return changes and by_number and bool(weights) and all(place in anchors for place in weights)


def _same_above(place: int, maker: Node, other: int, anchors: Anchors) -> Pair | None:
    """What a node made, with the nearest value from another one upwards that may be it."""
    skipped: list[Node] = []
    for _ in range(_STEPS):
        origin = anchors.before.makers.get(other)
        if origin is None:
            return None
        if _may_be_same(maker, origin, anchors) and anchors.agreement(maker, origin) is not None:
            return Pair(place, other, tuple(skipped))
        content = anchors.before.content(origin)
        # A view can be put anywhere: that there is another further up says nothing.
        if len(content) != 1 or (is_view(maker) and not is_rearranging(origin)):
            return None
        skipped.append(origin)
        other = content[0]
    return None


def _may_be_same(node: Node, origin: Node, anchors: Anchors) -> bool:
    """Whether two nodes may do the same work, as far as they themselves say."""
    if is_view(node) and is_view(origin):
        return True
    if node.op_type == origin.op_type:
        # A product with a number is not one with a weight.
        return node.attributes == origin.attributes and anchors.after.weighs(node) == anchors.before.weighs(origin)
    return family(node.op_type) == family(origin.op_type)
