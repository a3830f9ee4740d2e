"""Input pairs: which value that a node after reads is which one that a node before read, if both do the same work.

It also steps over what a tool has dropped or taken in:

    before    x ──► Mul ──► m ──► MatMul ──► y          after    x ──► FusedMatMul ──► y

    y is anchored; MatMul read m, FusedMatMul reads x: x is anchored to x, and Mul is skipped
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, takewhile

from modelexport.graph.index import Node
from modelexport.graph.operators import (
    CONVOLUTIONS,
    POOLS,
    SAME_SHAPE,
    family,
    is_commutative,
    is_linear,
    is_moving,
    is_product,
    is_rearranging,
    is_view,
)
from modelexport.lineage.anchors import Anchors
from modelexport.lineage.value_classes import NO_CLASS

# Nodes that are stepped over in search of the same value.
_STEPS = 4
# Inputs of a sum that are tried in every order.
_PERMUTED = 3

# The node before that a node after matches, or whose work it does, and whether it is a match.
FindWork = Callable[[Node], "tuple[Node, bool] | None"]


@dataclass(frozen=True, slots=True)
class InputPair:
    """A class after, the class before that it is, and the nodes before that were between it and the reader."""

    class_after: int
    class_before: int
    skipped: tuple[Node, ...] = ()


def pair_inputs(node: Node, origin: Node, anchors: Anchors, find_work: FindWork) -> Iterator[InputPair]:
    """What two nodes read that do the same work: which value of the one is which of the other."""
    for pair in _pair_all(node, origin, anchors, find_work):
        yield _step_over_padding(node, origin, pair, anchors)


def _step_over_padding(reader: Node, origin: Node, pair: InputPair, anchors: Anchors) -> InputPair:
    """Padding that nobody does any more is done by the operator whose window reads it, or it was none at all.

    before    x ──► Clip ──► c ──► Pad ──► p ──► Conv ──► y          after    x ──► Clip ──► c ──► Conv(pads) ──► y
    """
    padding, producer = anchors.before.producers.get(pair.class_before), anchors.after.producers.get(pair.class_after)
    has_window = family(reader.op_type) in CONVOLUTIONS or reader.operator in POOLS
    is_there = producer is not None and producer.operator == "Pad"
    if padding is None or padding.operator != "Pad" or is_there or not has_window:
        return pair
    is_same = (reader.op_type, reader.attributes) == (origin.op_type, origin.attributes)
    skipped = pair.skipped if is_same else (*pair.skipped, padding)
    return InputPair(pair.class_after, anchors.before.inputs(padding)[0], skipped)


def _pair_all(node: Node, origin: Node, anchors: Anchors, find_work: FindWork) -> Iterator[InputPair]:
    # A scale that a quantizer found was not there before.
    after = anchors.after
    read: Sequence[int] = [class_id for class_id in after.data_inputs(node) if not after.is_scale(class_id)]
    origin_read: Sequence[int] = anchors.before.data_inputs(origin)
    if is_commutative(family(node.operator)):
        # Operands have no order: those that are known are taken away, and the rest is told apart by its work.
        read, origin_read = _remove_known(read, origin_read, anchors)
        if len(read) == len(origin_read) == 1:
            yield InputPair(read[0], origin_read[0])
        elif len(read) == len(origin_read) <= _PERMUTED and not any(class_id in anchors for class_id in read):
            yield from _pair_permuted(read, origin_read, anchors, find_work)
        else:
            yield from _pair_bypassed(read, origin_read, anchors)
    elif node.op_type == origin.op_type:
        turned = node.attributes != origin.attributes and len(node.inputs) == len(origin.inputs)
        for class_after, class_before in zip(anchors.after.inputs(node), anchors.before.inputs(origin), strict=False):
            if class_before not in anchors.before.constants:
                transposed = _pair_transposed(class_after, class_before, anchors) if turned else None
                yield transposed or _pair_above_views(node, class_after, class_before, anchors)
    elif len(read) >= len(origin_read):
        # Another operator of the same family: data comes first in all of them, and in the same order.
        reads_more = len(read) > len(origin_read)
        for class_after, class_before in zip(read, origin_read, strict=False):
            # What reads more has taken in what put values together (Concat, Add); none of these is what that made.
            if not (reads_more and len(anchors.before.content_above(class_before)) > 1):
                yield from _pair_like_inputs(node, class_after, class_before, anchors)
        yield from _pair_above_joints(node, origin, anchors, find_work) if reads_more else ()


def _pair_transposed(class_after: int, class_before: int, anchors: Anchors) -> InputPair | None:
    """The same input of two nodes with other attributes. What was transposed may be read along another axis now:

    before    x ──► MatMul ──► m ──► Transpose ──► Split(axis 1) ──► a, b
    after     x ──► MatMul ──► ? ──► Split(axis 2) ──► …                    ? is m
    """
    maker, origin = anchors.after.producers.get(class_after), anchors.before.producers.get(class_before)
    if origin is None or origin.operator != "Transpose" or (maker is not None and maker.operator == "Transpose"):
        return None
    return InputPair(class_after, anchors.before.inputs(origin)[0], (origin,))


def _pair_above_views(node: Node, class_after: int, class_before: int, anchors: Anchors) -> InputPair:
    """The same input of two nodes. Of a view of a view, a tool leaves the last one alone:

    before    x ──► Mul ──► m ──► Reshape ──► v ──► Reshape ──► w          after    x ──► Mul ──► z ──► Reshape ──► w

    What it reads now is what the first one read, unless a view may be in the operator that makes it (Attention).
    """
    producer, views = anchors.after.producers.get(class_after), list[Node]()
    above = class_before
    while is_view(node) and above in anchors.before.producers and is_view(anchors.before.producers[above]):
        views.append(anchors.before.producers[above])
        above = anchors.before.inputs(views[-1])[0]
    maker = anchors.before.producers.get(above)
    if not views or producer is None or maker is None or is_view(producer):
        return _pair_views(class_after, class_before, anchors)
    keeps_shape = family(producer.op_type) == family(maker.op_type) or producer.operator in SAME_SHAPE
    return InputPair(class_after, above, tuple(views)) if keeps_shape else InputPair(class_after, class_before)


def _pair_views(class_after: int, class_before: int, anchors: Anchors) -> InputPair:
    """The same input of two nodes. Of two views before, one behind the other, a tool may have left the first alone:

    before    x ──► Reshape(sizes of x) ──► v ──► Reshape(constant) ──► w ──► MatMul      others read v
    after     x ──► Reshape(sizes of x) ──► z ─────────────────────────────► MatMul      others read z: it is v
    """
    view = anchors.after.producers.get(class_after)
    last = anchors.before.producers.get(class_before)
    first = None if last is None or not is_view(last) else anchors.before.producers.get(anchors.before.inputs(last)[0])
    if view is None or last is None or first is None or not view.op_type == last.op_type == first.op_type:
        return InputPair(class_after, class_before)
    computed = len(anchors.after.data_inputs(view))
    of_last, of_first = len(anchors.before.data_inputs(last)), len(anchors.before.data_inputs(first))
    if computed == of_first != of_last:
        return InputPair(class_after, anchors.before.result(first), (last,))
    return InputPair(class_after, class_before)


def _pair_above_joints(node: Node, origin: Node, anchors: Anchors, find_work: FindWork) -> Iterator[InputPair]:
    """Values that were joined before they were read, each with the one that comes from the same work."""
    read = anchors.after.data_inputs(node)
    joined = _above_joints(anchors.before.data_inputs(origin), len(read), anchors)
    weights = list(_further_weights(node, origin, anchors))
    for class_after in read:
        producer = anchors.after.producers.get(class_after)
        work = None if producer is None or class_after in anchors else find_work(producer)
        if work is None or work[1] or producer is None or anchors.after.result(producer) != class_after:
            continue  # what a match makes is known, and a second output (the sum that was normalized) is other work
        if any(anchors.is_like(weight, anchors.before.constant_inputs(work[0])) for weight in weights):
            continue  # some of that work is done here
        fitting = [class_before for class_before in joined if _distance(class_before, work[0], anchors) is not None]
        if len(fitting) == 1:
            yield InputPair(class_after, _above_own_work(fitting[0], weights, anchors))


def _further_weights(node: Node, origin: Node, anchors: Anchors) -> Iterator[int]:
    """What a node reads of constants beside those of another one, each as often as that one: biases of zero are one
    constant in all layers."""
    own = Counter(map(anchors.group, anchors.before.constant_inputs(origin)))
    for class_id in anchors.after.constant_inputs(node):
        known = anchors.get(class_id)
        if own[anchors.group(known)]:
            own[anchors.group(known)] -= 1
        elif known != NO_CLASS:
            yield known


def _above_own_work(class_before: int, weights: Sequence[int], anchors: Anchors) -> int:
    """The nearest value from one upwards that was not made with any of some weights: who reads them now does that.

    before    x ──► MatMul(w) ──► m ──► Add(b) ──► a, r ──► Add ──► LayerNormalization
    after     x ──► MatMulNBits(w) ──► ?, r ──► SkipLayerNormalization(b)                    ? is m, and not a
    """
    for above in (class_before, *anchors.before.walk_up(class_before)):
        maker = anchors.before.producers.get(above)
        read = [] if maker is None else anchors.before.constant_inputs(maker)
        if not any(anchors.is_like(weight, read) for weight in weights):
            return above
    return class_before


def _above_joints(classes: Sequence[int], wanted: int, anchors: Anchors) -> list[int]:
    """What some values were made from, as far up as it takes for there to be so many; else nothing."""
    frontier, before = list(classes), anchors.before
    for _ in range(_STEPS):
        if len(frontier) >= wanted:
            break
        steps = (before.content_above(value) if value in before.producers else [value] for value in frontier)
        frontier = [source for step in steps for source in step]
    return frontier if len(frontier) == wanted else []


def _remove_known(read: Sequence[int], origin_read: Sequence[int], anchors: Anchors) -> tuple[list[int], list[int]]:
    left = list(origin_read)
    unknown: list[int] = []
    for class_after in read:
        if anchors.get(class_after) in left:
            left.remove(anchors.get(class_after))
        else:
            unknown.append(class_after)
    return unknown, left


def _pair_bypassed(read: Sequence[int], origin_read: Sequence[int], anchors: Anchors) -> Iterator[InputPair]:
    """Values that are known, with what was made from them alone: what did that is gone."""
    for class_after in read:
        below = [lower for lower in origin_read if anchors.is_above(anchors.get(class_after), lower)]
        if len(below) == 1:
            yield InputPair(class_after, below[0])


def _pair_permuted(
    read: Sequence[int], origin_read: Sequence[int], anchors: Anchors, find_work: FindWork
) -> Iterator[InputPair]:
    """Values of which each is one of the others: those that come from the same work."""
    works = [_work_above(class_after, anchors, find_work) for class_after in read]
    fitting = [order for order in permutations(origin_read) if _is_plausible(works, order, anchors)]
    if len(fitting) == 1:
        yield from map(InputPair, read, fitting[0])


def _is_plausible(works: Sequence[tuple[int, Node | None]], order: Sequence[int], anchors: Anchors) -> bool:
    """Whether each value can come from the work that is above it; what is nearer to the same work stays nearer."""
    distances: dict[str, list[tuple[int, int]]] = {}
    for (steps, origin), class_before in zip(works, order, strict=True):
        if origin is None:
            continue
        distance = _distance(class_before, origin, anchors)
        if distance is None or (steps == 0 and distance > 0):
            return False
        distances.setdefault(origin.key, []).append((steps, distance))
    return all((a - c) * (b - d) > 0 for pairs in distances.values() for (a, b), (c, d) in combinations(pairs, 2))


def _work_above(class_after: int, anchors: Anchors, find_work: FindWork) -> tuple[int, Node | None]:
    """The nearest node before whose work is in a value, and how many nodes lie between."""
    for steps in range(_STEPS):
        producer = anchors.after.producers.get(class_after)
        work = None if producer is None else find_work(producer)
        if work is not None:
            origin, is_match = work
            return steps + (not is_match), origin
        read = [] if producer is None else anchors.after.data_inputs(producer)
        if not read:
            break
        class_after = read[0]
    return 0, None


def _distance(class_before: int, origin: Node, anchors: Anchors) -> int | None:
    """How many nodes lie between a value and a node above it; None if it does not come from there."""
    for steps in range(2 * _STEPS):
        producer = anchors.before.producers.get(class_before)
        if producer is origin:
            return steps
        read = [] if producer is None else anchors.before.data_inputs(producer)
        if not read:
            return None
        class_before = read[0]
    return None


def _pair_like_inputs(reader: Node, class_after: int, class_before: int, anchors: Anchors) -> Iterator[InputPair]:
    """Two values that different operators read: one of these may do what the other's neighbours did."""
    producer, origin = anchors.after.producers.get(class_after), anchors.before.producers.get(class_before)
    same = None if producer is None else _find_above(class_after, producer, class_before, anchors)
    views = _pair_views(class_after, class_before, anchors)
    scaled = _pair_above_scales(class_after, class_before, anchors)
    if producer is None or origin is None or views.skipped:
        yield views
    elif scaled is not None:
        yield scaled
    elif _is_read_transposed(reader, producer, origin, anchors):
        yield InputPair(class_after, anchors.before.inputs(origin)[0], (origin,))
    elif same is not None:
        yield same if _has_absorbed(reader, producer, same, anchors) else InputPair(class_after, class_before)
    elif _is_left_to_reader(producer, origin, anchors):
        yield InputPair(class_after, anchors.before.content_inputs(origin)[0], (origin,))
    else:
        yield InputPair(class_after, class_before)
        is_new = is_rearranging(producer) and not is_rearranging(origin)
        if is_new or (is_view(producer) and _is_read(origin, producer, anchors)):
            for source in anchors.after.data_inputs(producer)[:1]:
                yield from _pair_like_inputs(reader, source, class_before, anchors)


