"""Anchors: which value classes of the graph after are which value classes of the graph before.

An anchor is a class that is known in both graphs. From it, matching goes on in both directions: the same operator on
anchored inputs makes an anchored output, and what makes an anchored output by the same operator reads anchored inputs.
The second direction is in `input_pairs.py`, which also steps over what a tool has dropped or taken in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from modelexport.graph.index import Node
from modelexport.graph.operators import family, is_commutative, is_product
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
        if len(read) != len(origin_read) or self._has_new_bias(node, origin):
            return False
        groups = {self.group(self.get(class_id)) for class_id in self.after.constant_inputs(node)}
        origin_groups = {self.group(class_id) for class_id in self.before.constant_inputs(origin)}
        small = {class_id for class_id in origin_groups if self.before.constants.get(class_id) is not None}
        # A small constant may have become an attribute: Clip's limits, Reshape's shape.
        return origin_groups <= groups or (NO_CLASS not in groups and origin_groups - groups <= small)

    def _has_new_bias(self, node: Node, origin: Node) -> bool:
        """Whether a product reads numbers that are not known, where the other one read nothing.

        before    x ──► Conv(w) ──► Mul(s) ──► Add(t) ──► y          after    x ──► Conv(w, ?) ──► y
        """
        present = [class_id for class_id in self.before.inputs(origin) if class_id != NO_CLASS]
        new = self.after.inputs(node)[len(present) :] if is_product(origin) else ()
        return any(self.after.size(each) > 1 and each not in self.known for each in new)

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
