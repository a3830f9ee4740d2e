"""Anchors: which value classes of the graph after are which value classes of the graph before.

An anchor is a class that is known in both graphs. From it, matching goes on in both directions: the same operator on
anchored inputs makes an anchored output, and what makes an anchored output by the same operator reads anchored inputs.
The second direction is in `input_pairs.py`, which also steps over what a tool has dropped or taken in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from modelexport.graph.index import Node
from modelexport.graph.operators import (
    SAME_SHAPE,
    family,
    is_commutative,
    is_linear,
    is_moving,
    is_rearranging,
    is_view,
)
from modelexport.graph.protos import plain_domain
from modelexport.lineage.value_classes import NO_CLASS, ValueClasses


class Anchors:
    """
    known   by class id after: the class id before
    merged  by class id after: further classes before that it stands for, as what lay between did nothing or is gone
    alike   by id of a constant before: one constant that holds the same but for type and shape
    """

    def __init__(self, before: ValueClasses, after: ValueClasses) -> None:
        self.before, self.after = before, after
        self.known: dict[int, int] = {}
        self.merged: dict[int, dict[int, None]] = {}
        self.alike: Mapping[int, int] = {}
        self._groups: dict[int, list[int]] = {}

    def set_alike(self, alike: Mapping[int, int]) -> None:
        self.alike = alike
        for class_before, group in alike.items():
            self._groups.setdefault(group, []).append(class_before)

    def readers_before(self, class_after: int) -> list[Node]:
        """Who read what a value after is, or a constant like it."""
        known = self.get(class_after)
        group = self._groups.get(self.group(known), [known])
        if len(group) == 1:
            return self.before.readers_of(group[0])  # there may be thousands: no copy
        return [reader for class_before in group for reader in self.before.readers_of(class_before)]

    def __contains__(self, class_after: int) -> bool:
        return class_after in self.known

    def classes_still_there(self) -> frozenset[int]:
        return frozenset(self.known.values())

    def get(self, class_after: int) -> int:
        """The class before, or NO_CLASS."""
        return self.known.get(class_after, NO_CLASS)

    def add(self, class_after: int, class_before: int) -> bool:
        """Whether this was news. The first word counts; another one is kept beside it."""
        # Constants are anchored by their content, before anything else: no conclusion moves them.
        if NO_CLASS in (class_after, class_before) or class_after in self.after.constants:
            return False
        if class_after in self.known:
            if self.known[class_after] != class_before:
                self.merged.setdefault(class_after, {})[class_before] = None
            return False
        self.known[class_after] = class_before
        return True

    def agreement(self, node: Node, origin: Node) -> int | None:
        """How many inputs of two nodes are known to be the same; None if they cannot do the same work."""
        kind = family(node.op_type)
        if kind != family(origin.op_type):
            return None
        inputs, origin_inputs = self.after.inputs(node), self.before.inputs(origin)
        same_operator = node.op_type == origin.op_type
        if same_operator and not is_commutative(kind):
            return self._agree_in_order(inputs, origin_inputs)
        return self._agree_in_any_order(inputs, origin_inputs, strictly=same_operator)

    def is_same_work(self, node: Node, origin: Node, *, folded: bool = False) -> bool:
        """Whether nothing can have been thrown in: the same operator with the same constants.

        folded  what always had the same value may have become a constant since (constant folding)
        """
        # An operator of the same name in another domain may do more: ONNX Runtime's own Conv has an activation inside.
        # https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
        if (node.op_type, plain_domain(node.domain)) != (origin.op_type, plain_domain(origin.domain)):
            return False
        read = self.after.varying_inputs(node) if folded else self.after.data_inputs(node)
        origin_read = self.before.varying_inputs(origin) if folded else self.before.data_inputs(origin)
        if len(read) != len(origin_read):
            return False
        groups = {self.group(self.get(class_id)) for class_id in self.after.constant_inputs(node)}
        origin_groups = {self.group(class_id) for class_id in self.before.constant_inputs(origin)}
        small = {class_id for class_id in origin_groups if self.before.constants.get(class_id) is not None}
        # A small constant may have become an attribute: Clip's limits, Reshape's shape.
        return origin_groups <= groups or (NO_CLASS not in groups and origin_groups - groups <= small)

    def _agree_in_order(self, inputs: Sequence[int], origin_inputs: Sequence[int]) -> int | None:
        same = 0
        for class_after, class_before in zip(inputs, origin_inputs, strict=False):
            known = self.get(class_after)
            if NO_CLASS in (known, class_before):
                continue
            if self.group(known) == self.group(class_before):
                same += 1
            elif self._contradict(class_after, class_before) and not self.is_above(known, class_before):
                return None
        return same

    def _agree_in_any_order(self, inputs: Sequence[int], origin_inputs: Sequence[int], *, strictly: bool) -> int | None:
        """The same for a commutative operator. An operator that does more may read more."""
        left = [class_before for class_before in origin_inputs if class_before != NO_CLASS]
        present = len(left)
        strange: list[int] = []
        for class_after in inputs:
            known = self.get(class_after)
            same = next((class_before for class_before in left if self.is_like(known, (class_before,))), None)
            if same is not None:
                left.remove(same)
            elif known != NO_CLASS:
                strange.append(class_after)
        if strictly and any(self._contradict(class_after, rest) for class_after in strange for rest in left):
            data = [class_before for class_before in left if class_before not in self.before.constants]
            if len(strange) != len(data) or not self._are_above(strange, data):
                return None
        return present - len(left)

    def reads_alike(self, node: Node, origin: Node) -> bool:
        """Whether all that a node reads is known, and is what another one read or what that was made from alone."""
        read, origin_read = self.after.data_inputs(node), self.before.data_inputs(origin)
        known = len(read) == len(origin_read) and all(class_after in self.known for class_after in read)
        return known and self._are_above(read, origin_read)

    def _are_above(self, classes_after: Sequence[int], classes_before: Sequence[int]) -> bool:
        """Whether each of some values after is one of others before, or one of these is made from it alone."""
        left = list(classes_before)
        for class_after in classes_after:
            known = self.get(class_after)
            class_before = next((below for below in left if known == below or self.is_above(known, below)), None)
            if class_before is None:
                return False
            left.remove(class_before)
        return True

    def _contradict(self, class_after: int, class_before: int) -> bool:
        """Whether two values at the same input cannot be the same: a constant may stand for what was computed, but
        what differs from run to run stands for no constant.

        before    x ──► Mul(0.5) ──► y          after    x ──► Mul(x) ──► z          z is not y
        """
        fixed_after = class_after in self.after.constants
        fixed_before = class_before in self.before.constants
        if fixed_before and not fixed_after and class_after not in self.after.foldable:
            return True
        # What is computed from constants now may have been several values: sizes of different tensors.
        if class_after in self.after.foldable and class_before not in self.before.foldable and not fixed_before:
            return False
        return fixed_after == fixed_before

    def is_above(self, upper: int, lower: int) -> bool:
        """Whether one value before is made from another alone: what did that may have been dropped."""
        return upper in self.before.walk_up(lower)

    def is_like(self, class_before: int, others: Iterable[int]) -> bool:
        return any(self.group(class_before) == self.group(other) for other in others)

    def group(self, class_before: int) -> int:
        """The first constant that holds the same as one, or any other class itself."""
        return self.alike.get(class_before, class_before)


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
    # A scale that a quantizer found was not there before.
    read = [class_id for class_id in anchors.after.data_inputs(node) if not anchors.after.is_scale(class_id)]
    origin_read = anchors.before.data_inputs(origin)
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
        yield from _pair_above_joints(node, origin_read, anchors, find_work) if reads_more else ()


def _pair_transposed(class_after: int, class_before: int, anchors: Anchors) -> InputPair | None:
    """The same input of two nodes with other attributes. What was transposed may be read along another axis now:

    before    x ──► MatMul ──► m ──► Transpose ──► Split(axis 1) ──► a, b
    after     x ──► MatMul ──► ? ──► Split(axis 2) ──► …                    ? is m
    """
    maker, origin = anchors.after.producers.get(class_after), anchors.before.producers.get(class_before)
    if origin is None or origin.operator != "Transpose" or (maker is not None and maker.operator == "Transpose"):
        return None
    return InputPair(class_after, anchors.before.inputs(origin)[0], (origin,))


def _pair_above_views(node, class_after: int, class_before: int, anchors: Anchors) -> InputPair:
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


def _pair_above_joints(
    node: Node, origin_read: Sequence[int], anchors: Anchors, find_work: FindWork
) -> Iterator[InputPair]:
    """Values that were joined before they were read, each with the one that comes from the same work."""
    read = anchors.after.data_inputs(node)
    joined = _above_joints(origin_read, len(read), anchors)
    weights = [anchors.get(class_id) for class_id in anchors.after.constant_inputs(node) if class_id in anchors]
    for class_after in read:
        producer = anchors.after.producers.get(class_after)
        work = None if producer is None or class_after in anchors else find_work(producer)
        if work is None or work[1] or producer is None or anchors.after.result(producer) != class_after:
            continue  # what a match makes is known, and a second output (the sum that was normalized) is other work
        if any(anchors.is_like(weight, anchors.before.constant_inputs(work[0])) for weight in weights):
            continue  # some of that work is done here
        fitting = [class_before for class_before in joined if _distance(class_before, work[0], anchors) is not None]
        if len(fitting) == 1:
            yield InputPair(class_after, fitting[0])


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
    views = _pair_above_views(node, class_after, class_before, anchors)
    if producer is None or origin is None or views.skipped:
        yield views
    elif same is not None:
        yield same if _has_absorbed(reader, producer, same, anchors) else InputPair(class_after, class_before)
    elif _is_left_to_reader(producer, origin, anchors):
        yield InputPair(class_after, anchors.before.content_inputs(origin)[0], (origin,))
    else:
        yield InputPair(class_after, class_before)
        if is_rearranging(producer) and not is_rearranging(origin):
            for source in anchors.after.data_inputs(producer)[:1]:
                yield from _pair_like_inputs(reader, source, class_before, anchors)


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
            return InputPair(class_after, class_before, tuple(skipped))
        content = anchors.before.content_inputs(origin)
        # A view can be put anywhere, and a transposition behind what cuts or pads: another further up says nothing.
        anywhere = is_view(producer) or (is_rearranging(producer) and (is_moving(origin) or len(origin.outputs) > 1))
        if len(content) != 1 or (anywhere and not is_rearranging(origin)):
            return None
        skipped.append(origin)
        class_before = content[0]
    return None


def _may_be_same(node: Node, origin: Node, anchors: Anchors) -> bool:
    if is_view(node) and is_view(origin):
        return True
    if node.op_type == origin.op_type:
        # A product with a number is not one with a weight.
        weighed = anchors.after.reads_weight(node) == anchors.before.reads_weight(origin)
        return node.attributes == origin.attributes and weighed
    return family(node.op_type) == family(origin.op_type)
