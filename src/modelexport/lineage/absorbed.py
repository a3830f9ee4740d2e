"""Absorption: linkers of nodes that match, that replace a region, or that have taken in what is gone.

`MatchLinker` and `LayoutLinker` say which nodes before a node has replaced. The others ask who does the work of what is
gone without a trace; `descent.py` has a table of them, and how to add one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import Node
from modelexport.graph.operators import is_linear, is_moving, is_rearranging, is_view
from modelexport.graph.protos import plain_domain
from modelexport.lineage.links import NodeLinker, match_relation
from modelexport.lineage.value_classes import NO_CLASS
from modelexport.record.lineage import Relation
from modelexport.record.provenance import Confidence


class MatchLinker(NodeLinker):
    """Matched nodes with those congruent to them, and nodes that have replaced a region.

    before    x ──► MatMul ──► Add ──► y          after    x ──► Gemm ──► y          Gemm: MatMul, Add (FUSED)
    """

    def link_nodes(self) -> None:
        for node in reversed(self._after.nodes):  # what reads a value tells its producer from congruent ones
            origin = self._matching.matches.get(node.key)
            nodes = self._after.congruent[node.key]
            if origin is not None:
                origins = self._links.drop_cut_off(self._before.congruent_nodes(origin))
                if len(nodes) > len(origins):
                    origins = list(dict.fromkeys((*origins, *self._find_merged(node))))
                self._link_congruent(nodes, origins, self._matching.confidence[node.key])
            elif node.key in self._links.regions and not is_rearranging(node):
                self._links.add_region(nodes, self._without_quantized(node, self._links.regions[node.key]))

    def _find_merged(self, node: Node) -> Iterator[Node]:
        """Nodes before that made something else than a node's match, which is the same now, as sizes became constants.

        before    x ──► Shape ──► Div ──► a          after    Div(8, 2) ──► a
                  y ──► Shape ──► Div ──► b                   Div(8, 2) ──► b
        """
        for class_before in self._anchors.merged.get(self._after.result(node), ()):
            producer = self._before.producers.get(class_before)
            if producer is not None and (producer.op_type, producer.attributes) == (node.op_type, node.attributes):
                yield from self._before.congruent_nodes(producer)

    def _without_quantized(self, node: Node, region: Sequence[Node]) -> Sequence[Node]:
        """The region without what a quantizer does that reads the result of a node which is as it was before."""
        work = self._matching.works.get(node.key)
        # Attributes may be written out now, but an activation is in none of them: for that, there are other operators.
        if work is None or (work.op_type, plain_domain(work.domain)) != (node.op_type, plain_domain(node.domain)):
            return region
        activations = [source for source in region if source is not work and self._links.is_activation(source)]
        if not self._links.link_quantizers(self._after.result(node), activations):
            return region
        return [source for source in region if source not in activations]

    def _link_congruent(self, nodes: Sequence[Node], origins: Sequence[Node], confidence: Confidence) -> None:
        """By name, or each to each in their order; if some are gone, the others stand for all."""
        if len(nodes) == len(origins) == 1:
            self._links.add(nodes[0], origins, match_relation(nodes[0], origins[0]), confidence)
            return
        left = {origin.key: origin for origin in origins}
        nodes = [node for node in nodes if len(nodes) == 1 or not self._link_named(node, left)]
        if len(nodes) != len(origins):
            for node in nodes:
                sources = self._choose_sources(node, left, len(nodes))
                relation = Relation.SHARED if len(sources) > 1 else match_relation(node, sources[0])
                self._links.add(node, sources, relation, confidence)
            return
        chosen = {node.key: self._links.choose_origin(node, left) for node in nodes} if len(nodes) > 1 else {}
        for node in sorted(nodes, key=lambda node: chosen.get(node.key) is None):
            wanted = chosen.get(node.key)
            guessed = wanted not in left and len(left) > 1
            in_body = (key for key, origin in left.items() if bool(origin.graph) == bool(node.graph))
            origin = left.pop(wanted if wanted in left else next(in_body, next(iter(left))))
            sure = min(confidence, Confidence.INFERRED) if guessed else confidence
            self._links.add(node, [origin], match_relation(node, origin), sure)

    def _choose_sources(self, node: Node, origins: Mapping[str, Node], count: int) -> Sequence[Node]:
        """Of several congruent nodes before, those that one of `count` nodes after stands for; all if nothing tells.

        Of more nodes than there were, a name or a reader tells which one each of them is. Of fewer, the readers tell
        which ones each of them was made of:

            before    x ──► Size ──► a, b, c          after    x ──► Size ──► a, b
                      (a ──► A, b ──► B, c ──► C)               (a ──► A, a ──► B, b ──► C)          a is a and b
        """
        if count > len(origins) > 1:
            wanted = self._links.choose_origin(node, origins)
            return list(origins.values()) if wanted is None else [origins[wanted]]
        read = self._links.find_read(node, origins) if count > 1 else []
        return [origins[key] for key in read] or list(origins.values())

    def _link_named(self, node: Node, origins: Mapping[str, Node]) -> bool:
        """Link one of several congruent nodes to the one of its name, if that was not congruent to them before."""
        named = self._before.graph.by_key.get(node.key)
        if named is None or node.key in origins or (named.op_type, named.attributes) != (node.op_type, node.attributes):
            return False
        self._links.add(node, [named], Relation.KEPT, Confidence.STRONG)
        return True


class LayoutLinker(NodeLinker):
    """Views and transpositions without a match: they come from others of their kind that are gone.

        before    x ──► Reshape ──► Transpose ──► y          after    x ──► Transpose ──► Reshape ──► y

    One that has replaced nothing serves whoever made the value that it reads.
    """

    def link_nodes(self) -> None:
        for node in reversed(self._after.nodes):
            if node.key in self._links.regions and is_rearranging(node):
                self._link_layout(node, self._links.regions[node.key])

    def _link_layout(self, node: Node, region: Sequence[Node]) -> None:
        region = self._adjacent_layout(node, region)
        alike = [source for source in region if source.op_type == node.op_type]
        gone = [source for source in region if source.key not in self._links.covered]
        layout = [source for source in gone if is_rearranging(source)]
        sources = [source for source in gone if source in alike] or layout or alike or gone
        if sources:
            self._links.add_region(self._after.congruent[node.key], sources)
        elif self._after.result(node) in self._anchors:
            for congruent in self._after.congruent[node.key]:
                self._links.add_introduced(congruent, self._after.graph.predecessors(congruent))

    def _adjacent_layout(self, node: Node, region: Sequence[Node]) -> Sequence[Node]:
        """Those of a region that a node may stand for: what moved the value that it reads, or the one that it makes."""
        result = self._anchors.get(self._after.result(node))
        if result == NO_CLASS:
            return region

        def layout_above(class_ids: Iterable[int]) -> list[Node]:
            producers = filter(None, map(self._before.producers.get, class_ids))
            return [producer for producer in producers if producer in region and is_rearranging(producer)]

        adjacent = backward_slice(layout_above([result]), lambda node: layout_above(self._before.content_inputs(node)))
        moved = {self._anchors.get(class_id) for class_id in self._after.data_inputs(node)} - {NO_CLASS}
        for source in sorted(region, key=lambda node: node.position):
            reads_moved = not moved.isdisjoint(self._before.content_inputs(source))
            if is_rearranging(source) and source not in adjacent and reads_moved:
                adjacent.append(source)
                moved.update(self._before.outputs(source))
        work = self._before.producers.get(result)
        return adjacent or ([work] if work in region and work is not None else [])


class DeduplicatedLinker(NodeLinker):
    """Common subexpression elimination: one node after stands for several equal nodes before.

        before    x ──► Softmax ──► a          after    x ──► Softmax ──► a, b
                  x ──► Softmax ──► b

    The node that was kept gets all of them as sources (SHARED), and so do, pair by pair, the nodes above it.
    """

    def link_nodes(self) -> None:
        for class_after, merged in self._anchors.merged.items():
            known = self._anchors.get(class_after)
            # A value that is computed *from* its equal (a product with one) is a no-op, not a duplicate: NoOpLinker.
            duplicates = [equal for equal in merged if not self._before.nodes_joining(known, equal)]
            producer = self._after.producers.get(class_after)
            pairs = [(producer, self._before.producers.get(equal)) for equal in duplicates]
            while pairs:
                node, duplicate = pairs.pop()
                if node is not None and duplicate is not None and self._is_duplicate(node, duplicate):
                    self._links.covered.add(duplicate.key)
                    self._links.add_sources(node, [duplicate], Relation.SHARED)
                    inputs = zip(self._after.inputs(node), self._before.inputs(duplicate), strict=False)
                    pairs += [(self._after.producers.get(a), self._before.producers.get(b)) for a, b in inputs]

    def _is_duplicate(self, node: Node, duplicate: Node) -> bool:
        may_be = node.op_type == duplicate.op_type and duplicate.key not in self._links.covered
        return may_be and not self._matching.operands.weights_differ(node, duplicate)


class NoOpLinker(NodeLinker):
    """What lay between two values that are one now.

        before    x ──► Conv ──► c ──► BatchNormalization ──► y          after    x ──► Conv ──► y

    It is in the weights of the value's producer (FUSED) or in quantizers that clip; or it did nothing, and is nobody's.
    """

    def link_nodes(self) -> None:
        covered = frozenset(self._links.covered)  # what is absorbed here may be in several nodes
        for class_after, merged in self._anchors.merged.items():
            producer = self._after.producers.get(class_after)
            if producer is None or producer.key not in self._links.by_node:
                continue
            known = self._anchors.get(class_after)
            between = [node for class_before in merged for node in self._before.nodes_joining(known, class_before)]
            gone = [node for node in between if node.key not in covered]
            self._links.add_sources(producer, [node for node in gone if self._is_in_weights(node, producer)])
            self._links.link_quantizers(class_after, [node for node in gone if self._links.is_activation(node)])
        matching = self._matching
        # What reads a node's constants has taken it in, whoever else does it; what lay between may be anybody's.
        for absorbed, kept in ((matching.absorbed, matching.matched_origins), (matching.skipped, covered)):
            for key, origins in absorbed.items():
                node = self._after.graph.by_key[key]
                gone = [self._before.graph.by_key[origin] for origin in origins if origin not in kept]
                self._links.add_sources(
                    node, [origin for origin in gone if not matching.operands.is_idle(node, origin)]
                )
        for key, origins in matching.skipped.items():
            if any(self._may_be_above(self._after.graph.by_key[key], origin) for origin in origins):
                self._links.doubt(key)

    def _may_be_above(self, node: Node, origin: str) -> bool:
        """Whether a product with a number may be in the weight of a node, or as well in the one of what it reads.

        before    x ──► Mul(w) ──► Mul(0.5) ──► MatMul(v) ──► y          after    x ──► Mul(?) ──► MatMul(?) ──► y
        """
        scaled = self._before.graph.by_key[origin]
        scales = is_linear(scaled) and not self._before.reads_weight(scaled)
        makers = (self._after.producers.get(class_id) for class_id in self._after.content_inputs(node))
        weighed = any(maker is not None and self._after.reads_weight(maker) for maker in makers)
        return scales and weighed and self._after.reads_weight(node)

    def _is_in_weights(self, origin: Node, producer: Node) -> bool:
        """Whether what a node did with its constants is in another's weights: those are new, or its own are gone."""
        # A single number has no room for what differs from channel to channel.
        single = all(self._after.size(class_id) == 1 for class_id in self._after.constant_inputs(producer))
        if not is_linear(origin) or single:
            return False
        match = self._matching.matches.get(producer.key)
        constants = self._before.constant_inputs(origin)
        changed = match is not None and not self._anchors.is_same_work(producer, match)
        return bool(constants) and (changed or any(self._links.is_lost(class_id) for class_id in constants))


