"""Operator fusion: where the work of a node ends that does more than one node did, and so what its result is.

    before    x ──► MatMul(w) ──► m ──► Add(b) ──► s ──► Relu ──► r
    after     x ──► FusedMatMul(w) ───────────────► t ──► Relu ──► z          t is s, as Relu reads both

A work that is known starts at one node before. From there its end is looked for in the direction of the dataflow: the
first value that is read by the same operators as the result after. Constants that the node reads, and values that it
cannot have joined, as it does not read them, limit how far that is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from modelexport.graph.index import Node
from modelexport.graph.operators import family, is_linear, is_passing, is_rearranging, is_view
from modelexport.lineage.matching import Matching
from modelexport.lineage.operands import CROWD, FUSED_STEPS, readers_behind_views
from modelexport.lineage.value_classes import NO_CLASS


class FusedWorks:
    """Works of a matching, to which it adds anchors for what they read and make."""

    def __init__(self, matching: Matching) -> None:
        self._matching, self._anchors, self._operands = matching, matching.anchors, matching.operands
        self._before, self._after = matching.before, matching.after

    def anchor_results(self) -> None:
        """Anchor what nodes read and make that do some work, as far as that is known by now."""
        self._matching.propagate()
        # What is made of constants alone has a part in the work, and does not end it.
        working = [
            node for node in self._after.nodes if node.key in self._matching.works and self._after.data_inputs(node)
        ]
        for node in working:
            if family(node.op_type) == family(self._matching.works[node.key].op_type):
                self._matching.anchor_inputs(
                    node, self._matching.works[node.key]
                )  # more is known by now of what it reads
        self._matching.propagate()
        self._anchor_new_views()
        self._anchor_last_pieces()
        for node in working:
            result = self._after.result(node)
            if result not in self._anchors:
                self._matching.anchor(result, self._end_of_work(node, self._matching.works[node.key]))
                self._matching.propagate()
            self._anchor_unknown_input(node)
            if result not in self._anchors:
                self._matching.anchor(
                    result, self._start_of_next(node, self._before.result(self._matching.works[node.key]))
                )
                self._matching.propagate()

    def _anchor_new_views(self) -> None:
        """A view of a value that nobody saw in another shape before is a tool's own: what it makes is that value.

        before    x ──► MatMul ──► m          after    x ──► Reshape ──► Gemm ──► Reshape ──► m
        """
        for node in self._after.nodes:
            if not is_view(node) or self._after.result(node) in self._anchors:
                continue
            read = self._anchors.get(self._after.inputs(node)[0])
            if not any(map(is_rearranging, self._before.readers_of(read)[:CROWD])):
                self._matching.anchor(self._after.result(node), read)
                self._matching.propagate()

    def _anchor_last_pieces(self) -> None:
        """Of a value in pieces, the last that is not known is what is left of those that were made beside each other.

        before    x ──► MatMul(v) ──► a          after    x ──► MatMul(v, w) ──► Split ──► ?, b          ? is a
                  x ──► MatMul(w) ──► b
        """
        for node in self._after.nodes:
            pieces = [class_id for class_id in self._after.outputs(node) if class_id != NO_CLASS]
            unknown = [class_id for class_id in pieces if class_id not in self._anchors]
            if len(unknown) != 1 or len(pieces) == 1:
                continue
            made = [self._anchors.get(class_id) for class_id in pieces if class_id in self._anchors]
            left = self._made_beside(made)
            if len(left) == 1 and not self._anchors.classes_still_there().intersection(left):
                self._matching.anchor(unknown[0], left[0])
                self._matching.propagate()

    def _made_beside(self, made: Sequence[int]) -> list[int]:
        """What was made from the same value as some others, by operators of their kind with weights of their own."""
        makers = [self._before.producers[class_id] for class_id in made if class_id in self._before.producers]
        if len(makers) < len(made) or len({(maker.op_type, maker.attributes) for maker in makers}) > 1:
            return []
        read = {tuple(self._before.varying_inputs(maker)) for maker in makers}
        value = read.pop() if len(read) == 1 else ()
        if len(value) != 1 or not all(map(self._before.reads_weight, makers)):
            return []
        kind = makers[0].op_type, makers[0].attributes
        beside = [each for each in self._before.readers_of(value[0])[:CROWD] if (each.op_type, each.attributes) == kind]
        return [self._before.result(each) for each in beside if self._before.reads_weight(each) and each not in makers]

    def _end_of_work(self, node: Node, origin: Node) -> int:
        """The first value from a node's result on that is read by the same operators as what another makes now."""
        if self._operands.does_part(node, origin) or self._operands.is_ended_by_reader(node, origin):
            return NO_CLASS
        direct = [reader for reader in self._after.readers_of(self._after.result(node)) if not is_passing(reader)]
        wanted = [direct, list(readers_behind_views(direct, self._after))]
        viewed = {self._anchors.get(self._after.result(reader)) for reader in direct if is_view(reader)} - {NO_CLASS}
        constants = {self._anchors.get(class_id) for class_id in self._after.constant_inputs(node)} - {NO_CLASS}
        end, sure = self._before.result(origin), True
        for _ in range(FUSED_STEPS):
            readers = self._before.readers_of(end)[:CROWD]
            absorbed = [reader for reader in readers if not constants.isdisjoint(self._before.inputs(reader))]
            # A view changes nothing: what it makes is what it reads.
            if end in viewed or (not absorbed and any(group and self._fit(group, readers) for group in wanted)):
                return end
            following = absorbed or readers
            if len(following) != 1:
                # A node that does the same kind of work cannot have taken in both. Views are read at several places.
                same_kind = family(node.op_type) == family(origin.op_type) and not is_view(node)
                return end if sure and same_kind else NO_CLASS
            is_below = self._is_left_below(following[0], direct)
            if is_below or (not absorbed and self._is_done_by(direct, following[0])):
                return end if sure or not is_below else NO_CLASS
            rest = set(self._before.data_inputs(following[0])) - {end}
            if not self._may_read(node, rest):  # it cannot have joined values that it does not read
                return end if sure and any(self._may_read(reader, {*rest, end}) for reader in direct) else NO_CLASS
            sure &= bool(absorbed) or self._is_in_weights(following[0], node)
            end = self._before.result(following[0])
        return NO_CLASS

    def _is_in_weights(self, origin: Node, node: Node) -> bool:
        """Whether nobody reads the numbers that a node worked with, and another one reads some that are new.

        before    x ──► Conv(w) ──► Mul(s) ──► Add(t) ──► y          after    x ──► Conv(w, ?) ──► y
        """
        constants, there = self._before.constant_inputs(origin), self._anchors.classes_still_there()
        lost = is_linear(origin) and bool(constants) and there.isdisjoint(constants)
        new = (each for each in self._after.constant_inputs(node) if each not in self._anchors)
        return lost and any(self._after.size(each) > 1 for each in new)

    def _anchor_unknown_input(self, node: Node) -> None:
        """If all that a node reads is known but for one value, that is the one that its works read and nobody makes.

        before    a ──► … ──► MatMul ──► m ──► Add(b) ──► Add(r) ──► LayerNormalization
        after     a ──► … ──► ? ──► SkipLayerNormalization(b, r)                          ? is m
        """
        unknown = [each for each in self._after.data_inputs(node) if each not in self._anchors]
        unknown = [each for each in unknown if not self._after.is_scale(each)]
        works = self._matching.known_works(node) if len(unknown) == 1 else []
        if len(works) == 1:
            self._matching.anchor(unknown[0], self._joined_with_known(node, works[0]))
            self._matching.propagate()
        if len(works) <= 1:
            return  # its inputs are paired already
        keys = {work.key for work in works}
        inside = {each.key: each for work in works for each in self._before.path_to(work, keys, FUSED_STEPS)}
        made = {class_id for each in inside.values() for class_id in self._before.outputs(each)}
        read = {class_id for each in inside.values() for class_id in self._before.content_inputs(each)}
        left = read - made - self._known_inputs(node) - self._anchors.classes_still_there()
        if len(left) == 1 and keys <= inside.keys() and not self._is_made_inside(unknown[0], inside):
            self._matching.anchor(unknown[0], left.pop())
            self._matching.propagate()

    def _is_left_below(self, origin: Node, readers: Sequence[Node]) -> bool:
        """Whether a transposition is still done by some nodes, or behind them: tools move it there.

        before    x ──► MatMul ──► m ──► Transpose ──► Split ──► a, b
        after     x ──► MatMul ──► ? ──► Split ──► … ──► Transpose ──► a          ? is m
        """
        kind = origin.op_type, origin.attributes
        below = list(readers)
        for _ in range(FUSED_STEPS if origin.operator == "Transpose" else 0):
            if any((each.op_type, each.attributes) == kind for each in below):
                return True
            made = (class_id for each in below for class_id in self._after.outputs(each))
            below = [reader for class_id in made for reader in self._after.readers_of(class_id)][:CROWD]
        return False

    def _is_made_inside(self, class_after: int, inside: Collection[str]) -> bool:
        """Whether some work is begun by who makes a value, and ended by who reads it: nobody had that value before.

        before    x ──► Gemm(w, b) ──► m ──► Add(r) ──► LayerNormalization
        after     x ──► MatMul(w) ──► ? ──► SkipLayerNormalization(b, r)
        """
        maker = self._after.producers.get(class_after)
        return maker is not None and any(work.key in inside for work in self._matching.known_works(maker))

    def _joined_with_known(self, node: Node, work: Node) -> int:
        """What was joined with a value that a node reads, on the way to its work, if it reads more than that did.

        before    a, r ──► Add ──► s ──► (Pow, Mean, Sqrt, Div, Mul) ──► y          after    a, ? ──► SkipNorm ──► y
        """
        known = self._known_inputs(node) - {NO_CLASS}
        if len(self._after.data_inputs(node)) <= len(self._before.varying_inputs(work)) or len(known) != 1:
            return NO_CLASS
        joints = [
            reader
            for reader in self._before.readers_of(next(iter(known)))[:CROWD]
            if reader is not work and reader in self._before.path_to(work, {reader.key}, FUSED_STEPS)
        ]
        joined = {class_id for joint in joints for class_id in self._before.varying_inputs(joint)} - known
        left = joined - self._anchors.classes_still_there()
        return left.pop() if len(joints) == len(left) == len(joined) == 1 else NO_CLASS

    def _start_of_next(self, node: Node, made: int) -> int:
        """What a node's work makes, if a reader's result is known and that reader does all that came next.

        before    x ──► MatMul ──► m ──► (Mul, Erf, Add, Mul) ──► g          Gelu does what lies between m and g,
        after     x ──► MatMulNBits ──► ? ──► Gelu ──► g                     and nothing can be cut off from that
        """
        for reader in self._after.readers_of(self._after.result(node))[:CROWD]:
            end = self._anchors.get(self._after.result(reader))
            if end not in (NO_CLASS, made) and self._before.is_one_step(made, end, self._known_inputs(reader)):
                return made
        return NO_CLASS

    def _is_done_by(self, readers: Iterable[Node], origin: Node) -> bool:
        """Whether one of some nodes reads a constant of another that tells it from others: it does that one's work."""
        read = (class_id for reader in readers for class_id in self._after.constant_inputs(reader))
        known = {self._anchors.get(class_id) for class_id in read if self._operands.is_distinctive(class_id)}
        return any(self._anchors.is_like(class_id, known) for class_id in self._before.constant_inputs(origin))

    def _known_inputs(self, node: Node) -> set[int]:
        return {self._anchors.get(class_id) for class_id in self._after.data_inputs(node)}

    def _may_read(self, node: Node, classes_before: set[int]) -> bool:
        producers = self._after.producers
        unknown = [class_id for class_id in self._after.data_inputs(node) if class_id not in self._anchors]
        # A scale that a quantizer found is what a pass-through node makes, and was not there before.
        strange = [class_id for class_id in unknown if class_id not in producers or not is_passing(producers[class_id])]
        return len(classes_before - self._known_inputs(node)) <= len(strange)

    def _fit(self, readers: Iterable[Node], origins: Iterable[Node]) -> bool:
        """Whether each of some readers can be one of others, and what else it reads says so."""
        return all(any(self._fits(reader, origin) for origin in origins) for reader in readers)

    def _fits(self, reader: Node, origin: Node) -> bool:
        agreeing = self._anchors.agreement(reader, origin)
        if agreeing or (agreeing == 0 and len(self._after.data_inputs(reader)) == 1):
            return True
        work = self._matching.works.get(reader.key)
        if work is None:
            return False
        # What reads more than its work did has taken in what put values together before that (SkipLayerNormalization).
        joins = len(self._after.data_inputs(reader)) > len(self._before.data_inputs(work))
        joins &= len(self._before.data_inputs(origin)) > 1
        return self._comes_next(origin, work) or (joins and self._comes_next(work, origin))

    def _comes_next(self, origin: Node, work: Node) -> bool:
        """Whether a node reads what another makes, with nothing beside it on the way."""
        for _ in range(FUSED_STEPS):
            readers = self._before.readers_of(self._before.result(work))
            if origin in readers[:CROWD]:
                return True
            if len(readers) != 1:
                return False
            work = readers[0]
        return False
