"""Regions: what lies between values that both graphs have. Whatever is there after has replaced what was there before.

before    a ──► Pow ──► ReduceMean ──► Sqrt ──► Div ──► b        a and b are anchored:
after     a ──► SimplifiedLayerNormalization ──────────► b       the node comes from all four
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import Node
from modelexport.graph.operators import family, is_moving, is_passing, is_product, is_rearranging, is_view
from modelexport.lineage.fusion import FusedWorks
from modelexport.lineage.matching import Matching
from modelexport.lineage.region_order import RegionOrder
from modelexport.lineage.value_classes import NO_CLASS, ValueClasses

# A region with more ways out than these is no region.
_MOST_EXITS = 64
# And one with more nodes than these neither; without a limit, a long computation that is gone costs every reader.
_LARGEST = 256
# Nodes that one node was ever seen to take in beside its own work.
_STEPS = 4
# How often regions are looked at again, as a pair makes them smaller.
_ROUNDS = 4


def align_regions(matching: Matching) -> None:
    """Pair nodes that are the only ones of their kind in one region, before and after, or that come in the same order.

    before    a ──► MatMul ──► Erf ──► Mul ──► MatMul ──► b        a and b are anchored, no weight is known:
    after     a ──► MatMulNBits ──► Gelu ──► MatMulNBits ──► b     the first product is the first one, and so on
    """
    for _ in range(_ROUNDS):
        pairs = list(ReplacedRegions(matching).pair_by_kind())
        for node, origin in pairs:
            matching.add_work(node, origin)
        if not pairs:
            break
        FusedWorks(matching).anchor_results()


class ReplacedRegions:
    """
    sources  by the key of a node after that has no match: the nodes before that it has replaced
    """

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._before, self._after = matching.before, matching.after
        self._anchors = matching.anchors
        self._still_there = matching.anchors.classes_still_there().union(*matching.anchors.merged.values())
        self._done = matching.matched_origins.union(origin.key for origin in matching.works.values())
        self._exits: dict[str, frozenset[int]] = {}
        self._slices: dict[tuple[frozenset[int], frozenset[str]], tuple[Node, ...]] = {}
        self._groups: dict[frozenset[int], list[Node]] = {}
        self._orders: dict[frozenset[int], RegionOrder] = {}
        for node in reversed(self._after.nodes):
            self._exits[node.key] = self._find_exits(node)
        for node in self._after.nodes:
            if node.key not in matching.matches and self._exits[node.key]:
                self._groups.setdefault(self._exits[node.key], []).append(node)
        self.sources: dict[str, tuple[Node, ...]] = {}
        for node in self._after.nodes:
            if node.key not in matching.matches and (region := self._add_siblings(node, self._find_region(node))):
                self.sources[node.key] = region

    def find_vague(self) -> frozenset[str]:
        """Keys of nodes that share some of their sources with others, and of which not all borders are known.

        They have replaced these sources together. Which of them did what is a guess, if there are several.
        """
        users: Counter[str] = Counter(source.key for region in self.sources.values() for source in region)
        vague = (
            key
            for key, region in self.sources.items()
            if len(region) > 1 and any(users[source.key] > 1 for source in region) and not self._is_enclosed(key)
        )
        return frozenset(vague)

    def _is_enclosed(self, key: str) -> bool:
        node = self._after.graph.by_key[key]
        borders = (*self._after.varying_inputs(node), self._after.result(node))
        return all(class_id in self._anchors or self._after.is_scale(class_id) for class_id in borders)

    def pair_by_kind(self) -> Iterator[tuple[Node, Node]]:
        """Nodes that do the same kind of work as the only one that they can have replaced, or in the same order."""
        for exits, nodes in self._groups.items():
            region = self._region_order(exits).region
            waiting = [node for node in nodes if not self._has_work(node) and not self._is_in_unknown_pieces(node)]
            free = [source for source in region if source.key not in self._done]
            origins = dict(_find_chains(free, region, self._before))
            for kind, chain in _find_chains(waiting, nodes, self._after):
                if len(chain) == len(origins.get(kind, ())):
                    yield from self._keep_possible(zip(chain, origins[kind], strict=True), exits)
            yield from self._keep_possible(self._pair_only_ones(waiting, exits), exits)

    def _is_in_unknown_pieces(self, node: Node) -> bool:
        """Whether what a node makes is cut, and not all of the pieces are known: it has replaced what made these too.

        before    x ──► MatMul(v) ──► a          after    x ──► MatMul(v, w) ──► Split ──► ?, b
                  x ──► MatMul(w) ──► b
        """
        cutting = (each for each in self._after.readers_of(self._after.result(node)) if each.operator == "Split")
        pieces = (class_id for reader in cutting for class_id in self._after.outputs(reader))
        return any(class_id not in self._anchors for class_id in pieces)

    def _keep_possible(self, pairs: Iterable[tuple[Node, Node]], exits: frozenset[int]) -> Iterator[tuple[Node, Node]]:
        order = self._region_order(exits)
        for node, origin in pairs:
            if origin.key in order.possible_keys(node) and not (is_rearranging(node) and self._is_moved(node, origin)):
                yield node, origin

    def _is_moved(self, node: Node, origin: Node) -> bool:
        """Whether a node rearranges something else than another one did: what came behind that, say.

        before    x ──► MatMul ──► m ──► Transpose ──► Split ──► a, b
        after     x ──► MatMul ──► m ──► Split ──► ?, ? ──► Transpose ──► a          ? is not m
        """
        made = self._anchors.get(self._after.result(node))
        read, read_before = self._after.content_inputs(node), self._before.content_inputs(origin)
        is_there = not self._still_there.isdisjoint(read_before)
        known = {self._anchors.get(class_id) for class_id in read}
        return made not in (NO_CLASS, self._before.result(origin)) or (is_there and known.isdisjoint(read_before))

    def _pair_only_ones(self, nodes: Sequence[Node], exits: frozenset[int]) -> Iterator[tuple[Node, Node]]:
        """Nodes with the only one before of their kind that they can have replaced, if nobody else can have."""
        possible: dict[str, list[Node]] = {}
        rivals: dict[str, list[Node]] = {}
        for node in nodes:
            keys = self._region_order(exits).possible_keys(node)
            sources = [self._before.graph.by_key[key] for key in keys if key not in self._done]
            kind = _kind_of(node, self._after)
            alike = [source for source in sources if _kind_of(source, self._before) == kind]
            alike = [each for each in alike if not is_rearranging(node) or each.attributes == node.attributes]
            possible[node.key] = [each for each in alike if not is_view(node) or self._has_same_sizes(each, node)]
            for source in possible[node.key]:
                rivals.setdefault(source.key, []).append(node)
        for node in nodes:
            if len(possible[node.key]) == 1 and len(rivals[possible[node.key][0].key]) == 1:
                yield node, possible[node.key][0]

    def _has_same_sizes(self, source: Node, node: Node) -> bool:
        """Whether two views read the same beside their data. One with other sizes may be put anywhere."""
        sizes, sizes_before = self._after.inputs(node)[1:], self._before.inputs(source)[1:]
        return bool(sizes) and tuple(map(self._anchors.get, sizes)) == sizes_before

    def _region_order(self, exits: frozenset[int]) -> RegionOrder:
        if exits not in self._orders:
            self._orders[exits] = RegionOrder(self._slice(exits, frozenset()), self._groups[exits], self._matching)
        return self._orders[exits]

    def _has_work(self, node: Node) -> bool:
        """Whether it does the work of a node of its own kind."""
        work = self._matching.works.get(node.key)
        return work is not None and family(work.op_type) == family(node.op_type)

    def _find_exits(self, node: Node) -> frozenset[int]:
        """The nearest values that both graphs have, going on from what a node makes."""
        made = [class_id for class_id in self._after.outputs(node) if class_id != NO_CLASS]
        known = frozenset(self._anchors.get(class_id) for class_id in made if class_id in self._anchors)
        if known:
            return known
        exits: set[int] = set()
        for class_id in made:
            for reader in self._after.readers_of(class_id):
                origin = self._matching.matches.get(reader.key)
                if origin is None:
                    exits |= self._exits.get(reader.key, frozenset())
                else:
                    exits |= {read for read in self._before.data_inputs(origin) if read not in self._still_there}
                if len(exits) > _MOST_EXITS:
                    return frozenset()
        return frozenset(exits)

    def _find_region(self, node: Node) -> tuple[Node, ...]:
        if self._after.is_scale(self._after.result(node)):
            return ()  # it serves what is quantized
        rescaled = self._find_rescaled(node)
        if rescaled is not None and rescaled.key in self.sources:
            return self.sources[rescaled.key]
        work = self._matching.works.get(node.key)
        exits = self._exits[node.key]
        slice_ = self._slice(exits, self._claimed_above(node))
        if exits and len(self._groups[exits]) > 1:
            possible = self._region_order(exits).possible_keys(node)
            slice_ = tuple(source for source in slice_ if source.key in possible) or slice_
        # What another node still does is that one's work.
        gone = tuple(source for source in slice_ if source.key not in self._matching.matched_origins)
        # What works on data replaces what did; arithmetic on shapes and constants replaces the like, or serves others.
        computes = node.key in self._after.graph.computed
        alike = tuple(source for source in gone if (source.key in self._before.graph.computed) == computes)
        region = alike or (gone if computes or work is not None else ())
        region = region if work is None else self._divide(node, work, region)
        region = self._without_idle(node, region)
        return region if is_rearranging(node) else self._without_border_views(node, region)

    def _without_idle(self, node: Node, region: tuple[Node, ...]) -> tuple[Node, ...]:
        """A region without what changed nothing, and what is always the same: a constant has replaced that."""
        operands = self._matching.operands
        region = tuple(source for source in region if not operands.is_idle(node, source)) or region
        working = tuple(source for source in region if self._before.result(source) not in self._before.foldable)
        return region if self._after.result(node) in self._after.foldable else working or region

    def _without_border_views(self, node: Node, region: tuple[Node, ...]) -> tuple[Node, ...]:
        """A region without views that were dropped. If it is certain what a node makes, it makes that in its shape,
        unless it is what a view made as well."""
        result = self._after.result(node)
        equal = (self._before.producers.get(class_id) for class_id in self._anchors.merged.get(result, ()))
        is_viewed = any(producer is not None and is_view(producer) for producer in equal)
        if is_viewed or not self._matching.is_certain(result):
            return self._before.drop_last_views(region, is_viewed=is_viewed)
        return region

    def _divide(self, node: Node, work: Node, region: tuple[Node, ...]) -> tuple[Node, ...]:
        """What a node has replaced that is known to do some work, of all that it may have."""
        if self._after.result(node) in self._anchors:
            # A view was found by what it reads, and there may be others of that: what it makes tells which one it is.
            if region and is_view(work) and work not in self._slice(self._exits[node.key], frozenset()):
                return region
            if (node.op_type, node.attributes) == (work.op_type, work.attributes):
                region = tuple(source for source in region if not (is_rearranging(source) or is_moving(source)))
            return region if work in region else (*region, work)
        if self._matching.operands.does_part(node, work):
            return (work,)
        readers = [reader for class_id in self._after.outputs(node) for reader in self._after.readers_of(class_id)]
        if any(map(self._is_idle_so_far, readers)):
            # Every node does some work: what came next is that reader's.
            known = {source.key for source in self._matching.known_works(node)}
            return (
                *self._above(node, work),
                *(source for source in region if source.key in known and source != work),
                work,
            )
        # What depends on the work of a reader as well is done there, or later.
        works_below = [self._matching.works[reader.key] for reader in readers if reader.key in self._matching.works]
        later = {source.key for work_below in works_below for source in self._below(work_below, region)}
        below = [source for source in self._below(work, region) if source is work or source.key not in later]
        return (*self._above(node, work), *(below if len(below) <= _STEPS else (work,)))

    def _is_idle_so_far(self, node: Node) -> bool:
        """Whether a node works on data, and no work of it is known."""
        if node.key in self._matching.matches or is_rearranging(node) or is_passing(node):
            return False
        rescales = self._find_rescaled(node) is not None or self._after.is_scale(self._after.result(node))
        return not rescales and not self._matching.known_works(node)

    def _find_rescaled(self, node: Node) -> Node | None:
        """The node whose integers another one turns into floats, by a scale that a quantizer has found."""
        read = self._after.data_inputs(node) if node.operator == "Mul" else []
        values = [class_id for class_id in read if not self._after.is_scale(class_id)]
        return self._after.producers.get(values[0]) if len(values) == 1 < len(read) else None

    def _above(self, node: Node, work: Node) -> tuple[Node, ...]:
        """What lay between a node's work and what it reads now, if that is known or it reads more than before."""
        read, work_read = self._after.data_inputs(node), self._before.data_inputs(work)
        if len(read) <= len(work_read) and not all(class_id in self._anchors for class_id in read):
            return ()
        gone = frozenset(class_id for class_id in work_read if class_id not in self._still_there)
        above = tuple(source for source in self._slice(gone, frozenset()) if source.key not in self._done)
        return above if len(above) <= _STEPS else ()

    def _add_siblings(self, node: Node, region: tuple[Node, ...]) -> tuple[Node, ...]:
        """A node that makes several values has also replaced what made others of them from the same value (Split)."""
        makes_several = sum(class_id != NO_CLASS for class_id in self._after.outputs(node)) > 1
        if not (makes_several or self._is_in_unknown_pieces(node)):
            return region
        read = self._known_above(node)
        kinds = {source.op_type for source in region if not read.isdisjoint(self._before.data_inputs(source))}
        beside = (reader for class_id in read for reader in self._before.readers_of(class_id)[:_MOST_EXITS])
        gone = (reader for reader in beside if reader.key not in self._done and reader not in region)
        return (*region, *(reader for reader in gone if reader.op_type in kinds))

    def _known_above(self, node: Node) -> set[int]:
        """What a node reads; of a value that nobody had before (several in one), what that is made from."""
        read = set(self._after.data_inputs(node))
        makers = [
            self._after.producers[each] for each in read - self._anchors.known.keys() if each in self._after.producers
        ]
        read.update(class_id for maker in makers for class_id in self._after.content_inputs(maker))
        return {self._anchors.get(class_id) for class_id in read} - {NO_CLASS}

    def _below(self, work: Node, region: tuple[Node, ...]) -> list[Node]:
        below, made = [work], set(self._before.outputs(work))
        for source in sorted(region, key=lambda node: node.position):
            if source is work or is_rearranging(source):
                continue
            if not made.isdisjoint(self._before.inputs(source)):
                below.append(source)
                made.update(self._before.outputs(source))
        return below

    def _claimed_above(self, node: Node) -> frozenset[str]:
        """What the nodes right above do is not this one's work: all of it if they end where both graphs have a value,
        else what they are known to do, if this one is known to do something else."""
        claimed: set[str] = set()
        work = self._matching.works.get(node.key)
        for class_id in self._after.data_inputs(node):
            producer = self._after.producers.get(class_id)
            if producer is None or class_id in self._anchors or producer.key not in self.sources:
                continue
            work_above = self._matching.works.get(producer.key)
            if work is not None and work_above is not None and work_above is not work:
                claimed.add(work_above.key)
            if any(made in self._anchors for made in self._after.outputs(producer)):
                claimed.update(source.key for source in self.sources[producer.key])
        return frozenset(claimed)

    def _slice(self, exits: frozenset[int], claimed: frozenset[str]) -> tuple[Node, ...]:
        if (exits, claimed) not in self._slices:

            def producers(class_ids: Iterable[int]) -> Iterator[Node]:
                nodes = (self._before.producers.get(class_id) for class_id in class_ids)
                return (node for node in nodes if node is not None and node.key not in claimed)

            def step(node: Node) -> Iterator[Node]:
                return producers(read for read in self._before.data_inputs(node) if read not in self._still_there)

            self._slices[exits, claimed] = tuple(backward_slice(producers(exits), step, limit=_LARGEST))
        return self._slices[exits, claimed]