def _pair_above_scales(class_after: int, class_before: int, anchors: Anchors) -> InputPair | None:
    """A known value in another shape, with what that was before it was scaled: a view changes no numbers.

    before    m ──► Reshape ──► Transpose ──► t ──► Mul(0.5) ──► s ──► MatMul
    after     m ──► Reshape ──► ? ──► FusedMatMul(alpha)                        ? is t
    """
    producer = anchors.after.producers.get(class_after)
    read = anchors.after.content_inputs(producer) if producer is not None and is_rearranging(producer) else ()
    known = anchors.get(read[0]) if read else NO_CLASS
    between = anchors.before.nodes_between(known, class_before)
    scales = list(takewhile(lambda node: is_linear(node) and not anchors.before.reads_weight(node), between))
    if not scales or not all(map(is_rearranging, between[len(scales) :])):
        return None
    return InputPair(class_after, anchors.before.content_inputs(scales[-1])[0], tuple(scales))


def _is_read_transposed(reader: Node, producer: Node, origin: Node, anchors: Anchors) -> bool:
    """Whether a transposition between two products is in the second one: no weights of the first make up for it, nor
    does a view behind it.

    before    x ──► MatMul(w) ──► k ──► Transpose ──► t ──► MatMul(q)          after    x ──► MatMul(w) ──► ? ──►
                                                                                              FusedMatMul(q)     ? is k
    """
    if origin.operator != "Transpose" or not is_product(reader):
        return False
    maker: Node | None = producer
    for _ in range(_STEPS):
        if maker is None or not is_view(maker):
            break
        maker = anchors.after.producers.get(anchors.after.inputs(maker)[0])
    return maker is not None and is_product(maker)


