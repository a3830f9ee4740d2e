"""Nodes that hand on what they read, and nodes that share the work of one.

Nodes that a tool brought along: they serve those beside them, and belong to these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from modelexport.graph.index import Node
from modelexport.graph.operators import family
from modelexport.lineage.links import Links, kept
from modelexport.lineage.value_classes import NOTHING
from modelexport.record.lineage import Link, Relation
from modelexport.record.provenance import Confidence

# Equal nodes that one node may stand for without a word about which of them it is.
_CROWD = 48


class _Group:
    """Nodes before that hand on, or hold, one value by one kind of operator.

    alike  by their attributes, then by their keys
    ways   by what was done to the value
    """

    def __init__(self) -> None:
        self.alike: dict[bytes, dict[str, Node]] = {}
        self.ways: dict[int | None, list[Node]] = {}

    def add(self, node: Node, way: int | None) -> None:
        self.alike.setdefault(node.attributes, {})[node.key] = node
        self.ways.setdefault(way, []).append(node)


class HandedOn:
    """Casts, identities, quantizers and literals: the same ones if there were any at that place."""

    def __init__(self, links: Links) -> None:
        self._links, self._anchors = links, links.anchors
        self._before, self._after = links.before, links.after
        self._passing = frozenset(links.after.passing)
        self._groups: dict[tuple[int, str], _Group] = {}
        for node in self._links.left_of((*self._before.passing, *self._before.literals)):
            place = self._before.of[node.outputs[0]], family(node.op_type)
            self._groups.setdefault(place, _Group()).add(node, self._before.ways.get(node.outputs[0]))

    def link(self) -> None:
        for node in reversed((*self._after.literals, *self._after.passing)):
            places = ((other, family(node.op_type)) for other in self._origins(node))
            groups = [self._groups[place] for place in places if place in self._groups]
            found = self._told(node, groups) or self._untold(node, groups)
            if node.key in self._links.found:
                self._links.extend(node, found)  # it has taken in what lay before it
            elif len(found) == 1 or (found and node in self._passing):
                relation = Relation.SHARED if len(found) > 1 else kept(node, found[0])
                self._links.add(node, found, relation, Confidence.EXACT)

    def _told(self, node: Node, groups: Sequence[_Group]) -> Sequence[Node]:
        """The one that a name or a reader tells; if some that did the same are gone, it stands for them too."""
        for group in groups:
            for pool in _pools(node, groups, group):
                told = self._links.told(node, pool)
                if told is not None:
                    return self._with_twins(node, pool[told], group)
        return ()

    def _with_twins(self, node: Node, origin: Node, group: _Group) -> Sequence[Node]:
        twins = group.ways[self._before.ways.get(origin.outputs[0])]
        fewer = node in self._passing and len(self._after.copies[node.key]) < len(twins)
        return twins if fewer else [origin]

    def _untold(self, node: Node, groups: Sequence[_Group]) -> Sequence[Node]:
        """All that it may be, unless these are too many."""
        pools = [pool for group in groups for pool in _pools(node, groups, group)]
        if sum(map(len, pools)) > _CROWD:
            way = self._after.ways.get(node.outputs[0])
            pools = [{one.key: one for one in group.ways.get(way, ())[:_CROWD]} for group in groups if way is not None]
        found = [one for pool in pools for one in pool.values()]
        return found if len(found) <= _CROWD else ()

    def _origins(self, node: Node) -> list[int]:
        """The classes before that may be what a node hands on: what is known, and what its name says if that fits."""
        place = self._after.of[node.outputs[0]]
        known = self._anchors.get(place)
        named = self._before.of.get(node.outputs[0], NOTHING)
        fits = known != NOTHING and known in self._before.made_from(named)
        return [known, *self._anchors.also.get(place, ()), *([named] if fits else [])]


def _pools(node: Node, groups: Sequence[_Group], group: _Group) -> Iterable[Mapping[str, Node]]:
    """Those of a group with a node's attributes; all of them if there are none in any group."""
    if any(node.attributes in one.alike for one in groups):
        return [group.alike[node.attributes]] if node.attributes in group.alike else []
    return group.alike.values()


