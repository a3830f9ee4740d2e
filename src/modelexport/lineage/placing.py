"""Nodes in the place of others: of the one that they do the same as, or of all in the same region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modelexport.graph.index import Node
from modelexport.lineage.classes import NOTHING
from modelexport.lineage.links import Links, kept
from modelexport.lineage.neighbours import Neighbours
from modelexport.lineage.operators import is_rearranging
from modelexport.lineage.regions import Regions
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Relation


class Placed:
    """Matches with their twins, and regions; what only rearranges waits until it is known what is gone."""

    def __init__(self, links: Links, regions: Regions) -> None:
        self._links, self._regions = links, regions
        self._matching = links.matching
        self._before, self._after = links.before, links.after

    def link(self) -> None:
        for node in reversed(self._after.nodes):  # what reads a value tells its maker from its twins
            origin = self._matching.matches.get(node.key)
            twins = self._after.twins[node.key]
            if origin is not None:
                theirs = self._links.left_of(self._before.twins_of(origin))
                self._link_twins(twins, theirs, self._matching.confidence[node.key])
            elif node.key in self._regions.sources and not is_rearranging(node):
                self._links.add_region(twins, self._left_to_quantizers(node, self._regions.sources[node.key]))

    def _left_to_quantizers(self, node: Node, region: Sequence[Node]) -> Sequence[Node]:
        """The region without what a quantizer does that reads the result of a node which is as it was before."""
        work = self._matching.works.get(node.key)
        if work is None or (work.op_type, work.attributes) != (node.op_type, node.attributes):
            return region
        left = [one for one in region if one is not work and self._links.is_activation(one)]
        if not self._links.leave_to_quantizers(self._after.result(node), left):
            return region
        return [one for one in region if one not in left]

    def _link_twins(self, mine: Sequence[Node], theirs: Sequence[Node], confidence: Confidence) -> None:
        """Equal nodes by name, or each to each in their order; if some are gone, the others stand for all."""
        left = {node.key: node for node in theirs}
        mine = [node for node in mine if len(mine) == 1 or not self._link_named(node, left)]
        if len(mine) != len(theirs):
            for node in mine:
                relation = Relation.SHARED if len(theirs) > 1 else kept(node, theirs[0])
                self._links.add(node, theirs, relation, confidence)
            return
        told = {node.key: self._links.told(node, left) for node in mine} if len(mine) > 1 else {}
        for node in sorted(mine, key=lambda one: told.get(one.key) is None):
            wanted = told.get(node.key)
            guessed = wanted not in left and len(left) > 1
            like = (key for key, one in left.items() if bool(one.graph) == bool(node.graph))
            origin = left.pop(wanted if wanted in left else next(like, next(iter(left))))
            sure = min(confidence, Confidence.INFERRED) if guessed else confidence
            self._links.add(node, [origin], kept(node, origin), sure)

    def _link_named(self, node: Node, theirs: Mapping[str, Node]) -> bool:
        """Link one of several equal nodes to the one of its name, if that was not equal to them before."""
        named = self._before.graph.by_key.get(node.key)
        if named is None or node.key in theirs or (named.op_type, named.attributes) != (node.op_type, node.attributes):
            return False
        self._links.add(node, [named], Relation.KEPT, Confidence.STRONG)
        return True


class Rearranged:
    """Views and transpositions without a match."""

    def __init__(self, links: Links, regions: Regions) -> None:
        self._links, self._regions = links, regions
        self._anchors, self._matching = links.anchors, links.matching
        self._before, self._after = links.before, links.after
        self._neighbours = Neighbours(links)

    def link(self) -> None:
        for node in reversed(self._after.nodes):
            if node.key not in self._matching.matches and node.key in self._regions.sources and is_rearranging(node):
                self._link_rearranging(node, self._regions.sources[node.key])

    def _link_rearranging(self, node: Node, region: Sequence[Node]) -> None:
        """It took the place of others of its kind that are gone; else it serves whoever made or reads the value."""
        region = self._beside(node, region)
        alike = [one for one in region if one.op_type == node.op_type]
        gone = [one for one in region if one.key not in self._links.covered]
        found = [one for one in gone if one in alike] or [one for one in gone if is_rearranging(one)] or alike or gone
        if found:
            self._links.add_region(self._after.twins[node.key], found)
        elif self._after.result(node) in self._anchors:
            for twin in self._after.twins[node.key]:
                self._neighbours.join_makers(twin)

    def _beside(self, node: Node, region: Sequence[Node]) -> Sequence[Node]:
        """Those of a region that a node may stand for: what moved the value that it reads, or the one that it makes."""
        result = self._anchors.get(self._after.result(node))
        if result == NOTHING:
            return region
        read = {self._anchors.get(place) for place in self._after.data_inputs(node)} - {NOTHING}
        found: list[Node] = []
        waiting = [self._before.makers.get(result)]
        while waiting:
            one = waiting.pop()
            if one in region and one is not None and one not in found and is_rearranging(one):
                found.append(one)
                waiting += map(self._before.makers.get, self._before.content(one))
        made = set(read)
        for one in sorted(region, key=lambda other: other.position):
            if is_rearranging(one) and one not in found and not made.isdisjoint(self._before.content(one)):
                found.append(one)
                made.update(self._before.outputs(one))
        work = self._before.makers.get(result)
        return found or ([work] if work in region and work is not None else [])
