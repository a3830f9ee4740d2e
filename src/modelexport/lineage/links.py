"""Links: for each node after, the nodes before whose work it does; every linker adds what the ones before left open.

`descent.py` has the order of linkers, and how to add one. Beside the links, this has reachability, which they ask for:
which nodes before still lead to what the graph after returns. A tool may have cut outputs off, and nobody stands for
what only led to these. The other thing that they ask for is `regions.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import SHAPE_READERS, Graph, Node
from modelexport.graph.operators import is_linear, is_passing, is_rearranging
from modelexport.lineage.matching import Matching
from modelexport.lineage.regions import ReplacedRegions
from modelexport.lineage.value_classes import NO_CLASS
from modelexport.record.lineage import Link, Relation
from modelexport.record.provenance import Confidence


def reachable_nodes(matching: Matching) -> frozenset[str]:
    """Keys of nodes before that have a part in what the graph after returns; if that is unknown, in any old output."""
    before, after = matching.before, matching.after.graph
    returned, given = (_classes_before(values, matching) for values in (after.outputs, after.inputs))
    roots: Iterable[str] = before.graph.outputs
    if NO_CLASS not in returned:
        roots = [value for value, class_id in before.class_of.items() if class_id in returned]
    borders = {value for value, class_id in before.class_of.items() if class_id in given}
    # A cast or copy of an input is in the input's class too, but it is a node that is needed: the slice goes through.
    producers = before.graph.producers
    starts = {value for value in borders if not (value in producers and is_passing(producers[value]))}
    return frozenset(node.key for node in _slice_numbers(before.graph, roots, starts))


def find_cut_off(matching: Matching) -> frozenset[str]:
    """Keys of nodes before that are not needed any more, if the graph after is known to return less than before."""
    before = matching.before
    returned = _classes_before(matching.after.graph.outputs, matching)
    was_returned = {before.class_of.get(value, NO_CLASS) for value in before.graph.outputs}
    is_cut = NO_CLASS not in returned and not was_returned <= returned
    return frozenset(before.graph.by_key.keys() - reachable_nodes(matching)) if is_cut else frozenset()


def _classes_before(values: Iterable[str], matching: Matching) -> set[int]:
    """The classes before that values after stand for; NO_CLASS among them for one that is not known."""
    anchors = matching.anchors
    class_ids = [matching.after.class_of.get(value, NO_CLASS) for value in values]
    merged = {class_before for class_id in class_ids for class_before in anchors.merged.get(class_id, ())}
    return {anchors.get(class_id) for class_id in class_ids} | merged


def _slice_numbers(graph: Graph, roots: Iterable[str], starts: set[str]) -> list[Node]:
    """The nodes that compute some values from `starts`; what is merely asked for its shape does not count."""

    def producers(values: Iterable[str]) -> Iterator[Node]:
        return (graph.producers[value] for value in values if value not in starts and value in graph.producers)

    def step(node: Node) -> Iterator[Node]:
        if node.operator not in SHAPE_READERS:
            yield from producers(node.inputs)
        for graph_id in (*graph.subgraphs.get(node.key, ()), node.function):
            yield from producers(graph.body_outputs.get(graph_id, ()))

    return backward_slice(producers(roots), step)


# Sources of a reader that are asked which of several congruent nodes they read.
_VOTERS = 4


class Links:
    """
    by_node     links by the key of the node after
    covered     keys of nodes before that some node after does the work of
    regions     by the key of a node after without a match: the nodes before that it has replaced
    quantizers  by class id after: the nodes that quantize it
    handing_on  the pass-through nodes after
    cut_off     keys of nodes before that only led to what is not returned any more
    """

    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self.before, self.after, self.anchors = matching.before, matching.after, matching.anchors
        self.by_node: dict[str, Link] = {}
        self.covered: set[str] = set()
        replaced = ReplacedRegions(matching)
        self.regions, self._vague = replaced.sources, replaced.find_vague()
        # By the key of a node before: how many have replaced it.
        self._replacing: Counter[str] = Counter()
        for key, region in self.regions.items():
            self._replacing.update({source.key: len(matching.after.congruent[key]) for source in region})
        self.handing_on = frozenset(matching.after.pass_through)
        self._still_there = matching.anchors.classes_still_there()
        self.quantizers: dict[int, list[Node]] = {}
        for node in matching.after.pass_through:
            if node.operator == "QuantizeLinear":
                self.quantizers.setdefault(matching.after.inputs(node)[0], []).append(node)
        self.cut_off = find_cut_off(matching)

    def drop_cut_off(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Congruent nodes before without those that were cut off: nobody stands for these."""
        return [node for node in nodes if node.key not in self.cut_off] or nodes

    def add(self, node: Node, sources: Sequence[Node], relation: Relation, confidence: Confidence) -> None:
        # In the order of the graph before, whoever was found first: what is written must not depend on that.
        if len(sources) == 1:
            keys: tuple[str, ...] = (sources[0].key,)
        else:
            keys = tuple(key for _, key in sorted({source.position: source.key for source in sources}.items()))
        self.covered.update(keys)
        self.by_node[node.key] = Link(keys, relation, confidence)

    def add_sources(self, node: Node, gone: Sequence[Node], relation: Relation = Relation.FUSED) -> None:
        """Credit a node that has a link with work of nodes that are gone. That is never exact."""
        if gone and node.key in self.by_node:
            link = self.by_node[node.key]
            sources = [*map(self.before.graph.by_key.__getitem__, link.sources), *gone]
            self.add(node, sources, relation, min(link.confidence, Confidence.STRONG))

    def doubt(self, key: str) -> None:
        """Say that some of what a node is credited with may be another one's work."""
        if key in self.by_node:
            link = self.by_node[key]
            self.by_node[key] = replace(link, confidence=min(link.confidence, Confidence.INFERRED))

    def add_region(self, nodes: Sequence[Node], region: Sequence[Node]) -> None:
        for node in nodes:
            sources = [source for origin in region for source in self._choose_congruent(node, origin)]
            confidence = Confidence.INFERRED if nodes[0].key in self._vague else Confidence.STRONG
            self.add(node, sources, region_relation(sources), confidence)

    def _choose_congruent(self, node: Node, origin: Node) -> Sequence[Node]:
        """All nodes congruent to one that was replaced; if as many nodes have replaced these, the one that a name or
        reader tells.

        before    x ──► Flatten ──► a          after    x ──► Reshape(s) ──► ? ──► Add          Add read a:
                  x ──► Flatten ──► b                   x ──► Reshape(t) ──► b                  ? is a, and not b
        """
        congruent = self.before.congruent_nodes(origin)
        if len(congruent) == 1 or self._replacing[origin.key] < len(congruent):
            return congruent
        candidates = {each.key: each for each in congruent}
        chosen = self.choose_origin(node, candidates)
        return congruent if chosen is None else [candidates[chosen]]

    def add_introduced(self, node: Node, neighbours: Iterable[Node]) -> None:
        """Link a node without a link to the sources of its neighbours: it is there for them."""
        if node.key not in self.by_node:
            links = (self.by_node[neighbour.key] for neighbour in neighbours if neighbour.key in self.by_node)
            keys = dict.fromkeys(key for link in links for key in link.sources)
            if keys:
                self.by_node[node.key] = Link(tuple(keys), Relation.INTRODUCED, Confidence.INFERRED)

    def link_quantizers(self, class_after: int, gone: Sequence[Node]) -> bool:
        """Link quantizers of a value to what they do; whether there are any."""
        quantizers = self.quantizers.get(class_after, ())
        for quantizer in quantizers if gone else ():
            self.add(quantizer, gone, region_relation(gone), Confidence.STRONG)
        return bool(quantizers)

    def choose_origin(self, node: Node, candidates: Mapping[str, Node]) -> str | None:
        """Which of several congruent nodes it is, by name or by its readers; None if nothing decides."""
        if node.key in candidates:
            return node.key
        votes: Counter[str] = Counter()
        for reader in self._readers_behind_passing(node):
            votes.update(self._ask_reader(reader, node, candidates))
        # A node in a body comes from one in a body.
        alike = {key: votes[key] for key in votes if bool(candidates[key].graph) == bool(node.graph)} or votes
        best = [key for key, count in alike.items() if count == max(alike.values())]
        return best[0] if len(best) == 1 else None

    def find_read(self, node: Node, candidates: Mapping[str, Node]) -> list[str]:
        """Those of several congruent nodes before that the readers of a node read, each of them at the same input."""
        read: dict[str, None] = {}
        for reader in self._readers_behind_passing(node):
            votes = self._ask_reader(reader, node, candidates)
            read.update((key, None) for key, count in votes.items() if count == max(votes.values()))
        return list(read)

    def _ask_reader(self, reader: Node, node: Node, candidates: Mapping[str, Node]) -> Counter[str]:
        """How often a reader of a node stands for a reader of each candidate; twice as much at the same input.

        The input counts: MatMul(q, k) reads two Transposes that may be congruent.
        """
        votes: Counter[str] = Counter()
        indices = {index for index, value in enumerate(reader.inputs) if value in node.outputs}
        link = self.by_node.get(reader.key)
        for key in link.sources[:_VOTERS] if link is not None else ():
            for index, value in enumerate(self.before.graph.by_key[key].inputs):
                maker = self._find_maker(value, candidates)
                if maker is not None:
                    votes[maker] += 1 + (index in indices)
        return votes

    def _readers_behind_passing(self, node: Node) -> Iterator[Node]:
        """Who reads what a node makes, be it behind a quantizer that a tool brought along."""
        waiting = [(reader, 0) for reader in self.after.graph.successors(node)]
        for reader, steps in waiting:  # it grows while it is read
            if reader in self.handing_on and reader.key not in self.by_node and steps < _VOTERS:
                waiting += [(following, steps + 1) for following in self.after.graph.successors(reader)]
            else:
                yield reader

    def _find_maker(self, value: str, candidates: Mapping[str, Node]) -> str | None:
        """Which of some nodes before made a value, be it behind a cast that is gone now.

        before    s ──► Div ──► Cast ──► Slice          after    s ──► Div ──► Slice
        """
        for _ in range(_VOTERS):
            producer = self.before.graph.producers.get(value)
            if producer is None or producer.key in candidates:
                return None if producer is None else producer.key
            if not is_passing(producer):
                break
            value = producer.inputs[0]
        return None

    def is_lost(self, class_before: int) -> bool:
        """Whether a constant that is no mere number is in the graph before alone."""
        return self.before.size(class_before) > 1 and class_before not in self._still_there

    def is_activation(self, origin: Node) -> bool:
        """Whether a quantizer can do what a node did, by cutting off (Relu, Clip): no numbers of its own but limits."""
        single = all(self.before.size(class_id) <= 1 for class_id in self.before.constant_inputs(origin))
        elementwise = not (is_rearranging(origin) or is_linear(origin))
        return single and len(self.before.content_inputs(origin)) == 1 and elementwise


class NodeLinker(ABC):
    """One kind of evidence about nodes. `descent.LINKERS` has them all, in their order."""

    def __init__(self, links: Links) -> None:
        self._links, self._matching, self._anchors = links, links.matching, links.anchors
        self._before, self._after = links.before, links.after

    @abstractmethod
    def link_nodes(self) -> None:
        """Add links, or sources to links, for what this kind of evidence tells about."""


def match_relation(node: Node, origin: Node) -> Relation:
    if (node.op_type, node.attributes) != (origin.op_type, origin.attributes):
        return Relation.REWRITTEN
    return Relation.KEPT if node.key == origin.key else Relation.RENAMED


def region_relation(sources: Sequence[Node]) -> Relation:
    return Relation.FUSED if len(sources) > 1 else Relation.REWRITTEN
