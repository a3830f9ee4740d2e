"""What two nodes read that do the same work: which value of the one is which of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from modelexport.graph.index import Node
from modelexport.lineage.anchors import Anchors
from modelexport.lineage.operators import family, is_commutative, is_linear, is_rearranging, is_view

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
