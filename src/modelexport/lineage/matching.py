"""Congruence: nodes of two graphs are matched from what is known to what follows from it, until nothing more follows.

An *anchor* says that a class of values after is a class of values before. A *match* says that a node after does what a
node before did; a *work*, that it does that and perhaps more (fusion). Each anchor may make matches possible, and each
match gives anchors for what it reads and makes:

    before    x ──► MatMul(w) ──► m ──► Add(b) ──► s ──► Relu ──► r
    after     x ──► Gemm(w, b) ─────────────────► t ──► Relu ──► z

    x, w, b are anchored (inputs, constants)     Gemm works as MatMul: w has one reader before; it reads b, so it
                                                 absorbed Add; t is anchored to s; Relu matches Relu; z is r

Nodes wait in a queue and are looked at again only when something next to them has become known, so that all of it takes
time in proportion to the graphs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import Node
from modelexport.graph.operators import family, is_commutative, is_product, is_view
from modelexport.graph.protos import plain_domain
from modelexport.lineage.anchors import Anchors
from modelexport.lineage.hints import ConstantHints
from modelexport.lineage.input_pairs import pair_inputs
from modelexport.lineage.operands import FUSED_STEPS, Operands
from modelexport.lineage.origin_candidates import Candidates
from modelexport.lineage.value_classes import NO_CLASS, ValueClasses
from modelexport.record.provenance import Confidence

# Nodes that are looked at on either side of what both graphs have.
_FAR = 256


class Matching:
    """
    matches          by the key of a node after: the node before that it does the same as
    matched_origins  the keys of those nodes before
    works            the same where more is done than by that node alone, or perhaps more
    absorbed         by the key of a node after: keys of nodes before that it has taken in, as it reads their constants
    skipped          the same of nodes before that lay in between, and may be anybody's
    confidence       of matches, by the key of the node after
    """

    def __init__(self, before: ValueClasses, after: ValueClasses, hints: ConstantHints) -> None:
        self.before, self.after = before, after
        self.anchors = Anchors(before, after)
        self.operands = Operands(self.anchors)
        self.matches: dict[str, Node] = {}
        self.works: dict[str, Node] = {}
        self.absorbed: dict[str, dict[str, None]] = {}
        self.skipped: dict[str, dict[str, None]] = {}
        self.confidence: dict[str, Confidence] = {}
        self.matched_origins: set[str] = set()
        self._certain: set[int] = set()
        self._waiting: deque[Node] = deque()
        self._queued: set[str] = set()
        self._anchor_constants(hints)
        self._candidates = Candidates(self.anchors, self.matched_origins)

    def _anchor_constants(self, hints: ConstantHints) -> None:
        for class_after, class_before in hints.pairs():
            self.anchors.known.setdefault(class_after, class_before)
            self._enqueue(self.after.readers_of(class_after))
        self.anchors.set_alike(hints.alike)

    def anchor(self, class_after: int, class_before: int, *, certain: bool = False) -> None:
        """Note that two values are the same; `certain` if that does not follow from anything else."""
        if self.anchors.add(class_after, class_before):
            if certain:
                self._certain.add(class_after)
            producer = self.after.producers.get(class_after)
            self._enqueue(() if producer is None else (producer,))
            self._enqueue(self.after.readers_of(class_after))

    def is_certain(self, class_after: int) -> bool:
        return class_after in self._certain

    def propagate(self) -> None:
        while self._waiting:
            node = self._waiting.popleft()
            self._queued.discard(node.key)
            if node.key not in self.matches and not self._match_by_result(node):
                self._match_by_inputs(node)

    def match_later_results(self) -> None:
        """Where nothing else helps: what a node makes may be what came next behind the work that it does."""
        for node in self.after.nodes:
            if node.key not in self.matches and node.key not in self.works:
                self._match_by_later_result(node)

    def merge_above_constants(self) -> None:
        """What is computed from constants alone now may have been several values; then so may what it is made from.

        before    x ──► Shape ──► Squeeze ──► Concat(-1) ──► a          after    Squeeze(8) ──► Concat(-1) ──► a
                  y ──► Shape ──► Squeeze ──► Concat(-1) ──► b                   Squeeze(8) ──► Concat(-1) ──► b

        Both Concats after are congruent: their value is a, and b as well. Then the Squeezes are those of both.
        """
        for node in reversed(self.after.nodes):
            if self.after.foldable.isdisjoint(self.after.inputs(node)):
                continue  # as of most nodes
            for origin in self._equal_works(node):
                for read, origin_read in self._pair_folded(node, origin):
                    self.anchor(read, origin_read)
        self.propagate()

    def _equal_works(self, node: Node) -> Iterator[Node]:
        """The match of a node, and what made other values that are its result now."""
        result = self.after.result(node)
        merged = self.anchors.merged.get(result, ()) if result in self.after.foldable else ()
        origins = [self.before.producers.get(class_before) for class_before in (self.anchors.get(result), *merged)]
        for origin in (self.matches.get(node.key), *origins):
            if origin is not None and _is_same_operator(node, origin):
                yield origin

    def _pair_folded(self, node: Node, origin: Node) -> Iterator[tuple[int, int]]:
        """What a node reads that is computed from constants alone, and what another one read there."""
        inputs, origin_inputs = self.after.inputs(node), self.before.inputs(origin)
        if not is_commutative(family(node.operator)):
            yield from (pair for pair in zip(inputs, origin_inputs, strict=False) if pair[0] in self.after.foldable)
            return
        for read in inputs:
            producer = self.after.producers.get(read) if read in self.after.foldable else None
            makers = [(each, self.before.producers.get(each)) for each in origin_inputs]
            alike = [each for each, maker in makers if producer and maker and _is_same_operator(producer, maker)]
            if len(alike) == 1:
                yield read, alike[0]

    def add_work(self, node: Node, origin: Node) -> None:
        """Note that a node does the work of another, which something else than values told."""
        if node.key in self.matches or self.anchors.agreement(node, origin) is None:
            return
        # An operator of one name in another domain has attributes of its own.
        same_operator = (node.op_type, plain_domain(node.domain)) == (origin.op_type, plain_domain(origin.domain))
        if same_operator and node.attributes != origin.attributes:
            return  # it may do a part of that alone
        if self._is_match(node, origin):
            self._match(node, origin, Confidence.STRONG)
            return
        former = self.works.pop(node.key, None)
        self._add_work(node, origin)
        if former is not None:
            self.absorbed[node.key][former.key] = None

    def _enqueue(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.key not in self._queued and node.key not in self.matches:
                self._queued.add(node.key)
                self._waiting.append(node)

    def _match_by_result(self, node: Node) -> bool:
        for class_after in self.after.outputs(node):
            origin = self.before.producers.get(self.anchors.get(class_after))
            if origin is None:
                continue
            # If it is certain that two nodes make the same, they must read the same too, whatever was thought.
            certain = self.is_certain(class_after) and node.attributes == origin.attributes
            agree = self.anchors.agreement(node, origin) is not None
            if not (agree or (certain and self.anchors.is_same_work(node, origin, folded=True))):
                continue
            if node.op_type == origin.op_type and not any(self.operands.find_absorbed(node, origin)):
                unknown = (class_id for class_id in self.after.weights(node) if class_id not in self.anchors)
                # A weight that is not known, not even by name, may hold more than that of the origin.
                is_new = any(self.after.names[class_id] not in self.before.graph.initializers for class_id in unknown)
                self._match(node, origin, Confidence.STRONG if is_new else Confidence.EXACT)
            else:
                self._add_work(node, origin)  # it may have taken in what came before
            return True
        return False

    def _match_by_later_result(self, node: Node) -> None:
        """It does the work of a node whose inputs it reads, or values above them, if it makes what came behind that."""
        class_before = self.anchors.get(self.after.result(node))
        for _ in range(FUSED_STEPS):
            origin = self.before.producers.get(class_before)
            if origin is None:
                break
            if self.anchors.agreement(node, origin) is not None:
                if not is_view(node) and self.anchors.reads_alike(node, origin):
                    self._add_work(node, origin)
                break
            content = self.before.content_inputs(origin)
            if len(content) != 1 or is_product(origin):
                break
            class_before = content[0]

    def _match_by_inputs(self, node: Node) -> None:
        ranked = self._candidates.rank(node)
        if not ranked:
            self._match_by_weight(node)
            return
        origin = self._candidates.choose(node, ranked)
        known = all(each in self.anchors for each in self.after.inputs(node) if each != NO_CLASS)
        if origin is None or (not known and self._is_above_inputs(node, origin)):
            return
        if self._is_match(node, origin):
            if known or origin.key not in self.matched_origins:  # else two that may read different values would be one
                chosen = len(ranked) == 1 or origin.key == node.key  # of several, its name says which
                self._match(node, origin, Confidence.EXACT if known and chosen else Confidence.STRONG)
        else:
            self._add_work(node, origin)

    def _is_above_inputs(self, node: Node, origin: Node) -> bool:
        """Whether a node reads what was made from the result of another one: it is not that one then.

        before    x ──► Add(b) ──► Reshape ──► r ──► Conv ──► y
        after     … r ──► ConvInteger ──► Mul ──► Add(c) ──► y       c equals b, and Add is a part of Conv
        """
        after, before, anchors = self.after, self.before, self.anchors
        known: set[int] = set()

        def step_after(each: Node) -> Iterator[Node]:
            for read in after.data_inputs(each):
                if read in anchors:
                    known.add(anchors.get(read))
                elif read in after.producers:
                    yield after.producers[read]

        def step_before(class_ids: Iterable[int]) -> Iterator[Node]:
            # What comes before it in the file is not made from it.
            makers = (before.producers.get(class_id) for class_id in class_ids)
            return (maker for maker in makers if maker is not None and maker.position >= origin.position)

        backward_slice(list(step_after(node)), step_after, limit=_FAR)
        starts = list(step_before(known))
        return origin in backward_slice(starts, lambda each: step_before(before.data_inputs(each)), limit=_FAR)

    def _is_match(self, node: Node, origin: Node) -> bool:
        """Whether a node does what another did and no more, and leaves nothing of it to those that read its result."""
        same = self.anchors.is_same_work(node, origin) and not any(self.operands.find_absorbed(node, origin))
        return same and not self.operands.is_ended_by_reader(node, origin)

    def _match_by_weight(self, node: Node) -> None:
        """A node with a weight that only one node read has some part in that one's work."""
        for class_id in filter(self.operands.is_distinctive, self.after.inputs(node)):
            readers = self._candidates.readers_by_weight(node, class_id)
            if len(readers) == 1:
                self.works.setdefault(node.key, readers[0])

    def _match(self, node: Node, origin: Node, confidence: Confidence) -> None:
        self.matches[node.key] = origin
        self.confidence[node.key] = confidence
        self.matched_origins.add(origin.key)
        for class_after, class_before in zip(self.after.outputs(node), self.before.outputs(origin), strict=False):
            self.anchor(class_after, class_before)
        self.anchor_inputs(node, origin)
        # Bodies of matched nodes go together by their attribute: `then_branch` with `then_branch`.
        for body_id in self.after.graph.subgraphs.get(node.key, ()):
            origin_id = f"{origin.key}{body_id.removeprefix(node.key)}"
            if origin_id in self.before.graph.body_outputs:
                for class_after, class_before in self.after.pair_interfaces(body_id, self.before, origin_id):
                    self.anchor(class_after, class_before)

    def _add_work(self, node: Node, origin: Node) -> None:
        if node.key not in self.works:
            self.works[node.key] = origin
            absorbed = ((reader.key, None) for reader in self.operands.find_absorbed(node, origin))
            self.absorbed.setdefault(node.key, {}).update(absorbed)
            self.anchor_inputs(node, origin)

    def anchor_inputs(self, node: Node, origin: Node) -> None:
        for pair in pair_inputs(node, origin, self.anchors, self._find_work):
            self.anchor(pair.class_after, pair.class_before)
            for skipped in pair.skipped:
                # With no other operand it is done by nobody now; else it is the reader's, or somebody's nearby.
                if len(self.before.inputs(skipped)) == 1 or is_view(skipped):
                    self.anchors.merged.setdefault(pair.class_after, {})[self.before.result(skipped)] = None
                else:
                    self.skipped.setdefault(node.key, {})[skipped.key] = None

    def _find_work(self, node: Node) -> tuple[Node, bool] | None:
        if node.key in self.matches:
            return self.matches[node.key], True
        return (self.works[node.key], False) if node.key in self.works else None

    def known_works(self, node: Node) -> list[Node]:
        """All nodes before that a node is known to do the work of, be it in part: it reads their constants, for one."""
        works = {work.key: work for work in [self.works.get(node.key)] if work is not None}
        works |= {key: self.before.graph.by_key[key] for key in self.absorbed.get(node.key, ())}
        for class_id in filter(self.operands.is_distinctive, self.after.constant_inputs(node)):
            readers = self._candidates.readers_by_weight(node, class_id)
            if len(readers) == 1 and self.before.result(readers[0]) not in self.before.foldable:
                works[readers[0].key] = readers[0]
        return list(works.values())


def _is_same_operator(node: Node, origin: Node) -> bool:
    return (node.op_type, node.attributes) == (origin.op_type, origin.attributes)