class Parts:
    """Nodes that do a part of the work of one node each."""

    def __init__(self, links: Links) -> None:
        self._links, self._after = links, links.after

    def link(self) -> None:
        """Nodes that read each other in the place of one node do a part of its work each."""
        heirs: dict[str, list[Node]] = {}
        for node in self._after.nodes:
            link = self._links.found.get(node.key)
            if link is not None and len(link.sources) == 1:
                heirs.setdefault(link.sources[0], []).append(node)
        for nodes in heirs.values():
            for node in self._joined(nodes) if len(nodes) > 1 else ():
                for twin in self._after.twins[node.key]:
                    self._links.found[twin.key] = replace(self._links.found[twin.key], relation=Relation.SPLIT)

    def _joined(self, nodes: Sequence[Node]) -> list[Node]:
        """Those that read what another one makes, or make what another one reads."""
        made = {place for node in nodes for place in self._after.outputs(node)}
        read = {place for node in nodes for place in self._after.inputs(node)}
        return [
            node
            for node in nodes
            if not made.isdisjoint(self._after.inputs(node)) or not read.isdisjoint(self._after.outputs(node))
        ]


# How often all that is left is looked at, from front to back and back to front.
_ROUNDS = 3


class Neighbours:
    """Links for what is left."""

    def __init__(self, links: Links) -> None:
        self._matching = links.matching
        self._after = links.after
        self._graph = links.after.graph
        self._passing = frozenset(links.after.passing)
        self._found = links.found

    def link(self) -> None:
        """What a tool brought along belongs to its neighbours. What comes from another model does not."""
        left = [node for node in self._graph.nodes if node.key not in self._found]
        foreign = self._foreign(left)
        left = [node for node in left if node.key not in foreign]
        for node in reversed(left):
            if not self._is_handed_on(node):
                self._join(node, self._graph.successors(node))
        for _ in range(_ROUNDS):
            for node in left:
                self.join_makers(node)
            for node in reversed(left):
                self._join(node, self._graph.successors(node))
            left = [node for node in left if node.key not in self._found]
        self._spread(left)

    def _spread(self, left: Sequence[Node]) -> None:
        """What is far from everything that is known, step by step."""
        near = {one.key for node in left for one in self._around(node) if one.key in self._found}
        waiting = deque(self._graph.by_key[key] for key in sorted(near))
        open_ = {node.key for node in left}
        while waiting:
            for node in self._around(waiting.popleft()):
                if node.key in open_ and node.key not in self._found:
                    self._join(node, self._around(node))
                    waiting.append(node)

    def _around(self, node: Node) -> Iterable[Node]:
        return (*self._graph.predecessors(node), *self._graph.successors(node))

    def join_makers(self, node: Node) -> None:
        """Link a node to what made the values that it reads, unless it has a link."""
        self._join(node, self._graph.predecessors(node))

    def _foreign(self, left: Sequence[Node]) -> set[str]:
        """Nodes with weights that nobody knows, before or behind everything that is known. What only hands a value on
        reads scales, one for each channel perhaps, and no weights of its own: it goes where its value goes."""
        fed, used = set(self._found), set(self._found)
        for node in self._graph.nodes if left else ():
            if any(one.key in fed for one in self._graph.predecessors(node)):
                fed.add(node.key)
        for node in reversed(self._graph.nodes) if left else ():
            if any(one.key in used for one in self._graph.successors(node)):
                used.add(node.key)
        working = [node for node in left if node not in self._passing]
        outside = [node for node in working if not (node.key in fed and node.key in used)]
        return {node.key for node in outside if self._matching.has_unknown_weight(node)}

    def _is_handed_on(self, node: Node) -> bool:
        """A quantizer or cast of something computed belongs to who computed it."""
        return node in self._passing and self._after.inputs(node)[0] not in self._after.constants

    def _join(self, node: Node, others: Iterable[Node]) -> None:
        if node.key in self._found:
            return
        keys = dict.fromkeys(
            key for other in others if other.key in self._found for key in self._found[other.key].sources
        )
        if keys:
            self._found[node.key] = Link(tuple(keys), Relation.INTRODUCED, Confidence.INFERRED)