def _has_absorbed(reader: Node, producer: Node, pair: InputPair, anchors: Anchors) -> bool:
    """Whether the reader has what lay between: it has its constants or its kind, or the producer is what it was."""
    kinds = {family(node.op_type) for node in pair.skipped}
    if producer.op_type == anchors.before.producers[pair.class_before].op_type or family(reader.op_type) in kinds:
        return True
    constants = {class_id for node in pair.skipped for class_id in anchors.before.constant_inputs(node)}
    return any(anchors.get(class_id) in constants for class_id in anchors.after.constant_inputs(reader))


def _is_left_to_reader(producer: Node, origin: Node, anchors: Anchors) -> bool:
    """Whether what a node did with a number is not in another that works with weights, as these are what they were."""
    weights = list(anchors.after.weights(producer))
    scales = is_linear(origin) and len(anchors.before.content_inputs(origin)) == 1
    by_number = not anchors.before.reads_weight(origin) and bool(anchors.before.constant_inputs(origin))
    return scales and by_number and bool(weights) and all(class_id in anchors for class_id in weights)


def _find_above(class_after: int, producer: Node, class_before: int, anchors: Anchors) -> InputPair | None:
    """What a node made, with the nearest value from another one upwards that may be it."""
    skipped: list[Node] = []
    for _ in range(_STEPS):
        origin = anchors.before.producers.get(class_before)
        if origin is None:
            return None
        if _may_be_same(producer, origin, anchors) and anchors.agreement(producer, origin) is not None:
            is_new = is_view(producer) and any(_is_read(each, producer, anchors) for each in skipped)
            return None if is_new else InputPair(class_after, class_before, tuple(skipped))
        content = anchors.before.content_inputs(origin)
        # A view can be put anywhere, and a transposition behind what cuts or pads: another further up says nothing.
        anywhere = is_view(producer) or (is_rearranging(producer) and (is_moving(origin) or len(origin.outputs) > 1))
        if len(content) != 1 or (anywhere and not is_rearranging(origin)):
            return None
        skipped.append(origin)
        class_before = content[0]
    return None


def _is_read(origin: Node, reader: Node, anchors: Anchors) -> bool:
    """Whether a node reads what may be made by another one: that is still done, and done before.

    before    x ──► Reshape ──► Transpose ──► MatMul          after    x ──► Reshape ──► Transpose ──► Reshape ──► Gemm
    """
    makers = map(anchors.after.producers.get, anchors.after.content_inputs(reader))
    kind = origin.op_type, origin.attributes
    return any(maker is not None and (maker.op_type, maker.attributes) == kind for maker in makers)


def _may_be_same(node: Node, origin: Node, anchors: Anchors) -> bool:
    if is_view(node) and is_view(origin):
        return True
    if node.op_type == origin.op_type:
        # A product with a number is not one with a weight.
        weighed = anchors.after.reads_weight(node) == anchors.before.reads_weight(origin)
        return node.attributes == origin.attributes and weighed
    return family(node.op_type) == family(origin.op_type)
