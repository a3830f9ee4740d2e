"""The links that are found so far, to which every linker adds what the ones before it left open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from modelexport.graph.index import Node
from modelexport.lineage.matching import Matching
from modelexport.lineage.needed import is_cut, needed_keys
from modelexport.lineage.operators import is_linear, is_rearranging
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Link, Relation

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
