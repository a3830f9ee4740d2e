"""What is known of values: which classes of the graph after are which classes of the graph before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from modelexport.graph.domains import plain_domain
from modelexport.graph.index import Node
from modelexport.lineage.classes import NOTHING, Classes
from modelexport.lineage.operators import family, is_commutative


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
