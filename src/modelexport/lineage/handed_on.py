"""Nodes that hand on what they read, and nodes that share the work of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from modelexport.graph.index import Node
from modelexport.lineage.classes import NOTHING
from modelexport.lineage.links import Links, kept
from modelexport.lineage.operators import family
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Relation


class HandedOn:
    """Casts, identities, quantizers and literals."""

    def __init__(self, links: Links) -> None:
        self._links, self._anchors = links, links.anchors
        self._before, self._after = links.before, links.after
        self._passing = frozenset(links.after.passing)

    def link(self) -> None:
        """Casts, identities and quantizers: the same ones if there were any at that place."""
        known: dict[tuple[int, str], list[Node]] = {}
        for node in (*self._before.passing, *self._before.literals):
            known.setdefault((self._before.of[node.outputs[0]], family(node.op_type)), []).append(node)
        for node in reversed((*self._after.literals, *self._after.passing)):
            others = self._origins(node)
            same = [origin for other in others for origin in known.get((other, family(node.op_type)), ())]
            same = [origin for origin in same if origin.attributes == node.attributes] or same
            told = self._links.told(node, same)
            found = [origin for origin in same if origin.key == told] or same
            if node.key in self._links.found:
                self._links.extend(node, found)  # it has taken in what lay before it
            elif len(found) == 1 or node in self._passing:
                self._link_copies(node, found, same)

    def _link_copies(self, node: Node, found: Sequence[Node], same: Sequence[Node]) -> None:
        """What hands a value on, to those that it is; if some that did the same are gone, it stands for them too."""
        if not found:
            return
        way = self._before.ways.get(found[0].outputs[0])
        twins = [origin for origin in same if self._before.ways.get(origin.outputs[0]) == way]
        if node in self._passing and len(self._after.copies[node.key]) < len(twins):
            found = twins
        self._links.add(node, found, Relation.SHARED if len(found) > 1 else kept(node, found[0]), Confidence.EXACT)

    def _origins(self, node: Node) -> list[int]:
        """The classes before that may be what a node hands on: what is known, and what its name says if that fits."""
        place = self._after.of[node.outputs[0]]
        known = self._anchors.get(place)
        named = self._before.of.get(node.outputs[0], NOTHING)
        fits = known != NOTHING and known in self._before.made_from(named)
        return [known, *self._anchors.also.get(place, ()), *([named] if fits else [])]


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