# The kind of operator, and whether it works on data; of a product, also how many values it reads that vary: one with a
# weight is not one of two.
_Kind = tuple[str, bool, int]


def _kind_of(node: Node, classes: ValueClasses) -> _Kind:
    factors = _find_factors(node, classes) if is_product(node) else ()
    varying = [class_id for class_id in classes.varying_inputs(node) if not classes.is_scale(class_id)]
    return family(node.op_type), node.key in classes.graph.computed, sum(each in varying for each in factors)


def _find_factors(node: Node, classes: ValueClasses) -> Sequence[int]:
    """What a product multiplies: its first two inputs, the others are added (Gemm's C, the sum in ONNX Runtime's own
    Conv). QLinear operators have scales between the two, and add constants alone."""
    read = classes.inputs(node)
    return read if node.op_type.startswith("QLinear") else read[:2]


def _find_chains(
    nodes: Sequence[Node], region: Sequence[Node], classes: ValueClasses
) -> Iterator[tuple[_Kind, list[Node]]]:
    """By kind: those of some nodes of a region, if each is computed from the one before it."""
    kinds: dict[_Kind, list[Node]] = {}
    for node in nodes:
        if not is_rearranging(node):
            kinds.setdefault(_kind_of(node, classes), []).append(node)
    for kind, alike in kinds.items():
        if len(alike) == 1 or _are_in_line(alike, region, classes):
            yield kind, alike


def _are_in_line(nodes: Sequence[Node], region: Sequence[Node], classes: ValueClasses) -> bool:
    depths: dict[int, int] = {}
    keys = {node.key for node in nodes}
    for node in region:
        depth = max((depths.get(class_id, 0) for class_id in classes.inputs(node)), default=0) + (node.key in keys)
        depths.update(dict.fromkeys(classes.outputs(node), depth))
    return [depths[classes.result(node)] for node in nodes] == list(range(1, len(nodes) + 1))
