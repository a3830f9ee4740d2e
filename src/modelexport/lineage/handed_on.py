"""Nodes that hand on what they read, and nodes that share the work of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from modelexport.graph.index import Node
from modelexport.lineage.classes import NOTHING
from modelexport.lineage.links import Links, kept
from modelexport.lineage.operators import family
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Relation

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
