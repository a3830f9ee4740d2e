"""What two nodes read that do the same work: which value of the one is which of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from modelexport.graph.index import Node
from modelexport.lineage.anchors import Anchors
from modelexport.lineage.operators import family, is_commutative, is_rearranging, is_view

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
        for place, other in zip(mine, theirs, strict=False):
            yield from _in_like_places(place, other, anchors, more=len(mine) > len(theirs))


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


def _in_like_places(place: int, other: int, anchors: Anchors, *, more: bool) -> Iterator[Pair]:
    """Two values that different operators read: one of these may do what the other's neighbours did.

    more  whether the operator after reads more values: then it has taken in what put them together, and none of them
          is what that made
    """
    maker = anchors.after.makers.get(place)
    skipped: list[Node] = []
    here = other
    for _ in range(_STEPS if maker is not None else 0):
        assert maker is not None
        origin = anchors.before.makers.get(here)
        if origin is None:
            break
        if _may_be_same(maker, origin):
            yield Pair(place, here, tuple(skipped))
            return
        if is_rearranging(maker) and not is_rearranging(origin):
            yield Pair(place, here)
            for read in anchors.after.data_inputs(maker)[:1]:
                yield from _in_like_places(read, here, anchors, more=more)
            return
        content = anchors.before.content(origin)
        if len(content) != 1:
            break
        skipped.append(origin)
        here = content[0]
    if not (more and _is_joined(here, anchors)):
        yield Pair(place, other)


def _is_joined(place: int, anchors: Anchors) -> bool:
    """Whether a value before is put together of several."""
    maker = anchors.before.makers.get(place)
    return maker is not None and len(anchors.before.content(maker)) > 1


def _may_be_same(node: Node, origin: Node) -> bool:
    """Whether two nodes may do the same work, as far as they themselves say."""
    if is_view(node) and is_view(origin):
        return True
    if node.op_type == origin.op_type:
        return node.attributes == origin.attributes
    return family(node.op_type) == family(origin.op_type)