class DroppedLinker(NodeLinker):
    """What lay between a value that a node reads and the one that its match read.

        before    x ──► Pad ──► Conv ──► y            after    x ──► Conv(pads) ──► y
                  c ──► Not ──► Where(a, b) ──► y              c ──► Where(b, a) ──► y

    Who reads what another node read has taken that one in. A view does nothing, but for another view.
    """

    def link_nodes(self) -> None:
        covered = frozenset(self._links.covered)  # what several nodes read may be in each of them
        for key, origin in self._matching.matches.items():
            node = self._after.graph.by_key[key]
            for class_after, class_before in zip(self._after.inputs(node), self._before.inputs(origin), strict=False):
                known = self._anchors.get(class_after)
                if NO_CLASS in (class_after, class_before) or known in (class_before, NO_CLASS):
                    continue
                between = self._before.nodes_joining(known, class_before)
                gone = [dropped for dropped in between if dropped.key not in covered]
                self._links.add_sources(node, [dropped for dropped in gone if self._has_absorbed(node, dropped)])

    def _has_absorbed(self, node: Node, dropped: Node) -> bool:
        """Whether a node does the work of one that is gone: by kind, attributes, order, or weights nobody knows."""
        match = self._matching.matches[node.key]
        if self._matching.operands.is_idle(node, dropped):
            return False
        if is_view(node) or is_rearranging(dropped):
            return is_view(node) and is_view(dropped)
        if is_moving(dropped):
            return node.op_type == match.op_type and node.attributes != match.attributes
        constants = self._before.constant_inputs(dropped)
        if not constants:
            return node.attributes != match.attributes or self._matching.operands.has_swapped_inputs(node, match)
        lost = is_linear(dropped) and any(self._links.is_lost(class_id) for class_id in constants)
        return lost and self._matching.operands.has_unknown_weight(node)


