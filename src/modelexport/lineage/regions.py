"""Nodes that do the work of several nodes, or some of the work of one.

Between the values that both graphs have, whatever lies there after has taken the place of whatever lay there before.
"""

from __future__ import annotations

from collections.abc import Iterable

from modelexport.graph.index import Node
from modelexport.lineage.classes import NOTHING
from modelexport.lineage.matching import Matching
from modelexport.lineage.operators import is_rearranging

# A region with more ways out than these is no region.
_MOST = 64
# And one with more nodes than these neither; without a limit, a long computation that is gone costs every reader.
_LARGEST = 256
_STEPS = 4


class Regions:
    """
    sources  by the key of a node after that has no match: the nodes before in whose place it is
    """

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._before, self._after = matching.before, matching.after
        self._anchors = matching.anchors
        self._alive = matching.anchors.alive().union(*matching.anchors.also.values())
        self._matched = matching.still_there()
        self._done = self._matched.union(origin.key for origin in matching.works.values())
        self._heads: dict[str, frozenset[int]] = {}
        self._slices: dict[tuple[frozenset[int], frozenset[str]], tuple[Node, ...]] = {}
        for node in reversed(self._after.nodes):
            self._heads[node.key] = self._heads_of(node)
        self.sources: dict[str, tuple[Node, ...]] = {}
        for node in self._after.nodes:
            if node.key not in matching.matches:
                found = self._with_siblings(node, self._found(node))
                if found:
                    self.sources[node.key] = found

    def _heads_of(self, node: Node) -> frozenset[int]:
        """The nearest values that both graphs have, going on from what a node makes."""
        made = [place for place in self._after.outputs(node) if place != NOTHING]
        known = frozenset(self._anchors.get(place) for place in made if place in self._anchors)
        if known:
            return known
        found: set[int] = set()
        for place in made:
            for reader in self._after.readers_of(place):
                origin = self._matching.matches.get(reader.key)
                if origin is None:
                    found |= self._heads.get(reader.key, frozenset())
                else:
                    found |= {other for other in self._before.data_inputs(origin) if other not in self._alive}
                if len(found) > _MOST:
                    return frozenset()
        return frozenset(found)

    def _found(self, node: Node) -> tuple[Node, ...]:
        work = self._matching.works.get(node.key)
        found = self._region(self._heads[node.key], self._claimed_above(node))
        # What another node still does is that one's work.
        region = self._like(node, tuple(one for one in found if one.key not in self._matched))
        if work is None:
            return region
        if self._after.result(node) in self._anchors:
            return region if work in region else (*region, work)
        if self._matching.does_part(node, work):
            return (work,)
        # What depends on the work of a reader as well is done there, or later.
        later = {one.key for reader in self._works_of_readers(node) for one in self._behind(reader, region)}
        behind = [one for one in self._behind(work, region) if one is work or one.key not in later]
        return (*self._ahead(node, work), *(behind if len(behind) <= _STEPS else (work,)))

    def _ahead(self, node: Node, work: Node) -> tuple[Node, ...]:
        """What lay between a node's work and what it reads now, if that is known or it reads more than before."""
        read = self._after.data_inputs(node)
        if len(read) <= len(self._before.data_inputs(work)) and not all(place in self._anchors for place in read):
            return ()
        heads = frozenset(place for place in self._before.data_inputs(work) if place not in self._alive)
        found = tuple(one for one in self._region(heads, frozenset()) if one.key not in self._done)
        return found if len(found) <= _STEPS else ()

    def _works_of_readers(self, node: Node) -> list[Node]:
        readers = (reader for place in self._after.outputs(node) for reader in self._after.readers_of(place))
        return [self._matching.works[reader.key] for reader in readers if reader.key in self._matching.works]

    def _with_siblings(self, node: Node, region: tuple[Node, ...]) -> tuple[Node, ...]:
        """A node that makes several values is also in the place of what made others of them from the same value."""
        if sum(place != NOTHING for place in self._after.outputs(node)) < 2:
            return region
        read = {self._anchors.get(place) for place in self._after.data_inputs(node)} - {NOTHING}
        kinds = {one.op_type for one in region if not read.isdisjoint(self._before.data_inputs(one))}
        beside = (reader for place in read for reader in self._before.readers_of(place)[:_MOST])
        gone = [one for one in beside if one.op_type in kinds and one.key not in self._done and one not in region]
        return (*region, *gone)

    def _behind(self, work: Node, region: tuple[Node, ...]) -> list[Node]:
        """What of a region depends on a node, and the node itself."""
        found, made = [work], set(self._before.outputs(work))
        for node in sorted(region, key=lambda one: one.position):
            if node is work or is_rearranging(node):
                continue
            if not made.isdisjoint(self._before.inputs(node)):
                found.append(node)
                made.update(self._before.outputs(node))
        return found

    def _like(self, node: Node, region: tuple[Node, ...]) -> tuple[Node, ...]:
        """Those of a region that work on data, or on shapes and constants, as the node does."""
        computed = self._before.graph.computed
        does = node.key in self._after.graph.computed
        return tuple(one for one in region if (one.key in computed) == does) or region

    def _claimed_above(self, node: Node) -> frozenset[str]:
        """What the nodes right above do is not this one's work: all of it if they end where both graphs have a value,
        else what they are known to do, if this one is known to do something else."""
        found: set[str] = set()
        work = self._matching.works.get(node.key)
        for place in self._after.data_inputs(node):
            maker = self._after.makers.get(place)
            if maker is None or place in self._anchors or maker.key not in self.sources:
                continue
            other = self._matching.works.get(maker.key)
            if work is not None and other is not None and other is not work:
                found.add(other.key)
            if any(made in self._anchors for made in self._after.outputs(maker)):
                found.update(one.key for one in self.sources[maker.key])
        return frozenset(found)

    def _region(self, heads: frozenset[int], claimed: frozenset[str]) -> tuple[Node, ...]:
        """Everything before between the heads and the values that are still there."""
        if (heads, claimed) not in self._slices:
            self._slices[heads, claimed] = tuple(self._sliced(heads, claimed))
        return self._slices[heads, claimed]

    def _sliced(self, heads: Iterable[int], claimed: frozenset[str]) -> list[Node]:
        found: dict[str, Node] = {}
        waiting = list(heads)
        while waiting and len(found) < _LARGEST:
            node = self._before.makers.get(waiting.pop())
            if node is None or node.key in found or node.key in claimed:
                continue
            found[node.key] = node
            waiting += (place for place in self._before.data_inputs(node) if place not in self._alive)
        return list(found.values())
