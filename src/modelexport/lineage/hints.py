"""Hints: what names, contents, and inputs and outputs say about which value is which, before anything is computed.

    hint       says                                                   believed
    constants  the same content; the same name and reader; a sketch    always: content is what a constant is
    io hints   inputs and outputs of the graph, by name, then order    always
    names      a value of the same name                                where a neighbour's name says the same

Content may have been transposed, cast, quantized or put into blocked layout; a sketch (some order statistics of the
numbers) knows them again. If a tool has dealt names anew, no name is believed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice

from modelexport.graph.index import MAIN, Node
from modelexport.graph.operators import family, is_passing, is_product, is_view
from modelexport.lineage.anchors import Anchors
from modelexport.lineage.value_classes import NO_CLASS, ValueClasses
from modelexport.record.outline import Sketch, Sketches

# Names that are looked at to find out what a tool put before all of them.
_TRIED = 200
# Copies of one file that may have been merged, each with a prefix of its own.
_MOST_COPIES = 4
# Names that must agree for a prefix, or contradict the weights for a new deal, to be no accident.
_FEWEST = 3
# Of so many names, at least one in so many must be on an operator like the one before.
_MANY = 12
_FEW = 6
# Nodes above a value among which one is looked for that its producer reads now.
_NEAR = 6
# No class, and not what stands for an input that is left out.
_UNKNOWN = -2


class NameHints:
    """A name is a hint; it counts as evidence where a neighbour's name says the same.

    before    x ──► MatMul ──► /fc/out ──► Relu ──► /act/out
    after     x ──► Gemm ────► /fc/out ──► Relu ──► /act/out        the two names confirm each other

    hints  by class id after: the class id before that a name says it is, confirmed or not
    """

    def __init__(self, before: ValueClasses, after: ValueClasses, differ: Callable[[Node, Node], bool]) -> None:
        """differ  whether a node after reads other weights than one before, and is not that one, whatever its name"""
        self._before, self._after = before, after
        self._prefixes = self._common_prefixes()
        self.hints = self._drop_contradicted(self._read_names(), differ)

    def class_named(self, value: str) -> int:
        """The class before of a value with this name, or NO_CLASS."""
        names = (value, *(value.removeprefix(prefix) for prefix in self._prefixes))
        return next((self._before.class_of[name] for name in names if name in self._before.class_of), NO_CLASS)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Names with a neighbour whose name fits: what one makes the other reads, before and after."""
        for class_after, class_before in self.hints.items():
            if self._fits_above(class_after, class_before) or self._fits_below(class_after, class_before):
                yield class_after, class_before

    def _read_names(self) -> dict[int, int]:
        """What names say of each class; nothing where they contradict each other."""
        hints: dict[int, int] = {}
        torn: set[int] = set()
        for node in self._after.graph.nodes:
            for value in node.outputs:
                class_before = self.class_named(value) if value else NO_CLASS
                if class_before == NO_CLASS or class_before in self._before.constants:
                    continue
                class_after = self._after.class_of[value]
                if class_after in self._after.constants or hints.setdefault(class_after, class_before) == class_before:
                    continue
                if hints[class_after] not in self._before.walk_up(class_before):  # else what lay between is gone
                    torn.add(class_after)
        return {class_after: hint for class_after, hint in hints.items() if class_after not in torn}

    def _drop_contradicted(self, hints: Mapping[int, int], differ: Callable[[Node, Node], bool]) -> dict[int, int]:
        """Hints that weights do not contradict; none at all if names were dealt anew."""
        made, made_before = self._after.producers, self._before.producers
        both = [class_after for class_after, hint in hints.items() if class_after in made and hint in made_before]
        pairs = [(class_after, made[class_after], made_before[hints[class_after]]) for class_after in both]
        alike = sum(family(node.op_type) == family(origin.op_type) for _, node, origin in pairs)
        weighed = [pair for pair in pairs if self._after.reads_weight(pair[1]) and self._before.reads_weight(pair[2])]
        wrong = {class_after for class_after, node, origin in weighed if differ(node, origin)}
        # Most names are on other weights, or on other operators: a tool has numbered values anew (`Add_1`, `Add_2`).
        if len(wrong) >= _FEWEST and len(wrong) > len(weighed) / 2:
            return {}
        if len(pairs) >= _MANY and alike < len(pairs) / _FEW:
            return {}
        wrong.update(class_after for class_after, node, origin in pairs if self._has_new_input(node, origin))
        return {class_after: hint for class_after, hint in hints.items() if class_after not in wrong}

    def _has_new_input(self, node: Node, origin: Node) -> bool:
        """Whether a product has kept its name, but has taken in a sum behind it: it reads one constant more.

        before    x ──► Conv(w) ──► c ──► BatchNormalization ──► y          after    x ──► Conv(v, b) ──► c       c is y
        """
        if node.op_type != origin.op_type or not is_product(node):
            return False
        constants, origin_constants = self._after.constant_inputs(node), self._before.constant_inputs(origin)
        return len(constants) > len(origin_constants) and len(node.inputs) > len(origin.inputs)

    def _fits_above(self, class_after: int, class_before: int) -> bool:
        producer, origin = self._after.producers.get(class_after), self._before.producers.get(class_before)
        if producer is None or origin is None:
            return False
        hints = {read: self.hints[read] for read in self._after.inputs(producer) if read in self.hints}
        hinted = set(hints.values())
        if family(producer.op_type) == family(origin.op_type):
            read_before = not hinted.isdisjoint(self._before.inputs(origin))
            return read_before or any(self._are_adjacent(read, class_after) for read in hints)
        # A node that does by itself what several did: all that it reads is somewhere above.
        return bool(hinted) and hinted <= self._near_above(origin)

    def _near_above(self, origin: Node) -> set[int]:
        near: set[int] = set()
        waiting = [origin]
        for node in islice(waiting, _NEAR):  # breadth first: the list grows while it is read
            read = self._before.inputs(node)
            near.update(read)
            waiting += filter(None, map(self._before.producers.get, read))
        return near

    def _fits_below(self, class_after: int, class_before: int) -> bool:
        for reader in self._after.readers_of(class_after):
            for made in self._after.outputs(reader):
                origin = self._before.producers.get(self.hints.get(made, _UNKNOWN))
                if origin is None:
                    continue
                if class_before in self._before.inputs(origin) or self._are_adjacent(class_after, made):
                    return True
        return False

    def _are_adjacent(self, upper: int, lower: int) -> bool:
        """Whether two nodes are the same under their names, and what lay between them is gone."""
        if not (self._is_same_operation(upper) and self._is_same_operation(lower)):
            return False
        read = self._before.inputs(self._before.producers[self.hints[lower]])
        return any(self.hints[upper] in self._before.walk_up(class_id) for class_id in read)

    def _is_same_operation(self, class_after: int) -> bool:
        producer = self._after.producers.get(class_after)
        origin = self._before.producers.get(self.hints[class_after])
        if producer is None or origin is None:
            return False
        return (producer.op_type, producer.attributes) == (origin.op_type, origin.attributes)

    def _common_prefixes(self) -> list[str]:
        """What a tool put before every name, if it did, as `onnx.compose.add_prefix` does; of several files, before
        those of each."""
        graph = self._after.graph
        made = [value for node in graph.nodes[:: 1 + len(graph.nodes) // _TRIED] for value in node.outputs if value]
        values = [*graph.inputs, *graph.outputs, *made]
        strange = [value for value in values if value not in self._before.class_of]
        if len(strange) < len(values) / 2:
            return []
        prefixes = (
            [value[:cut] for cut in range(1, len(value)) if value[cut:] in self._before.class_of] for value in strange
        )
        prefixed = [candidates for candidates in prefixes if candidates]
        votes = Counter(prefix for candidates in prefixed for prefix in candidates)
        enough = max(_FEWEST, len(prefixed) / _MOST_COPIES)
        return [prefix for prefix, count in votes.most_common(_MOST_COPIES) if count >= enough]


# Two weights that are this much alike are not told apart by it.
_CLEARLY = 0.01
# Readers of a weight that are asked whether they have kept their names.
_ASKED = 8


class ConstantHints:
    """Weights are looked into only where neither content that lies in the graph nor names decide.

    alike  by id of a constant before: one constant that holds the same but for type and shape
    """

    def __init__(self, before: ValueClasses, after: ValueClasses, sketches: tuple[Sketches, Sketches]) -> None:
        self._before, self._after = before, after
        self._sketch_before, self._sketch_after = sketches
        self.alike: dict[int, int] = {}
        self._by_content = {content: class_id for class_id, content in before.constants.items() if content is not None}

    def pairs(self) -> Iterator[tuple[int, int]]:
        unknown: list[int] = []
        for class_after, content in self._after.constants.items():
            class_before = None if content is None else self._by_content.get(content)
            class_before = self._find_by_name(class_after) if class_before is None else class_before
            if class_before is None:
                unknown.append(class_after)
            else:
                yield class_after, class_before
        # Sketches read all weights of both files: most pairs of files never come here.
        if unknown:
            yield from self._pair_by_sketch(unknown)

    def _find_by_name(self, class_after: int) -> int | None:
        """The constant of the same name and shape, if a node that reads it has kept its name as well."""
        readers = self._after.readers_of(class_after)[:_ASKED]
        named = self._constants_named(class_after)
        return next((each for each in named if any(self._has_kept_name(reader, each) for reader in readers)), None)

    def _constants_named(self, class_after: int) -> list[int]:
        name = self._after.names[class_after]
        tensor, origin = self._after.graph.initializers.get(name), self._before.graph.initializers.get(name)
        if tensor is None or origin is None or (tensor.shape, tensor.dtype) != (origin.shape, origin.dtype):
            return []
        return [self._before.class_of[name]]

    def _has_kept_name(self, reader: Node, class_before: int) -> bool:
        origin = self._before.graph.producers.get(next(filter(None, reader.outputs), ""))
        if origin is None or family(origin.op_type) != family(reader.op_type):
            return False
        return class_before in self._before.inputs(origin)

    def _pair_by_sketch(self, unknown: list[int]) -> Iterator[tuple[int, int]]:
        constants = self._before.constants
        sketched = ((class_id, self._sketch_before(self._before.names[class_id])) for class_id in constants)
        index = SketchIndex([(class_id, sketch) for class_id, sketch in sketched if sketch is not None])
        self.alike = index.alike
        for class_after in unknown:
            sketch = self._sketch_after(self._after.names[class_after])
            candidates = self._constants_named(class_after) if sketch is None else index.find_like(sketch)
            if candidates:
                shape = self._shape(self._after, class_after)
                yield class_after, min(candidates, key=lambda class_id: self._shape(self._before, class_id) != shape)

    def _shape(self, classes: ValueClasses, class_id: int) -> tuple[int, ...] | None:
        tensor = classes.graph.initializers.get(classes.names[class_id])
        return None if tensor is None else tensor.shape


class SketchIndex:
    """The constants of the graph before, to be found by some of their numbers.

    alike  by id of a constant: the first one that holds the same
    """

    def __init__(self, sketches: list[tuple[int, Sketch]]) -> None:
        self.alike: dict[int, int] = {}
        self._equal: dict[Sketch, list[int]] = {}
        self._buckets: dict[Hashable, list[tuple[int, Sketch]]] = {}
        self._one_sided: dict[Hashable, list[tuple[int, Sketch]]] = {}
        for class_id, sketch in sketches:
            same = self._equal.setdefault(sketch, [])
            same.append(class_id)
            if sketch.is_whole or sketch.is_distinctive:
                self.alike[class_id] = same[0]
            self._buckets.setdefault(_bucket_of(sketch), []).append((class_id, sketch))
            for bucket in _one_sided_buckets(sketch):
                self._one_sided.setdefault(bucket, []).append((class_id, sketch))

    def find_like(self, sketch: Sketch) -> list[int]:
        """Those that hold the same; or those equal ones that this is a coarser copy of (quantized)."""
        same = self._equal.get(sketch) or self._find_nearest(sketch)
        if same and (sketch.is_whole or sketch.is_distinctive or len(same) == 1):
            return same
        if same or not sketch.is_distinctive:
            return []
        # A few bits may move one of the outermost numbers, or make another one as large.
        others = {each: other for key in _one_sided_buckets(sketch) for each, other in self._one_sided.get(key, ())}
        rated = [(sketch.likeness(other), class_id) for class_id, other in others.items()]
        best = max((rate for rate, _ in rated), default=0.0)
        near = [class_id for rate, class_id in rated if rate and rate > best - _CLEARLY]
        return near if len({self.alike.get(class_id, class_id) for class_id in near}) == 1 else []

    def _find_nearest(self, sketch: Sketch) -> list[int]:
        rated = [(sketch.distance(other), class_id) for class_id, other in self._buckets.get(_bucket_of(sketch), ())]
        best = min((rate for rate, _ in rated), default=math.inf)
        return [] if best == math.inf else [class_id for rate, class_id in rated if rate == best]


def _bucket_of(sketch: Sketch) -> Hashable:
    """Where to look for sketches like this one: rounding hardly ever moves the outermost numbers to other places."""
    if sketch.is_distinctive:
        return sketch.sides, sketch.steps.index(min(sketch.steps)), sketch.steps.index(max(sketch.steps))
    return sketch.sides, f"{sketch.middle:.1e}"


def _one_sided_buckets(sketch: Sketch) -> Iterator[Hashable]:
    """The same by the place of the smallest number or of the largest, where several may be that."""
    for outermost in dict.fromkeys((min(sketch.steps), max(sketch.steps))) if sketch.is_distinctive else ():
        for place, step in enumerate(sketch.steps):
            if step == outermost:
                yield sketch.sides, outermost > 0, place


def pair_io(anchors: Anchors, names: NameHints, *, same_outputs: bool = False) -> Iterator[tuple[int, int]]:
    """Inputs and outputs of both graphs, and of functions that both have: by name, and by order where names are new.

    same_outputs  both return the same in the same order: their names, and the operators that make them, say nothing
    """
    before, after = anchors.before, anchors.after
    yield from _pair_values(anchors, names, before.graph.inputs, after.graph.inputs)
    returned_before, returned = before.graph.outputs, after.graph.outputs
    if same_outputs and len(returned) == len(returned_before):
        for value, origin in zip(returned, returned_before, strict=True):
            yield after.class_of.get(value, NO_CLASS), before.class_of.get(origin, NO_CLASS)
    else:
        yield from _pair_values(anchors, names, returned_before, returned)
    for graph_id in after.graph.body_outputs:
        if graph_id in before.graph.body_outputs and graph_id != MAIN and graph_id not in after.graph.body_owner:
            yield from after.pair_interfaces(graph_id, before, graph_id)  # functions of one name


def _pair_values(
    anchors: Anchors, names: NameHints, origins: Sequence[str], values: Sequence[str]
) -> Iterator[tuple[int, int]]:
    before, after = anchors.before, anchors.after
    named = {value: names.class_named(value) for value in values}
    class_after = {value: after.class_of.get(value, NO_CLASS) for value in values}
    class_before = {origin: before.class_of.get(origin, NO_CLASS) for origin in origins}
    yield from ((class_after[value], named[value]) for value in named)
    renamed = [value for value in named if named[value] == NO_CLASS]
    unnamed = [origin for origin in origins if class_before[origin] not in named.values()]
    if len(values) == len(origins):
        # A name that stood for an inner value before may stand for what is returned now, if little lay between.
        for value, origin in zip(values, origins, strict=True):
            near = before.walk_up(class_before[origin])
            may_be = origin in unnamed and value not in renamed and named[value] in near
            if may_be and not _is_cut_off(value, named[value], class_before[origin], anchors):
                yield class_after[value], class_before[origin]
    if len(renamed) == len(unnamed):
        for value, origin in zip(renamed, unnamed, strict=True):
            if _may_be_same(after.graph.producers.get(value), before.graph.producers.get(origin)):
                yield class_after[value], class_before[origin]


def _is_cut_off(value: str, inner: int, returned: int, anchors: Anchors) -> bool:
    """Whether a value after is made as the one of its name was, with the same constants: what came next is not in it.

    before    x ──► MatMul(w) ──► m ──► Relu ──► r ──► MatMul(v) ──► y          after    x ──► MatMul(w) ──► m
    """
    producer = anchors.after.graph.producers.get(value)
    origin = anchors.before.producers.get(inner)
    if producer is None or origin is None or not anchors.is_same_work(producer, origin):
        return False
    between = anchors.before.nodes_between(inner, returned)
    return not all(is_view(node) or anchors.before.is_neutral(node) for node in between)


def _may_be_same(node: Node | None, origin: Node | None) -> bool:
    """Whether two results can be one: an operator may be fused with others, but does not become another plain one."""
    if node is None or origin is None or node.op_type == origin.op_type:
        return True
    plain = all(each.op_type == family(each.op_type) and not is_passing(each) for each in (node, origin))
    return not plain
