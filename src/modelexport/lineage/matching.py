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
from collections.abc import Iterable, Iterator, Sequence

from modelexport.graph.index import Node
from modelexport.graph.operators import family, is_passing, is_product, is_rearranging, is_view
from modelexport.lineage.anchors import Anchors, pair_inputs
from modelexport.lineage.hints import ConstantHints
from modelexport.lineage.read_order import ReadOrder
from modelexport.lineage.value_classes import NO_CLASS, ValueClasses
from modelexport.record.provenance import Confidence

# More readers than these say nothing about which of them is meant.
_CROWD = 48
# Elements that a constant must have to tell its reader from others.
_DISTINCTIVE = 16
# Operators that one operator was ever seen to take in behind it.
_STEPS = 4


class Matching:
    """
    matches          by the key of a node after: the node before that it does the same as
    matched_origins  the keys of those nodes before
    works            the same where more is done than by that node alone, or perhaps more
    absorbed         by the key of a node after: keys of nodes before that it has taken in, as it reads their constants
    skipped          the same of nodes before that lay in between, and may be anybody's
    confidence       of matches, by the key of the node after
    """

    def __init__(self, before: ValueClasses, after: ValueClasses) -> None:
        self.before, self.after = before, after
        self.anchors = Anchors(before, after)
        self.matches: dict[str, Node] = {}
        self.works: dict[str, Node] = {}
        self.absorbed: dict[str, dict[str, None]] = {}
        self.skipped: dict[str, dict[str, None]] = {}
        self.confidence: dict[str, Confidence] = {}
        self.matched_origins: set[str] = set()
        self._certain: set[int] = set()
        self._waiting: deque[Node] = deque()
        self._queued: set[str] = set()

    def anchor_constants(self, hints: ConstantHints) -> None:
        for class_after, class_before in hints.pairs():
            self.anchors.known.setdefault(class_after, class_before)
            self._enqueue(self.after.readers_of(class_after))
        self.anchors.set_alike(hints.alike)
        self._read_order = ReadOrder(self.anchors)

    def anchor(self, class_after: int, class_before: int, *, certain: bool = False) -> None:
        """Note that two values are the same; `certain` if that does not follow from anything else."""
        if self.anchors.add(class_after, class_before):
            if certain:
                self._certain.add(class_after)
            producer = self.after.producers.get(class_after)
            self._enqueue(() if producer is None else (producer,))
            self._enqueue(self.after.readers_of(class_after))

    def propagate(self) -> None:
        while self._waiting:
            node = self._waiting.popleft()
            self._queued.discard(node.key)
            if node.key not in self.matches and not self._match_by_result(node):
                self._match_by_inputs(node)

    def guess_works(self) -> None:
        """Where nothing else helps: what a node makes that does some work, and perhaps what came next as well."""
        for node in self.after.nodes:
            if node.key not in self.matches and node.key not in self.works:
                self._match_by_later_result(node)
        self.end_works()

    def add_work(self, node: Node, origin: Node) -> None:
        """Note that a node does the work of another, which something else than values told."""
        if node.key in self.matches or self.anchors.agreement(node, origin) is None:
            return
        if node.op_type == origin.op_type and node.attributes != origin.attributes:
            return  # it may do a part of that alone
        if self._is_match(node, origin):
            self._match(node, origin, Confidence.STRONG)
            return
        former = self.works.pop(node.key, None)
        self._add_work(node, origin)
        if former is not None:
            self.absorbed[node.key][former.key] = None

    def end_works(self) -> None:
        """Anchor what nodes read and make that do some work, as far as that is known by now."""
        self.propagate()
        # What is made of constants alone has a part in the work, and does not end it.
        working = [node for node in self.after.nodes if node.key in self.works and self.after.data_inputs(node)]
        for node in working:
            if family(node.op_type) == family(self.works[node.key].op_type):
                self._anchor_inputs(node, self.works[node.key])  # more is known by now of what it reads
        self.propagate()
        self._anchor_new_views()
        for node in working:
            result = self.after.result(node)
            if result not in self.anchors:
                self.anchor(result, self._end_of_work(node, self.works[node.key]))
                self.propagate()
            self._anchor_unknown_input(node)
            if result not in self.anchors:
                self.anchor(result, self._start_of_next(node, self.before.result(self.works[node.key])))
                self.propagate()

    def _anchor_new_views(self) -> None:
        """A view of a value that nobody saw in another shape before is a tool's own: what it makes is that value.

        before    x ──► MatMul ──► m          after    x ──► Reshape ──► Gemm ──► Reshape ──► m
        """
        for node in self.after.nodes:
            if not is_view(node) or self.after.result(node) in self.anchors:
                continue
            read = self.anchors.get(self.after.inputs(node)[0])
            if not any(map(is_rearranging, self.before.readers_of(read)[:_CROWD])):
                self.anchor(self.after.result(node), read)
                self.propagate()

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
            certain = class_after in self._certain and node.attributes == origin.attributes
            agree = self.anchors.agreement(node, origin) is not None
            if not (agree or (certain and self.anchors.is_same_work(node, origin, folded=True))):
                continue
            if node.op_type == origin.op_type and not any(self._find_absorbed(node, origin)):
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
        for _ in range(_STEPS):
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
        read = [class_id for class_id in self.after.inputs(node) if class_id != NO_CLASS]
        rated = sorted(self._rate(node, self._candidates(node, read)), key=lambda item: item[0], reverse=True)
        if not rated:
            self._match_by_weight(node, read)
            return
        (rate, origin), others = rated[0], rated[1:]
        only = not others and self._is_only_reader(node, origin)
        # Of two that fit equally well neither is believed: something else may still decide.
        if (others and others[0][0] == rate) or not (only or self._is_enough(read, rate[0])):
            return
        if self._is_match(node, origin):
            known = all(class_id in self.anchors for class_id in read)
            if known or origin.key not in self.matched_origins:  # else two that may read different values would be one
                chosen = not others or origin.key == node.key  # of several, its name says which
                self._match(node, origin, Confidence.EXACT if known and chosen else Confidence.STRONG)
        else:
            self._add_work(node, origin)

    def _is_match(self, node: Node, origin: Node) -> bool:
        """Whether a node does what another did and no more, and leaves nothing of it to those that read its result."""
        same = self.anchors.is_same_work(node, origin) and not any(self._find_absorbed(node, origin))
        return same and not self._is_ended_by_reader(node, origin)

    def _is_ended_by_reader(self, node: Node, origin: Node) -> bool:
        """Whether what another node made is made by a reader of this one: Shape(start, end), and Shape with a Slice."""
        readers = self.after.readers_of(self.after.result(node))[:_CROWD]
        results = (self.anchors.get(self.after.result(reader)) for reader in readers)
        return self.before.result(origin) in results

    def _match_by_weight(self, node: Node, read: list[int]) -> None:
        """A node with a weight that only one node read has some part in that one's work."""
        for class_id in filter(self._is_distinctive, read):
            readers = self._readers_in_order(node, class_id) or self.anchors.readers_before(class_id)
            if len(readers) == 1:
                self.works.setdefault(node.key, readers[0])

    def _candidates(self, node: Node, read: list[int]) -> list[Node]:
        """Nodes of the same kind before that read one of the same values: the one of these that fewest read."""
        lists = [self.anchors.readers_before(class_id) for class_id in read if class_id in self.anchors]
        crowds = sorted((crowd for crowd in lists if len(crowd) <= _CROWD), key=len)
        kind = family(node.op_type)
        in_order = sorted((self._readers_in_order(node, each) for each in self.after.constants_above(node)), key=len)
        # A view may have stood between a value and its reader; that is looked for behind the smallest crowd alone.
        for crowd in (
            *sorted(in_order, key=len),
            *crowds,
            *(_behind_views(crowd, self.before) for crowd in crowds[:1]),
        ):
            candidates = [reader for reader in crowd if family(reader.op_type) == kind]
            if candidates:
                return candidates
        return []

    def _readers_in_order(self, node: Node, class_after: int) -> Sequence[Node]:
        return self._read_order.readers_before(node, self.anchors.group(self.anchors.get(class_after)))

    def _rate(self, node: Node, candidates: Iterable[Node]) -> Iterator[tuple[tuple[int, bool, bool], Node]]:
        for origin in candidates:
            agreeing = self.anchors.agreement(node, origin)
            if agreeing and not self._makes_something_else(node, origin):
                is_free = origin.key not in self.matched_origins
                yield (agreeing, origin.attributes == node.attributes, is_free), origin

    def _makes_something_else(self, node: Node, origin: Node) -> bool:
        """Whether a node is known to make what another node of the same kind made."""
        known = self.anchors.get(self.after.result(node))
        if known in (NO_CLASS, self.before.result(origin)) or node.op_type != origin.op_type:
            return False
        if is_view(node):
            return True  # one may be put anywhere
        producer = self.before.producers.get(known)
        return producer is None or family(producer.op_type) == family(node.op_type)

    def _is_enough(self, read: list[int], agreeing: int) -> bool:
        data = [class_id for class_id in read if class_id not in self.after.constants]
        if agreeing > 1 or any(self._is_distinctive(class_id) for class_id in read):
            return True
        return bool(data) and all(class_id in self.anchors for class_id in data)

    def _is_distinctive(self, class_after: int) -> bool:
        return class_after in self.anchors and self.after.size(class_after) >= _DISTINCTIVE

    def _is_only_reader(self, node: Node, origin: Node) -> bool:
        known = [(class_after, self.anchors.get(class_after)) for class_after in self.after.data_inputs(node)]
        for class_after, class_before in known:
            crowds = self.after.readers_of(class_after), self.before.readers_of(class_before)
            is_read = class_before != NO_CLASS and class_before in self.before.inputs(origin)
            if is_read and max(map(len, crowds)) <= _CROWD:
                kinds = [[family(reader.op_type) for reader in crowd] for crowd in crowds]
                if all(kinds_read.count(family(node.op_type)) == 1 for kinds_read in kinds):
                    return True
        return False

    def _match(self, node: Node, origin: Node, confidence: Confidence) -> None:
        self.matches[node.key] = origin
        self.confidence[node.key] = confidence
        self.matched_origins.add(origin.key)
        for class_after, class_before in zip(self.after.outputs(node), self.before.outputs(origin), strict=False):
            self.anchor(class_after, class_before)
        self._anchor_inputs(node, origin)
        # Bodies of matched nodes go together by their attribute: `then_branch` with `then_branch`.
        for body_id in self.after.graph.subgraphs.get(node.key, ()):
            origin_id = f"{origin.key}{body_id.removeprefix(node.key)}"
            if origin_id in self.before.graph.body_outputs:
                for class_after, class_before in self.after.pair_interfaces(body_id, self.before, origin_id):
                    self.anchor(class_after, class_before)

    def _find_absorbed(self, node: Node, origin: Node) -> Iterator[Node]:
        """Nodes behind one whose constants the node after reads: it has taken them in."""
        constants = {self.anchors.get(class_id) for class_id in self.after.constant_inputs(node)} - {NO_CLASS}
        origin_constants = self.before.constant_inputs(origin)
        more = {class_id for class_id in constants if not self.anchors.is_like(class_id, origin_constants)}
        for reader in self.before.readers_of(self.before.result(origin))[:_CROWD] if more else ():
            if not more.isdisjoint(self.before.inputs(reader)):
                yield reader

    def _add_work(self, node: Node, origin: Node) -> None:
        if node.key not in self.works:
            self.works[node.key] = origin
            absorbed = ((reader.key, None) for reader in self._find_absorbed(node, origin))
            self.absorbed.setdefault(node.key, {}).update(absorbed)
            self._anchor_inputs(node, origin)

    def _anchor_inputs(self, node: Node, origin: Node) -> None:
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

    def _end_of_work(self, node: Node, origin: Node) -> int:
        """The first value from a node's result on that is read by the same operators as what another makes now."""
        if self.does_part(node, origin) or self._is_ended_by_reader(node, origin):
            return NO_CLASS
        direct = [reader for reader in self.after.readers_of(self.after.result(node)) if not is_passing(reader)]
        wanted = [direct, list(_behind_views(direct, self.after))]
        constants = {self.anchors.get(class_id) for class_id in self.after.constant_inputs(node)} - {NO_CLASS}
        end, sure = self.before.result(origin), True
        for _ in range(_STEPS):
            readers = self.before.readers_of(end)[:_CROWD]
            absorbed = [reader for reader in readers if not constants.isdisjoint(self.before.inputs(reader))]
            if not absorbed and any(group and self._fit(group, readers) for group in wanted):
                return end
            following = absorbed or readers
            if len(following) != 1:
                return end if sure and node.op_type == origin.op_type else NO_CLASS  # it cannot have taken in both
            if not absorbed and self._is_done_by(direct, following[0]):
                return end
            rest = set(self.before.data_inputs(following[0])) - {end}
            if not self._may_read(node, rest):  # it cannot have joined values that it does not read
                return end if sure and any(rest <= self._known_inputs(reader) for reader in direct) else NO_CLASS
            sure &= bool(absorbed)
            end = self.before.result(following[0])
        return NO_CLASS

    def known_works(self, node: Node) -> list[Node]:
        """All nodes before that a node is known to do the work of, be it in part: it reads their constants, for one."""
        works = {work.key: work for work in [self.works.get(node.key)] if work is not None}
        works |= {key: self.before.graph.by_key[key] for key in self.absorbed.get(node.key, ())}
        for class_id in filter(self._is_distinctive, self.after.constant_inputs(node)):
            readers = self._readers_in_order(node, class_id) or self.anchors.readers_before(class_id)
            if len(readers) == 1 and self.before.result(readers[0]) not in self.before.foldable:
                works[readers[0].key] = readers[0]
        return list(works.values())

    def _anchor_unknown_input(self, node: Node) -> None:
        """If all that a node reads is known but for one value, that is the one that its works read and nobody makes.

        before    a ──► … ──► MatMul ──► m ──► Add(b) ──► Add(r) ──► LayerNormalization
        after     a ──► … ──► ? ──► SkipLayerNormalization(b, r)                          ? is m
        """
        unknown = [each for each in self.after.data_inputs(node) if each not in self.anchors]
        unknown = [each for each in unknown if not self.after.is_scale(each)]
        works = self.known_works(node) if len(unknown) == 1 else []
        if len(works) <= 1:
            return  # its inputs are paired already
        keys = {work.key for work in works}
        inside = {each.key: each for work in works for each in self.before.path_to(work, keys, _STEPS)}
        made = {class_id for each in inside.values() for class_id in self.before.outputs(each)}
        read = {class_id for each in inside.values() for class_id in self.before.varying_inputs(each)}
        left = read - made - self._known_inputs(node) - self.anchors.classes_still_there()
        if len(left) == 1 and keys <= inside.keys():
            self.anchor(unknown[0], left.pop())
            self.propagate()

    def _start_of_next(self, node: Node, made: int) -> int:
        """What a node's work makes, if a reader's result is known and that reader does all that came next.

        before    x ──► MatMul ──► m ──► (Mul, Erf, Add, Mul) ──► g          Gelu does what lies between m and g,
        after     x ──► MatMulNBits ──► ? ──► Gelu ──► g                     and nothing can be cut off from that
        """
        for reader in self.after.readers_of(self.after.result(node))[:_CROWD]:
            end = self.anchors.get(self.after.result(reader))
            if end not in (NO_CLASS, made) and self.before.is_one_step(made, end, self._known_inputs(reader)):
                return made
        return NO_CLASS

    def _is_done_by(self, readers: Iterable[Node], origin: Node) -> bool:
        """Whether one of some nodes reads a constant of another that tells it from others: it does that one's work."""
        read = (class_id for reader in readers for class_id in self.after.constant_inputs(reader))
        known = {self.anchors.get(class_id) for class_id in read if self._is_distinctive(class_id)}
        return any(self.anchors.is_like(class_id, known) for class_id in self.before.constant_inputs(origin))

    def does_part(self, node: Node, origin: Node) -> bool:
        """Whether a node leaves some of another's work to those behind it: they read constants that the other read."""
        constants = [class_id for class_id in self.before.constant_inputs(origin) if self.before.size(class_id) > 1]
        result = self.after.result(node)
        for _ in range(_STEPS if len(constants) > 1 else 0):
            readers = [reader for reader in self.after.readers_of(result)[:_CROWD] if not is_passing(reader)]
            read = (class_id for reader in readers for class_id in self.after.constant_inputs(reader))
            if any(self.anchors.is_like(self.anchors.get(class_id), constants) for class_id in read):
                return True
            if len(readers) != 1:
                break
            result = self.after.result(readers[0])
        return False

    def has_unknown_weight(self, node: Node) -> bool:
        return any(class_id not in self.anchors for class_id in self.after.weights(node))

    def share_weight(self, node: Node, origin: Node) -> bool:
        origin_weights = [weight for weight in self.before.constant_inputs(origin) if self.before.is_weight(weight)]
        weights = (self.anchors.get(class_id) for class_id in self.after.weights(node) if class_id in self.anchors)
        return any(self.anchors.is_like(weight, origin_weights) for weight in weights)

    def weights_differ(self, node: Node, origin: Node) -> bool:
        """Whether a node reads weights that are known, and another one read others that hold something else."""
        weights = [self.anchors.get(class_id) for class_id in self.after.weights(node) if class_id in self.anchors]
        origin_weights = list(self.before.weights(origin))
        alike, constants = self.anchors.alike, self.before.constants
        # Of a constant that nobody looked into it is not known which others hold the same.
        known = (weight in alike or constants.get(weight) is not None for weight in (*weights, *origin_weights))
        if not (weights and origin_weights and all(known)):
            return False
        return not any(self.anchors.is_like(weight, origin_weights) for weight in weights)

    def has_swapped_inputs(self, node: Node, origin: Node) -> bool:
        """Whether a node reads what another one read, with two of its inputs exchanged: Sub(a, b), and Sub(b, a)."""
        known = [self.anchors.get(class_id) for class_id in self.after.inputs(node)]
        pairs = [pair for pair in zip(known, self.before.inputs(origin), strict=False) if NO_CLASS not in pair]
        alike = self.anchors.alike
        moves = {(alike.get(now, now), alike.get(was, was)) for now, was in pairs}
        return any(now != was and (was, now) in moves for now, was in moves)

    def _known_inputs(self, node: Node) -> set[int]:
        return {self.anchors.get(class_id) for class_id in self.after.data_inputs(node)}

    def _may_read(self, node: Node, classes_before: set[int]) -> bool:
        producers = self.after.producers
        unknown = [class_id for class_id in self.after.data_inputs(node) if class_id not in self.anchors]
        # A scale that a quantizer found is what a pass-through node makes, and was not there before.
        strange = [class_id for class_id in unknown if class_id not in producers or not is_passing(producers[class_id])]
        return len(classes_before - self._known_inputs(node)) <= len(strange)

    def _fit(self, readers: Iterable[Node], origins: Iterable[Node]) -> bool:
        """Whether each of some readers can be one of others, and what else it reads says so."""
        return all(any(self._fits(reader, origin) for origin in origins) for reader in readers)

    def _fits(self, reader: Node, origin: Node) -> bool:
        agreeing = self.anchors.agreement(reader, origin)
        if agreeing or (agreeing == 0 and len(self.after.data_inputs(reader)) == 1):
            return True
        work = self.works.get(reader.key)
        if work is None:
            return False
        # What reads more than its work did has taken in what put values together before that (SkipLayerNormalization).
        joins = len(self.after.data_inputs(reader)) > len(self.before.data_inputs(work))
        joins &= len(self.before.data_inputs(origin)) > 1
        return self._comes_next(origin, work) or (joins and self._comes_next(work, origin))

    def _comes_next(self, origin: Node, work: Node) -> bool:
        """Whether a node reads what another makes, with nothing beside it on the way."""
        for _ in range(_STEPS):
            readers = self.before.readers_of(self.before.result(work))
            if origin in readers[:_CROWD]:
                return True
            if len(readers) != 1:
                return False
            work = readers[0]
        return False


def _behind_views(readers: Iterable[Node], classes: ValueClasses) -> Iterator[Node]:
    """What reads a value in the end, be it in another shape."""
    waiting = [(reader, 0) for reader in readers]
    while waiting:
        reader, steps = waiting.pop(0)
        if not is_view(reader):
            yield reader
        elif steps < _STEPS:
            following = classes.readers_of(classes.result(reader))[:_CROWD]
            waiting += [(next_reader, steps + 1) for next_reader in following]
