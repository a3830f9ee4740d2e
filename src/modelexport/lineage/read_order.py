"""Read order: which of several readers of one weight is which, by their order in the dataflow.

A block that is called four times, or layers that hold equal weights, read every weight in four places. Its numbers do
not tell these apart; which comes first does, as no tool moves one call of a block behind another:

    before    x ──► MatMul(w) ──► Relu ──► MatMul(w) ──► y          the first MatMul(w) is the first FusedGemm(w),
    after     x ──► FusedGemm(w) ───────► FusedGemm(w) ──► y        and the second one is the second

Tools fuse and split operators, so nodes cannot be counted. What is counted is reads of weights that both graphs have:
each adds one to the *depth* of what is computed from it. Depths of two graphs need not be equal, as a weight may be
read less often now; the readers of one weight are matched level by level, if there are as many levels as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modelexport.graph.index import Node
from modelexport.lineage.anchors import Anchors
from modelexport.lineage.value_classes import ValueClasses

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
        self._before = _find_levels(before, {each: group for each, group in groups.items() if group in shared})
        self._after = _find_levels(after, groups_after)
        self._level_of: dict[tuple[int, str], int] = {}
        for group, levels in self._after.items():
            if len(levels) == len(self._before.get(group, ())) > 1:
                for number, nodes in enumerate(levels):
                    self._level_of.update(((group, node.key), number) for node in nodes)

    def readers_before(self, node: Node, group: int) -> Sequence[Node]:
        """The nodes before that read a weight at the same level as a node after; none if that is not known."""
        level = self._level_of.get((group, node.key))
        return () if level is None else self._before[group][level]


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