class BypassedLinker(NodeLinker):
    """The same for a node that does the work of another and perhaps more, wherever else that is still done.

        before    x ──► Mul ──► m ──► MatMul ──► y          after    x ──► FusedMatMul(alpha) ──► y
                                m ──► Add                            x ──► Mul ──► m ──► Add

    Who reads an earlier value and makes the same as before does all that lay between, but for what made that value.
    """

    def link_nodes(self) -> None:
        for key, origin in self._matching.works.items():
            node = self._after.graph.by_key[key]
            if self._after.result(node) not in self._anchors:
                continue
            for class_after, class_before in zip(self._after.inputs(node), self._before.inputs(origin), strict=False):
                known = self._anchors.get(class_after)
                if self._anchors.is_above(known, class_before):
                    done = self._sources_above(class_after)
                    between = self._before.nodes_joining(known, class_before)
                    gone = [source for source in between if not is_view(source) and source.key not in done]
                    gone = [source for source in gone if not self._matching.operands.is_idle(node, source)]
                    # What moves numbers does no work on them: it was a product with one, or somebody else's.
                    computes = not is_rearranging(node)
                    self._links.add_sources(node, [source for source in gone if computes or is_rearranging(source)])

    def _sources_above(self, class_after: int) -> set[str]:
        """What the nodes do that make a value, or quantize it."""
        producer = self._after.producers.get(class_after)
        makers = [*self._links.quantizers.get(class_after, ()), *filter(None, [producer])]
        links = (self._links.by_node[maker.key] for maker in makers if maker.key in self._links.by_node)
        return {key for link in links for key in link.sources}


