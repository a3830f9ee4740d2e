"""Nodes in the place of others: of the one that they do the same as, or of all in the same region.

What is gone because another node has taken it in: in its weights, by its attributes, or in a quantizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modelexport.graph.index import Node
from modelexport.graph.operators import is_linear, is_moving, is_rearranging, is_view
from modelexport.lineage.links import Links, Regions, kept
from modelexport.lineage.pass_through import Neighbours
from modelexport.lineage.value_classes import NOTHING
from modelexport.record.lineage import Relation
from modelexport.record.provenance import Confidence


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


class _TakenIn:
    """What the linkers of this kind share: both graphs, and what of the one before has gone."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._matching, self._anchors = links.matching, links.anchors
        self._before, self._after = links.before, links.after
        self._alive = links.anchors.alive()
        self._still_there = links.matching.still_there()

    def _between(self, one: int, other: int) -> list[Node]:
        """The nodes on the way from one value to the other, whichever comes first."""
        return self._before.between(one, other) or self._before.between(other, one)

    def _is_lost(self, place: int) -> bool:
        """Whether a constant that is no mere number is in the graph before alone."""
        return self._before.size(place) > 1 and place not in self._alive


class Merged(_TakenIn):
    """Equal computations of which one is left."""

    def link(self) -> None:
        """A value that stands for two values that the same operator made: so do, pair by pair, the nodes above it.

        Of values that are made of each other, the later one was no work: a product with one, say.
        """
        for place, others in self._anchors.also.items():
            known = self._anchors.get(place)
            apart = [other for other in others if not self._between(known, other)]
            waiting = [(self._after.makers.get(place), self._before.makers.get(other)) for other in apart]
            while waiting:
                node, origin = waiting.pop()
                if node is None or origin is None or node.op_type != origin.op_type:
                    continue
                if origin.key in self._links.covered or self._matching.weights_differ(node, origin):
                    continue
                self._links.covered.add(origin.key)
                self._links.extend(node, [origin], Relation.SHARED)
                pairs = zip(self._after.inputs(node), self._before.inputs(origin), strict=False)
                waiting += [(self._after.makers.get(mine), self._before.makers.get(theirs)) for mine, theirs in pairs]


class Idle(_TakenIn):
    """What lay between two values that are one now."""

    def link(self) -> None:
        """A value that stands for two values before: what lay between them is in its maker's weights, or else in
        quantizers that cut off what is too small or too large; or it did nothing, and is nobody's."""
        covered = frozenset(self._links.covered)  # what is absorbed here may be in several nodes
        for place, others in self._anchors.also.items():
            maker = self._after.makers.get(place)
            if maker is None or maker.key not in self._links.found:
                continue
            between = [node for other in others for node in self._between(self._anchors.get(place), other)]
            gone = [node for node in between if node.key not in covered]
            # What nobody has taken in did nothing, and is nobody's.
            self._links.extend(maker, [node for node in gone if self._is_weighed(node, maker)])
            self._links.leave_to_quantizers(place, [node for node in gone if self._links.is_activation(node)])
        for taken, still_kept in ((self._matching.absorbed, self._still_there), (self._matching.skipped, covered)):
            for key, origins in taken.items():
                gone = [self._before.graph.by_key[origin] for origin in origins if origin not in still_kept]
                self._links.extend(self._after.graph.by_key[key], gone)

    def _is_weighed(self, origin: Node, maker: Node) -> bool:
        """Whether what a node did with its constants is in the weights of another: these are others now, or else the
        first one's have gone without a trace. They may all the same have kept their names."""
        if not is_linear(origin) or all(self._after.size(place) == 1 for place in self._after.constant_inputs(maker)):
            return False
        work = self._matching.matches.get(maker.key)
        constants = self._before.constant_inputs(origin)
        changed = work is not None and not self._anchors.is_same_work(maker, work)
        return bool(constants) and (changed or any(self._is_lost(place) for place in constants))


