"""Candidates: the nodes before that a node after may be, found from what both read, and the choice among them.

    before    x ──► MatMul(w) ──► m          after    x ──► MatMul(w) ──► n          candidates of MatMul, with what
              x ──► MatMul(v) ──► k                                                  agrees: (w) two inputs, (v) one

The candidates are the readers of the value that fewest read. If two candidates agree equally well, none of them is
chosen: something else may still decide.

Readers of one weight are told apart by `ReadOrder`: which comes first.

A block that is called four times, or layers that hold equal weights, read every weight in four places. Its numbers do
not tell these apart; which comes first does, as no tool moves one call of a block behind another:

    before    x ──► MatMul(w) ──► Relu ──► MatMul(w) ──► y          the first MatMul(w) is the first FusedGemm(w),
    after     x ──► FusedGemm(w) ───────► FusedGemm(w) ──► y        and the second one is the second

Tools fuse and split operators, so nodes cannot be counted. What is counted is reads of weights that both graphs have:
each adds one to the *depth* of what is computed from it. Depths of two graphs need not be equal, as a weight may be
read less often now; the readers of one weight are matched level by level, if there are as many levels as before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from modelexport.graph.index import Node
from modelexport.graph.operators import family, is_view
from modelexport.lineage.anchors import Anchors
from modelexport.lineage.operands import CROWD, Operands, readers_behind_views
from modelexport.lineage.value_classes import NO_CLASS, ValueClasses


@dataclass(frozen=True, order=True, slots=True)
class Rating:
    """How well a candidate fits; compared field by field.

    agreeing         inputs of both nodes that are known to be the same
    same_attributes  whether both have the same attributes
    is_free          whether no other node has matched the candidate
    """

    agreeing: int
    same_attributes: bool
    is_free: bool


class Candidates:
    """Must be made when constants are anchored.

    matched_origins  keys of nodes before that have a match; it grows while candidates are looked for
    """

    def __init__(self, anchors: Anchors, matched_origins: Collection[str]) -> None:
        self._before, self._after, self._anchors = anchors.before, anchors.after, anchors
        self._operands = Operands(anchors)
        self._read_order = ReadOrder(anchors)
        self._matched_origins = matched_origins

    def rank(self, node: Node) -> list[tuple[Rating, Node]]:
        """The candidates of a node, best first."""
        rated = self._rate(node, self._find(node))
        return sorted(rated, key=lambda candidate: candidate[0], reverse=True)

    def choose(self, node: Node, ranked: Sequence[tuple[Rating, Node]]) -> Node | None:
        """The best candidate, if what it reads says enough; None if another one fits as well."""
        (rating, origin), others = ranked[0], ranked[1:]
        only = not others and self._is_only_reader(node, origin)
        is_tie = bool(others) and others[0][0] == rating
        return origin if not is_tie and (only or self._is_enough(node, origin, rating.agreeing)) else None

    def readers_by_weight(self, node: Node, class_after: int) -> Sequence[Node]:
        """The nodes before that read a weight of a node: those at its place in the dataflow, else all."""
        return self._readers_in_order(node, class_after) or self._anchors.readers_before(class_after)

    def _find(self, node: Node) -> list[Node]:
        """Nodes of the same kind before that read one of the same values: the one of these that fewest read."""
        known = [each for each in self._after.inputs(node) if each in self._anchors and self._tells(node, each)]
        lists = [self._anchors.readers_before(class_id) for class_id in known]
        crowds = sorted((crowd for crowd in lists if len(crowd) <= CROWD), key=len)
        kind = family(node.op_type)
        in_order = sorted((self._readers_in_order(node, each) for each in self._after.constants_above(node)), key=len)
        # A view may have stood between a value and its reader; that is looked for behind the smallest crowd alone.
        behind_views = (readers_behind_views(crowd, self._before) for crowd in crowds[:1])
        for crowd in (*in_order, *crowds, *behind_views):
            candidates = [reader for reader in crowd if family(reader.op_type) == kind]
            if candidates:
                return candidates
        return []

    def _readers_in_order(self, node: Node, class_after: int) -> Sequence[Node]:
        return self._read_order.readers_before(node, self._anchors.group(self._anchors.get(class_after)))

    def _rate(self, node: Node, candidates: Iterable[Node]) -> Iterator[tuple[Rating, Node]]:
        for origin in candidates:
            agreeing = self._count_agreeing(node, origin)
            if agreeing and not self._makes_something_else(node, origin):
                is_free = origin.key not in self._matched_origins
                yield Rating(agreeing, origin.attributes == node.attributes, is_free), origin

    def _count_agreeing(self, node: Node, origin: Node) -> int:
        """How many inputs say that two nodes are the same; 0 if another one says that they are not."""
        vague = {self._anchors.get(each) for each in self._after.inputs(node) if not self._tells(node, each)}
        shared = sum(class_before in vague for class_before in self._before.inputs(origin) if class_before != NO_CLASS)
        return max(0, (self._anchors.agreement(node, origin) or 0) - shared)

    def _tells(self, node: Node, class_after: int) -> bool:
        """Whether a value that a node reads tells it from others. What is a constant now may have been several values:

        before    x ──► Shape ──► Div ──► a          after    x, Div(8, 2) ──► Slice          Slice may be that of x
                  x, a ──► Slice                              y, Div(8, 2) ──► Slice          or of y, until x is known
                  y ──► Shape ──► Div ──► b
                  y, b ──► Slice
        """
        if class_after not in self._after.foldable or self._after.result(node) in self._after.foldable:
            return True
        return self._anchors.get(class_after) in self._before.foldable

    def _makes_something_else(self, node: Node, origin: Node) -> bool:
        """Whether a node is known to make what another node of the same kind made."""
        known = self._anchors.get(self._after.result(node))
        if known in (NO_CLASS, self._before.result(origin)) or node.op_type != origin.op_type:
            return False
        if is_view(node):
            return True  # one may be put anywhere
        producer = self._before.producers.get(known)
        return producer is None or family(producer.op_type) == family(node.op_type)

    def _is_enough(self, node: Node, origin: Node, agreeing: int) -> bool:
        read = [class_id for class_id in self._after.inputs(node) if class_id != NO_CLASS]
        if agreeing > 1 or any(map(self._operands.is_distinctive, read)):
            return True
        data = [class_id for class_id in read if class_id not in self._after.constants]
        known = bool(data) and all(class_id in self._anchors for class_id in data)
        return known and not self._reads_other_constants(node, origin)

    def _reads_other_constants(self, node: Node, origin: Node) -> bool:
        """Whether a node reads what is computed from constants alone, and known to be what another node read elsewhere.

        It may be that one's value as well, but that takes a sign: it is computed from other constants, for all we know.
        """
        inputs = zip(self._after.inputs(node), self._before.inputs(origin), strict=False)
        folded = [(read, was_read) for read, was_read in inputs if read in self._after.foldable]
        return any(not self._anchors.is_like(self._anchors.get(read), (was_read,)) for read, was_read in folded)

    def _is_only_reader(self, node: Node, origin: Node) -> bool:
        if is_view(node) and _is_viewed_again(node, self._after) and not _is_viewed_again(origin, self._before):
            return False  # it is the tool's own, and the next view is the one that was there
        known = [(class_after, self._anchors.get(class_after)) for class_after in self._after.data_inputs(node)]
        for class_after, class_before in known:
            crowds = self._after.readers_of(class_after), self._before.readers_of(class_before)
            is_read = class_before != NO_CLASS and class_before in self._before.inputs(origin)
            if is_read and max(map(len, crowds)) <= CROWD:
                kinds = [[family(reader.op_type) for reader in crowd] for crowd in crowds]
                if all(kinds_read.count(family(node.op_type)) == 1 for kinds_read in kinds):
                    return True
        return False


def _is_viewed_again(view: Node, classes: ValueClasses) -> bool:
    readers = classes.readers_of(classes.result(view))[:CROWD]
    return bool(readers) and all(map(is_view, readers))


# Levels by group of constants that hold the same: the nodes of each level, first to last.
_Levels = dict[int, list[list[Node]]]


class ReadOrder:
    """Must be made when constants are anchored. A group is a class before, or the first of those that hold the same."""

    def __init__(self, anchors: Anchors) -> None:
        before, after = anchors.before, anchors.after
        # What is a weight is asked before: quantized, it is made of integers.
        weights = {class_id for class_id in before.constants if before.is_weight(class_id)}
        groups = {class_id: anchors.group(class_id) for class_id in weights}
        groups_after = {each: groups[known] for each, known in anchors.known.items() if known in groups}
        shared = set(groups_after.values())
        groups = {each: group for each, group in groups.items() if group in shared}
        # Where each is read once, as in most models, there is nothing to tell apart.
        often = _are_read_often(before, groups) and _are_read_often(after, groups_after)
        self._before = _find_levels(before, groups) if often else {}
        self._after = _find_levels(after, groups_after) if often else {}
        self._level_of: dict[tuple[int, str], int] = {}
        for group, levels in self._after.items():
            if len(levels) == len(self._before.get(group, ())) > 1:
                for number, nodes in enumerate(levels):
                    self._level_of.update(((group, node.key), number) for node in nodes)

    def readers_before(self, node: Node, group: int) -> Sequence[Node]:
        """The nodes before that read a weight at the same level as a node after; none if that is not known."""
        level = self._level_of.get((group, node.key))
        return () if level is None else self._before[group][level]


def _are_read_often(classes: ValueClasses, groups: Mapping[int, int]) -> bool:
    """Whether several nodes may work with the weights of one group."""
    seen: set[int] = set()
    for class_id, group in groups.items():
        readers = classes.readers_of(class_id)
        if group in seen or len(readers) > 1 or any(classes.result(reader) in classes.foldable for reader in readers):
            return True
        if readers:
            seen.add(group)
    return False


def _find_levels(classes: ValueClasses, groups: Mapping[int, int]) -> _Levels:
    """By group: the nodes that work with such a weight, those of the least depth first."""
    depths: dict[int, int] = {}
    readers: dict[int, dict[int, list[Node]]] = {}
    for node in classes.nodes:
        if classes.result(node) in classes.foldable:
            continue  # it prepares a weight for others
        read = {groups[class_id] for class_id in classes.constants_above(node) if class_id in groups}
        depth = max((depths.get(class_id, 0) for class_id in classes.data_inputs(node)), default=0) + len(read)
        depths.update(dict.fromkeys(classes.outputs(node), depth))
        for group in read:
            readers.setdefault(group, {}).setdefault(depth, []).append(node)
    return {group: [nodes for _, nodes in sorted(levels.items())] for group, levels in readers.items()}