class WeightFoldingLinker(NodeLinker):
    """Weights whose reader is gone: who reads them now has a part in that reader's work.

    before    x ──► MatMul(w) ──► Add(b) ──► Add(r) ──► y          after    x ──► MatMul(w) ──► SkipNorm(b, r) ──► y
    """

    def link_nodes(self) -> None:
        for node in self._after.nodes:
            for class_after in self._after.weights(node) if node.key in self._links.by_node else ():
                readers = self._anchors.readers_before(class_after) if class_after in self._anchors else []
                gone = [reader for reader in readers if reader.key not in self._matching.matched_origins]
                working = [reader for reader in gone if self._before.result(reader) not in self._before.foldable]
                sources = self._links.by_node[node.key].sources
                congruent = (origin for reader in readers for origin in self._before.congruent_nodes(reader))
                if not any(origin.key in sources for origin in congruent):
                    self._links.add_sources(node, self._choose_adjacent(working, sources))

    def _choose_adjacent(self, gone: Sequence[Node], keys: Sequence[str]) -> Sequence[Node]:
        """With those congruent to it, the one of several nodes that is next to what another is known to do."""
        sources = [self._before.graph.by_key[key] for key in keys]
        # A weight may be read in many places (tied embeddings): only one of them can be meant.
        adjacent = gone if len(gone) == 1 else self._before.adjacent_nodes(gone, sources)
        return self._before.congruent_nodes(adjacent[0]) if len(adjacent) == 1 else []
