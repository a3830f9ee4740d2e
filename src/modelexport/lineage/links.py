"""The links that are found so far, to which every linker adds what the ones before it left open.

What of the graph before has a part in what the graph after returns: some of its outputs may have been cut off.

Nodes that do the work of several nodes, or some of the work of one.

Between the values that both graphs have, whatever lies there after has taken the place of whatever lay there before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from modelexport.graph.index import SHAPE_READERS, Graph, Node
from modelexport.graph.operators import is_linear, is_passing, is_rearranging
from modelexport.lineage.matching import Matching
from modelexport.lineage.value_classes import NOTHING
from modelexport.record.lineage import Link, Relation
from modelexport.record.provenance import Confidence


def needed_keys(matching: Matching) -> frozenset[str]:
    """Keys of nodes whose numbers have a part in what the graph after returns; all of these if that is not known."""
    before, after = matching.before, matching.after.graph
    ends, given = (_classes(values, matching) for values in (after.outputs, after.inputs))
    roots: Iterable[str] = before.graph.outputs
    if NOTHING not in ends:
        roots = [value for value, place in before.of.items() if place in ends]
    starts = {value for value, place in before.of.items() if place in given and not _is_handed_on(value, before.graph)}
    return frozenset(_upstream(before.graph, roots, starts))


def is_cut(matching: Matching) -> bool:
    """Whether the graph after is known to return less, or something that comes earlier."""
    before, after = matching.before, matching.after.graph
    ends = _classes(after.outputs, matching)
    return NOTHING not in ends and not {before.of.get(value, NOTHING) for value in before.graph.outputs} <= ends


def _is_handed_on(value: str, graph: Graph) -> bool:
    maker = graph.producers.get(value)
    return maker is not None and is_passing(maker)


def _classes(values: Iterable[str], matching: Matching) -> set[int]:
    """The classes before that values after stand for; NOTHING among them for one that is not known."""
    places = [matching.after.of.get(value, NOTHING) for value in values]
    anchors = matching.anchors
    return {anchors.get(place) for place in places} | {one for place in places for one in anchors.also.get(place, ())}


def _upstream(graph: Graph, roots: Iterable[str], given: set[str]) -> Iterator[str]:
    """Keys of nodes that values are made by; what is merely asked for its shape does not count."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        node = graph.producers.get(value)
        if value in given or node is None or node.key in seen:
            continue
        seen.add(node.key)
        yield node.key
        if node.op_type not in SHAPE_READERS:
            waiting += filter(None, node.inputs)
        inside = (*graph.subgraphs.get(node.key, ()), node.function)
        waiting += (one for graph_id in inside for one in graph.body_outputs.get(graph_id, ()))


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


# Sources of a reader that are asked which of several equal nodes they read.
_VOTERS = 4


class NodeLinker(Protocol):
    """One kind of evidence."""

    def link(self) -> None:
        """Add links, or sources to links, for what this kind of evidence tells about."""


class Links:
    """
    found       links by the key of the node after
    covered     keys of nodes before that some node after does the work of
    quantizers  the nodes that quantize each class of values after
    cut_off     keys of nodes before that only led to what is not returned any more
    """

    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self.before, self.after, self.anchors = matching.before, matching.after, matching.anchors
        self.found: dict[str, Link] = {}
        self.covered: set[str] = set()
        self.quantizers: dict[int, list[Node]] = {}
        for node in matching.after.passing:
            if node.op_type == "QuantizeLinear":
                self.quantizers.setdefault(matching.after.inputs(node)[0], []).append(node)

        everything = matching.before.graph.by_key.keys()
        self.cut_off = frozenset(everything - needed_keys(matching)) if is_cut(matching) else frozenset[str]()

    def left_of(self, twins: Sequence[Node]) -> Sequence[Node]:
        """Equal nodes before without those that were cut off: nobody stands for these."""
        return [node for node in twins if node.key not in self.cut_off] or twins

    def add(self, node: Node, sources: Sequence[Node], relation: Relation, confidence: Confidence) -> None:
        ordered = sorted({source.position: source.key for source in sources}.items())
        keys = tuple(key for _, key in ordered)
        self.covered.update(keys)
        self.found[node.key] = Link(keys, relation, confidence)

    def extend(self, node: Node, gone: Sequence[Node], relation: Relation = Relation.FUSED) -> None:
        if gone and node.key in self.found:
            link = self.found[node.key]
            sources = [*map(self.before.graph.by_key.__getitem__, link.sources), *gone]
            self.add(node, sources, relation, min(link.confidence, Confidence.STRONG))

    def add_region(self, twins: Sequence[Node], region: Sequence[Node]) -> None:
        sources = [twin for one in region for twin in self.before.twins_of(one)]
        for twin in twins:
            self.add(twin, sources, relation_to(sources), Confidence.STRONG)

    def leave_to_quantizers(self, place: int, gone: Sequence[Node]) -> bool:
        """Link quantizers of a value to what they do; whether there are any."""
        quantizers = self.quantizers.get(place, ())
        for quantizer in quantizers if gone else ():
            self.add(quantizer, gone, relation_to(gone), Confidence.STRONG)
        return bool(quantizers)

    def told(self, node: Node, twins: Mapping[str, Node]) -> str | None:
        """Which of several equal nodes this one is: by name, or by what reads it, best in the same place. Those in
        bodies are in bodies."""
        if node.key in twins:
            return node.key
        votes: Counter[str] = Counter()
        for reader in self.after.graph.successors(node):
            places = {place for place, value in enumerate(reader.inputs) if value in node.outputs}
            link = self.found.get(reader.key)
            for key in link.sources[:_VOTERS] if link is not None else ():
                for place, value in enumerate(self.before.graph.by_key[key].inputs):
                    above = self.before.graph.producers.get(value)
                    if above is not None and above.key in twins:
                        votes[above.key] += 1 + (place in places)
        alike = {key: votes[key] for key in votes if bool(twins[key].graph) == bool(node.graph)} or votes
        best = [key for key, count in alike.items() if count == max(alike.values())]
        return best[0] if len(best) == 1 else None

    def is_activation(self, origin: Node) -> bool:
        """Whether a quantizer can do what a node did, by cutting off: it has no numbers of its own but limits."""
        single = all(self.before.size(place) <= 1 for place in self.before.constant_inputs(origin))
        return single and len(self.before.content(origin)) == 1 and not (is_rearranging(origin) or is_linear(origin))


def kept(node: Node, origin: Node) -> Relation:
    """How a node is related to the only one that it comes from."""
    if (node.op_type, node.attributes) != (origin.op_type, origin.attributes):
        return Relation.REWRITTEN
    return Relation.KEPT if node.key == origin.key else Relation.RENAMED


def relation_to(sources: Sequence[Node]) -> Relation:
    """Of a node that does something in the place of others."""
    return Relation.FUSED if len(sources) > 1 else Relation.REWRITTEN
