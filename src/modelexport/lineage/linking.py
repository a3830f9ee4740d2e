"""Linking every node of a graph to the nodes of the graph that it was made from.

The kinds of evidence in the order in which they speak: where the graphs begin and end, names that confirm each other,
constants, congruence from all of these in both directions, names that nobody confirms, the regions between what is
known, and for what is left, its neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from modelexport.graph.index import Graph, Node
from modelexport.lineage.classes import NOTHING, Classes
from modelexport.lineage.constants import ConstantLinker
from modelexport.lineage.ends import anchor_ends
from modelexport.lineage.matching import Matching
from modelexport.lineage.names import NameLinker
from modelexport.lineage.neighbours import Neighbours
from modelexport.lineage.operators import family, is_linear, is_moving, is_rearranging, is_view
from modelexport.lineage.regions import Regions
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Link, Relation
from modelexport.record.sketch import Sketches

# Sources of a reader that are asked which of several equal nodes they read.
_VOTERS = 4


def matched(before: Graph, after: Graph, sketches: tuple[Sketches, Sketches]) -> Matching:
    matching = Matching(Classes(before), Classes(after))
    names = NameLinker(matching.before, matching.after)
    anchor_ends(matching, names)
    matching.anchor_constants(ConstantLinker(matching.before, matching.after, sketches))
    for place, other in names.confirmed():
        matching.anchor(place, other, certain=True)
    matching.settle()
    for place, other in names.unconfirmed():
        node, origin = matching.after.makers.get(place), matching.before.makers.get(other)
        if place in matching.anchors or node is None or origin is None:
            continue
        if matching.anchors.agreement(node, origin) is not None or matching.share_weight(node, origin):
            matching.anchor(place, other)
            matching.settle()
    matching.guess()
    return matching


class Linker:
    """From pairs of computations to a link for every node, with its twins and what only hands on."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._before, self._after = matching.before, matching.after
        self._anchors = matching.anchors
        self._alive = matching.anchors.alive()
        self._still_there = matching.still_there()
        self._passing = frozenset(matching.after.passing)
        self._quantizers: dict[int, list[Node]] = {}
        for node in matching.after.passing:
            if node.op_type == "QuantizeLinear":
                self._quantizers.setdefault(matching.after.inputs(node)[0], []).append(node)
        self._found: dict[str, Link] = {}
        self._covered: set[str] = set()
        self._neighbours = Neighbours(matching, self._found)

    def links(self) -> dict[str, Link]:
        regions = Regions(self._matching)
        late: list[Node] = []
        for node in reversed(self._after.nodes):  # what reads a value tells its maker from its twins
            origin = self._matching.matches.get(node.key)
            twins = self._after.twins[node.key]
            if origin is not None:
                self._link_twins(twins, self._before.twins_of(origin), self._matching.confidence[node.key])
            elif node.key in regions.sources and is_rearranging(node):
                late.append(node)
            elif node.key in regions.sources:
                self._link_region(twins, self._left_to_quantizers(node, regions.sources[node.key]))
        self._link_merged()
        self._link_idle()
        self._link_dropped()
        self._link_read_through()
        self._link_weights()
        for node in late:
            self._link_rearranging(node, regions.sources[node.key])
        self._link_passing()
        self._mark_parts()
        self._neighbours.link_rest()
        nothing = Link((), Relation.INTRODUCED, Confidence.NONE)
        return {node.key: self._found.get(node.key, nothing) for node in self._after.graph.nodes}

    def _left_to_quantizers(self, node: Node, region: Sequence[Node]) -> Sequence[Node]:
        """The region without what a quantizer does that reads the result of a node which is as it was before."""
        work = self._matching.works.get(node.key)
        if work is None or (work.op_type, work.attributes) != (node.op_type, node.attributes):
            return region
        left = [one for one in region if one is not work and self._is_activation(one)]
        if not self._leave_to_quantizers(self._after.result(node), left):
            return region
        return [one for one in region if one not in left]

    def _leave_to_quantizers(self, place: int, gone: Sequence[Node]) -> bool:
        """Link quantizers of a value to what they do; whether there are any."""
        quantizers = self._quantizers.get(place, ())
        for quantizer in quantizers if gone else ():
            self._add(quantizer, gone, _relation(gone), Confidence.STRONG)
        return bool(quantizers)

    def _link_region(self, twins: Sequence[Node], region: Sequence[Node]) -> None:
        sources = [twin for one in region for twin in self._before.twins_of(one)]
        for twin in twins:
            self._add(twin, sources, _relation(sources), Confidence.STRONG)

    def _link_rearranging(self, node: Node, region: Sequence[Node]) -> None:
        """It took the place of others of its kind that are gone; else it serves whoever made or reads the value."""
        region = self._beside(node, region)
        alike = [one for one in region if one.op_type == node.op_type]
        gone = [one for one in region if one.key not in self._covered]
        found = [one for one in gone if one in alike] or [one for one in gone if is_rearranging(one)] or alike or gone
        if found:
            self._link_region(self._after.twins[node.key], found)
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

    def _link_twins(self, mine: Sequence[Node], theirs: Sequence[Node], confidence: Confidence) -> None:
        """Equal nodes by name, or each to each in their order; if some are gone, the others stand for all."""
        mine = [node for node in mine if len(mine) == 1 or not self._link_named(node, theirs)]
        if len(mine) != len(theirs):
            for node in mine:
                relation = Relation.SHARED if len(theirs) > 1 else _kept(node, theirs[0])
                self._add(node, theirs, relation, confidence)
            return
        left = {node.key: node for node in theirs}
        told = {node.key: self._told(node, theirs) for node in mine} if len(mine) > 1 else {}
        for node in sorted(mine, key=lambda one: told.get(one.key) is None):
            wanted = told.get(node.key)
            like = (key for key, one in left.items() if bool(one.graph) == bool(node.graph))
            origin = left.pop(wanted if wanted in left else next(like, next(iter(left))))
            self._add(node, [origin], _kept(node, origin), confidence)

    def _link_named(self, node: Node, theirs: Sequence[Node]) -> bool:
        """Link one of several equal nodes to the one of its name, if that was not equal to them before."""
        named = self._before.graph.by_key.get(node.key)
        if named is None or named in theirs or (named.op_type, named.attributes) != (node.op_type, node.attributes):
            return False
        self._add(node, [named], Relation.KEPT, Confidence.STRONG)
        return True

    def _told(self, node: Node, twins: Sequence[Node]) -> str | None:
        """Which of several equal nodes this one is: by name, or by what reads it. Those in bodies are in bodies."""
        if any(twin.key == node.key for twin in twins):
            return node.key
        alike = [twin for twin in twins if bool(twin.graph) == bool(node.graph)]
        keys = {twin.key for twin in alike or twins}
        before = self._before.graph
        votes = Counter(
            above.key
            for reader in self._after.graph.successors(node)
            if reader.key in self._found
            for key in self._found[reader.key].sources[:_VOTERS]
            for above in before.predecessors(before.by_key[key])
            if above.key in keys
        )
        return max(votes, key=votes.__getitem__, default=None)

    def _link_merged(self) -> None:
        """A value that stands for two values that the same operator made: so do, pair by pair, the nodes above it."""
        for place, others in self._anchors.also.items():
            waiting = [(self._after.makers.get(place), self._before.makers.get(other)) for other in others]
            while waiting:
                node, origin = waiting.pop()
                if node is None or origin is None or origin.key in self._covered or node.op_type != origin.op_type:
                    continue
                self._covered.add(origin.key)
                self._extend(node, [origin], Relation.SHARED)
                pairs = zip(self._after.inputs(node), self._before.inputs(origin), strict=False)
                waiting += [(self._after.makers.get(mine), self._before.makers.get(theirs)) for mine, theirs in pairs]

    def _link_idle(self) -> None:
        """A value that stands for two values before: what lay between them is in its maker's weights, or else in
        quantizers that cut off what is too small or too large; or it did nothing, and is nobody's."""
        covered = frozenset(self._covered)  # what is absorbed here may be in several nodes
        for place, others in self._anchors.also.items():
            maker = self._after.makers.get(place)
            if maker is None or maker.key not in self._found:
                continue
            between = [node for other in others for node in self._between(self._anchors.get(place), other)]
            gone = [node for node in between if node.key not in covered]
            # What nobody has taken in did nothing, and is nobody's.
            self._extend(maker, [node for node in gone if self._is_weighed(node, maker)])
            self._leave_to_quantizers(place, [node for node in gone if self._is_activation(node)])
        for taken, kept in ((self._matching.absorbed, self._still_there), (self._matching.skipped, covered)):
            for key, origins in taken.items():
                gone = [self._before.graph.by_key[origin] for origin in origins if origin not in kept]
                self._extend(self._after.graph.by_key[key], gone)

    def _link_dropped(self) -> None:
        """Who reads what another node read has taken that one in. A view does nothing, but for another view."""
        for key, origin in self._matching.matches.items():
            node = self._after.graph.by_key[key]
            for here, there in zip(self._after.inputs(node), self._before.inputs(origin), strict=False):
                if NOTHING in (here, there) or self._anchors.get(here) in (there, NOTHING):
                    continue
                between = self._between(self._anchors.get(here), there)
                gone = [one for one in between if one.key not in self._covered]
                self._extend(node, [one for one in gone if self._is_taken_in(one, node)])

    def _link_read_through(self) -> None:
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
                    self._extend(node, [one for one in between if one.key not in done])

    def _sources_above(self, place: int) -> set[str]:
        """What the nodes do that make a value, or quantize it."""
        makers = [*self._quantizers.get(place, ()), *filter(None, [self._after.makers.get(place)])]
        return {key for maker in makers if maker.key in self._found for key in self._found[maker.key].sources}

    def _link_weights(self) -> None:
        """Who reads a weight that none of its sources read has a part in the work of the node that read it."""
        for node in self._after.nodes:
            for place in self._after.weights(node) if node.key in self._found else ():
                readers = self._anchors.readers_before(place) if place in self._anchors else []
                gone = [one for one in readers if one.key not in self._still_there and not self._is_fixed(one)]
                if not self._is_among(readers, self._found[node.key].sources):
                    self._extend(node, self._only_one(gone, node))

    def _is_fixed(self, origin: Node) -> bool:
        """Whether a node worked on constants alone: what it made is a constant now."""
        return self._before.result(origin) in self._before.fixed

    def _is_among(self, nodes: Sequence[Node], keys: Sequence[str]) -> bool:
        return any(twin.key in keys for node in nodes for twin in self._before.twins_of(node))

    def _only_one(self, gone: Sequence[Node], node: Node) -> Sequence[Node]:
        """With its twins, the one of several nodes that is beside what another is known to do."""
        sources = [self._before.graph.by_key[key] for key in self._found[node.key].sources]
        beside = [one for one in gone if len(gone) == 1 or self._is_beside(one, sources)]
        return self._before.twins_of(beside[0]) if len(beside) == 1 else []

    def _is_beside(self, node: Node, others: Sequence[Node]) -> bool:
        """Whether a node reads what one of others makes, or makes what it reads."""
        made, read = set(self._before.outputs(node)), set(self._before.inputs(node))
        return any(
            not read.isdisjoint(self._before.outputs(one)) or not made.isdisjoint(self._before.inputs(one))
            for one in others
        )

    def _extend(self, node: Node, gone: Sequence[Node], relation: Relation = Relation.FUSED) -> None:
        if gone and node.key in self._found:
            link = self._found[node.key]
            sources = [*map(self._before.graph.by_key.__getitem__, link.sources), *gone]
            self._add(node, sources, relation, min(link.confidence, Confidence.STRONG))

    def _between(self, one: int, other: int) -> list[Node]:
        """The nodes on the way from one value to the other, whichever comes first."""
        for start, end in ((one, other), (other, one)):
            steps = [end, *self._before.made_from(end)]
            if start in steps:
                return [self._before.makers[place] for place in steps[: steps.index(start)]]
        return []

    def _is_weighed(self, origin: Node, maker: Node) -> bool:
        """Whether what a node did with its constants is in the weights of another: these are others now, or else the
        first one's have gone without a trace. They may all the same have kept their names."""
        if not is_linear(origin) or all(self._after.size(place) == 1 for place in self._after.constant_inputs(maker)):
            return False
        work = self._matching.matches.get(maker.key)
        constants = self._before.constant_inputs(origin)
        changed = work is not None and not self._anchors.is_same_work(maker, work)
        return bool(constants) and (changed or any(self._is_lost(place) for place in constants))

    def _is_lost(self, place: int) -> bool:
        """Whether a constant that is no mere number is in the graph before alone."""
        return self._before.size(place) > 1 and place not in self._alive

    def _is_taken_in(self, origin: Node, node: Node) -> bool:
        """Whether the reader of a node that is gone does its work: it is one of the same kind, it has no numbers, or
        these are in weights that nobody knows."""
        if is_view(node) or is_moving(origin) or is_rearranging(origin):
            return is_view(node) and is_view(origin)
        constants = self._before.constant_inputs(origin)
        lost = is_linear(origin) and any(self._is_lost(place) for place in constants)
        return not constants or (lost and self._matching.has_unknown_weight(node))

    def _is_activation(self, origin: Node) -> bool:
        """Whether a quantizer can do what a node did, by cutting off: it has no numbers of its own but limits."""
        single = all(self._before.size(place) <= 1 for place in self._before.constant_inputs(origin))
        return single and len(self._before.content(origin)) == 1 and not (is_rearranging(origin) or is_linear(origin))

    def _link_passing(self) -> None:
        """Casts, identities and quantizers: the same ones if there were any at that place."""
        known: dict[tuple[int, str], list[Node]] = {}
        for node in (*self._before.passing, *self._before.literals):
            known.setdefault((self._before.of[node.outputs[0]], family(node.op_type)), []).append(node)
        for node in reversed((*self._after.literals, *self._after.passing)):
            others = self._origins(node)
            same = [origin for other in others for origin in known.get((other, family(node.op_type)), ())]
            same = [origin for origin in same if origin.attributes == node.attributes] or same
            told = self._told(node, same)
            found = [origin for origin in same if origin.key == told] or same
            if node.key in self._found:
                self._extend(node, found)  # it has taken in what lay before it
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
        self._add(node, found, Relation.SHARED if len(found) > 1 else _kept(node, found[0]), Confidence.EXACT)

    def _origins(self, node: Node) -> list[int]:
        """The classes before that may be what a node hands on: what is known, and what its name says if that fits."""
        place = self._after.of[node.outputs[0]]
        known = self._anchors.get(place)
        named = self._before.of.get(node.outputs[0], NOTHING)
        fits = known != NOTHING and known in self._before.made_from(named)
        return [known, *self._anchors.also.get(place, ()), *([named] if fits else [])]

    def _mark_parts(self) -> None:
        """Nodes that read each other in the place of one node do a part of its work each."""
        heirs: dict[str, list[Node]] = {}
        for node in self._after.nodes:
            link = self._found.get(node.key)
            if link is not None and len(link.sources) == 1:
                heirs.setdefault(link.sources[0], []).append(node)
        for nodes in heirs.values():
            for node in self._joined(nodes) if len(nodes) > 1 else ():
                for twin in self._after.twins[node.key]:
                    self._found[twin.key] = replace(self._found[twin.key], relation=Relation.SPLIT)

    def _joined(self, nodes: Sequence[Node]) -> list[Node]:
        """Those that read what another one makes, or make what another one reads."""
        made = {place for node in nodes for place in self._after.outputs(node)}
        read = {place for node in nodes for place in self._after.inputs(node)}
        return [
            node
            for node in nodes
            if not made.isdisjoint(self._after.inputs(node)) or not read.isdisjoint(self._after.outputs(node))
        ]

    def _add(self, node: Node, sources: Sequence[Node], relation: Relation, confidence: Confidence) -> None:
        ordered = sorted({source.position: source.key for source in sources}.items())
        keys = tuple(key for _, key in ordered)
        self._covered.update(keys)
        self._found[node.key] = Link(keys, relation, confidence)


def _kept(node: Node, origin: Node) -> Relation:
    if (node.op_type, node.attributes) != (origin.op_type, origin.attributes):
        return Relation.REWRITTEN
    return Relation.KEPT if node.key == origin.key else Relation.RENAMED


def _relation(sources: Sequence[Node]) -> Relation:
    return Relation.FUSED if len(sources) > 1 else Relation.REWRITTEN