class Dropped(_TakenIn):
    """What lay between a value that a node reads and the one that its match read."""

    def link(self) -> None:
        """Who reads what another node read has taken that one in. A view does nothing, but for another view."""
        for key, origin in self._matching.matches.items():
            node = self._after.graph.by_key[key]
            for here, there in zip(self._after.inputs(node), self._before.inputs(origin), strict=False):
                if NOTHING in (here, there) or self._anchors.get(here) in (there, NOTHING):
                    continue
                between = self._between(self._anchors.get(here), there)
                gone = [one for one in between if one.key not in self._links.covered]
                self._links.extend(node, [one for one in gone if self._is_taken_in(one, node)])

    def _is_taken_in(self, origin: Node, node: Node) -> bool:
        """Whether the reader of a node that is gone does its work: it is one of the same kind, it says so in its
        attributes, or it has weights that nobody knows."""
        if is_view(node) or is_moving(origin) or is_rearranging(origin):
            return is_view(node) and is_view(origin)
        constants = self._before.constant_inputs(origin)
        if not constants:
            return node.attributes != self._matching.matches[node.key].attributes
        lost = is_linear(origin) and any(self._is_lost(place) for place in constants)
        return lost and self._matching.has_unknown_weight(node)


class ReadThrough(_TakenIn):
    """The same for a node that does the work of another and perhaps more, wherever else that is still done."""

    def link(self) -> None:
        """Who reads an earlier value, and makes the same as before, does all that lay between, whoever else does; but
        for what is in the making of that value."""
        for key, origin in self._matching.works.items():
            node = self._after.graph.by_key[key]
            if self._after.result(node) not in self._anchors:
                continue
            for here, there in zip(self._after.inputs(node), self._before.inputs(origin), strict=False):
                known = self._anchors.get(here)
                if self._anchors.is_next(known, there):
                    done = self._sources_above(here)
                    between = [one for one in self._between(known, there) if not is_view(one)]
                    self._links.extend(node, [one for one in between if one.key not in done])

    def _sources_above(self, place: int) -> set[str]:
        """What the nodes do that make a value, or quantize it."""
        makers = [*self._links.quantizers.get(place, ()), *filter(None, [self._after.makers.get(place)])]
        found = (self._links.found[maker.key] for maker in makers if maker.key in self._links.found)
        return {key for link in found for key in link.sources}


class Weighed(_TakenIn):
    """Weights whose reader is gone."""

    def link(self) -> None:
        """Who reads a weight that none of its sources read has a part in the work of the node that read it."""
        for node in self._after.nodes:
            for place in self._after.weights(node) if node.key in self._links.found else ():
                readers = self._anchors.readers_before(place) if place in self._anchors else []
                gone = [one for one in readers if one.key not in self._still_there and not self._is_fixed(one)]
                if not self._is_among(readers, self._links.found[node.key].sources):
                    self._links.extend(node, self._only_one(gone, node))

    def _is_fixed(self, origin: Node) -> bool:
        """Whether a node worked on constants alone: what it made is a constant now."""
        return self._before.result(origin) in self._before.fixed

    def _is_among(self, nodes: Sequence[Node], keys: Sequence[str]) -> bool:
        return any(twin.key in keys for node in nodes for twin in self._before.twins_of(node))

    def _only_one(self, gone: Sequence[Node], node: Node) -> Sequence[Node]:
        """With its twins, the one of several nodes that is beside what another is known to do."""
        sources = [self._before.graph.by_key[key] for key in self._links.found[node.key].sources]
        beside = [one for one in gone if len(gone) == 1 or self._is_beside(one, sources)]
        return self._before.twins_of(beside[0]) if len(beside) == 1 else []

    def _is_beside(self, node: Node, others: Sequence[Node]) -> bool:
        """Whether a node reads what one of others makes, or makes what it reads."""
        made, read = set(self._before.outputs(node)), set(self._before.inputs(node))
        return any(
            not read.isdisjoint(self._before.outputs(one)) or not made.isdisjoint(self._before.inputs(one))
            for one in others
        )
