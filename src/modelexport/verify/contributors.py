"""Contributors: which module calls can have had a part in the value of a node. Backward slices of the eager run.

A node does the work between the values that it reads and the one that it makes. So the operators of the run that lie
on the ways from this value back to values that the graph has before the node are all that it can stand for:

    run:    x ─► conv2d (conv) ─► c ─► batch_norm (bn) ─► b ─► relu (act) ─► r
    graph:  x ─► Conv ─► b ─► Relu ─► r          Conv: bn, conv (c is in no node before it)      Relu: act

What is no landmark (graph of the run has no such value, or it says nothing) lies inside of the work of the first
landmarks below it, and whoever had a part in it had one in them.

Constants. What a module computed from weights alone is folded by exporters: it counts if it is on the way, and so does
a module that hands on what it is given, without an operator.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import MAIN, SHAPE_READERS, Graph, Node
from modelexport.graph.sample import Sample, alike
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.verify.evidence import Frontier, NodeEvidence, SeenValues
from modelexport.verify.witness import OperatorSources

Calls = frozenset[ModuleCall]
_NOBODY: Calls = frozenset()


class Contributors:
    """
    held    by node key: the numbers of the run's values that hold the same as what a node makes
    shapes  by node key: of what it makes
    busy    the calls in which an operator was issued
    """

    def __init__(
        self,
        graph: Graph,
        hierarchy: Hierarchy,
        sources: OperatorSources,
        held: Mapping[str, Collection[int]],
        shapes: Mapping[str, Collection[tuple[int, ...]]],
    ) -> None:
        self._graph, self._hierarchy, self._sources = graph, hierarchy, sources
        self._held, self._shapes = held, shapes
        self._ancestors = _ancestor_masks(graph)
        self._holders = self._find_holders()
        self._absorbed = self._find_absorbed()
        self.busy = self._find_busy_calls()
        self._returned = self._find_silent_calls()

    def behind(self, node: Node, numbers: Iterable[int]) -> Calls:
        """The calls on the ways from values that a node makes, by number, back to what the graph has before it."""
        reached = self._slice_back(node, numbers)
        issuers = {self._sources.issued[number].op.call for number in reached}
        return frozenset(issuers.union(*(self._returned.get(number, ()) for number in reached)))

    def absorbed_by(self, node: Node, numbers: Iterable[int]) -> Calls:
        """Those of them whose operators changed nothing, and have no nodes of their own."""
        reached = self._slice_back(node, numbers)
        return frozenset(self._sources.issued[number].op.call for number in reached if number in self._absorbed)

    def _slice_back(self, node: Node, numbers: Iterable[int]) -> Collection[int]:
        above, read_here = self._ancestors[node.key], self._numbers_read(node)

        def is_border(number: int) -> bool:
            # A view that the graph has elsewhere, and the node does not read in its shape, may be done or undone in the
            # node: optimizers move transposes from one side of an operator to the other. With an axis of size one the
            # numbers before a transpose are those behind it.
            is_held = bool(self._holders.get(number, 0) & above) and number not in self._absorbed
            return is_held and (number in read_here or not self._sources.issued[number].op.view)

        def read_by(number: int) -> list[int]:
            reads = self._sources.issued[number].op.reads
            return [read for read in reads if read in self._sources.issued and not is_border(read)]

        return backward_slice(numbers, read_by)

    def _numbers_read(self, node: Node) -> Collection[int]:
        """The values of the run that a node reads in their shape, over nodes before it that hold none."""

        def unknown_before(reader: Node) -> list[Node]:
            return [maker for maker in self._graph.predecessors(reader) if not self._held[maker.key]]

        readers = [node, *backward_slice(unknown_before(node), unknown_before)]
        makers = {maker.key for reader in readers for maker in self._graph.predecessors(reader)}
        issued, shape = self._sources.issued, self._sources.shape
        held = ((number, key) for key in makers for number in self._held[key] if number in issued)
        return {number for number, key in held if shape(issued[number]) in self._shapes[key]}

    def handlers(self, numbers: Collection[int]) -> Calls:
        """The calls that were given one of these values, or returned it."""
        calls = self._sources.calls
        return frozenset(call.call for call in calls if not {*call.inputs, *call.outputs}.isdisjoint(numbers))

    def left_over(self, node: Node, constants: Mapping[str, Sample], evidence: Mapping[str, NodeEvidence]) -> Calls:
        """The calls of operators that were broken in two: the first part made their value, the rest added nothing.

        run:    x ─► addmm (dense; its bias is zero) ─► h ─► gelu (act) ─► g
        graph:  x ─► MatMul ─► h ─► BiasGelu (dense, act; it reads the bias) ─► g
        """
        rest = [constants[name] for name in node.inputs if name in constants]
        calls = set()
        for maker in self._graph.predecessors(node) if rest else ():
            done = [constants[name] for name in maker.inputs if name in constants]
            left = [weight for weight in rest if not any(alike(weight, other) for other in done)]
            calls |= {
                value.op.call
                for value in evidence[maker.key].issued
                if any(self._sources.reads_all(value, [weight]) for weight in left)
            }
        return frozenset(calls)

    def around(self, behind: Mapping[str, Calls], landmarks: Collection[str]) -> Mapping[str, Calls]:
        """By node key: the calls behind the first landmarks on every way down, and behind what is passed on the way.

        behind  of all nodes that say something; a view among them does not end a way

        What asks for the size of a value does nothing with it: no way leads there.
        """
        nobody: Calls = frozenset()
        reached: dict[str, Calls] = {}
        for node in reversed(self._graph.running_order):
            below = [near.key for near in self._graph.successors(node) if near.operator not in SHAPE_READERS]
            farther = (reached.get(key, nobody) for key in below if key not in landmarks)
            reached[node.key] = nobody.union(*(behind.get(key, nobody) for key in below), *farther)
        return reached

    def _find_holders(self) -> Mapping[int, int]:
        """By the number of a value: a mask of the nodes that hold the same, bits by their positions."""
        holders: defaultdict[int, int] = defaultdict(int)
        for key, numbers in self._held.items():
            for number in numbers:
                holders[number] |= 1 << self._graph.by_key[key].position
        return holders

    def _find_absorbed(self) -> Collection[int]:
        """What operators that changed nothing made, by number, where the graph has no nodes for all of them.

        run:    relu ─► r ─► pad by 0 (block) ─► p ─► conv (block.conv) ─► c      p is the same as r
        graph:  Relu ─► r ─► Conv (block, block.conv) ─► c                        an optimizer put Pad into Conv
        """
        computed = {number: value for number, value in self._sources.issued.items() if not value.op.view}
        operators = Counter(self._holders.get(number, 0) for number in computed)
        return {
            number
            for number, value in computed.items()
            if not value.new and 0 < self._holders.get(number, 0).bit_count() < operators[self._holders[number]]
        }

    def _find_busy_calls(self) -> Calls:
        """The calls in which an operator was issued."""
        issuers = {op.call for op in self._sources.ops}
        return frozenset(caller for call in issuers for caller in self._hierarchy.stack(call))

    def _find_silent_calls(self) -> Mapping[int, Iterable[ModuleCall]]:
        """By the number of a value: the calls that returned it and did nothing, as a dropout outside of training."""
        returned: defaultdict[int, list[ModuleCall]] = defaultdict(list)
        for ended in self._sources.calls:
            if ended.call not in self.busy:
                for number in ended.outputs:
                    returned[number].append(ended.call)
        return returned


def _ancestor_masks(graph: Graph) -> Mapping[str, int]:
    """By node key: a mask of all nodes before it, bits by their positions.

    What is in a body has before it what the node that holds the body reads, and, as it may run again, the whole body.
    """
    masks: dict[str, int] = {}

    def mask_of(nodes: Iterable[Node]) -> int:
        mask = 0
        for node in nodes:
            mask |= masks.get(node.key, 0) | 1 << node.position
        return mask

    def visit(graph_id: str, outer: int) -> None:
        for node in graph.members.get(graph_id, ()):
            before = mask_of(graph.predecessors(node)) | outer
            for body in graph.subgraphs.get(node.key, ()):
                whole = sum(1 << member.position for member in graph.members.get(body, ()))
                visit(body, before | whole)
                before |= mask_of(graph.members.get(body, ()))
            masks[node.key] = before

    for graph_id in graph.body_outputs:
        if graph_id not in graph.body_owner:
            visit(graph_id, 0)
    return masks


class BodyRunners:
    """The modules that can run the bodies of one graph: in whose call an If, Loop or Scan stands.

        def forward(self, x):                            issued inside     yes.fc, yes
            return cond(x.sum() > 0, self.yes, self.no)  issued outside    the module itself: sum

    The runner called all that was issued inside. So it is their innermost common caller, or a module around that one;
    but no module around one that did something outside of the body, because the body lies inside of its call:

        common caller    yes   all that it did is inside ─► it may be called there, or run the body
        its caller       the module itself: it did something outside ─► it is the outermost that can run the body
    """

    def __init__(
        self,
        values: SeenValues,
        hierarchy: Hierarchy,
        sources: OperatorSources,
        evidence: Mapping[str, NodeEvidence],
    ) -> None:
        self._values, self._graph, self._hierarchy = values, values.graph, hierarchy
        self._sources, self._evidence = sources, evidence
        self._found: dict[str, tuple[ModuleCall, ...]] = {}

    def of(self, holder: Node) -> tuple[ModuleCall, ...]:
        """The calls that can run the bodies of a node of the main graph, innermost first; none if values do not tell.

        A body inside of a body may run in several calls.
        """
        if holder.key not in self._found:
            self._found[holder.key] = tuple(self._find(holder))
        return self._found[holder.key]

    def has_counterparts(self, holder: Node) -> bool:
        """Whether something inside holds what the run has: if not, an operator was broken down into it."""
        return any(self._evidence[node.key].issuers for node in self._graph.subgraph_nodes(holder))

    def _find(self, holder: Node) -> Iterator[ModuleCall]:
        if holder.graph != MAIN:
            return
        inside = [*self._graph.subgraph_nodes(holder)]
        issued = {call for node in inside for call in self._issuer(node)}
        around = self._hierarchy.common_ancestor(issued) if issued else None
        if around is None:
            return
        keys = {holder.key, *(node.key for node in inside)}
        for caller in reversed(self._hierarchy.stack(around)):
            yield caller
            if self._worked_outside(caller, keys):
                return

    def _issuer(self, node: Node) -> Frontier:
        """The one call that made the value of a node; what several made does not tell."""
        evidence = self._evidence[node.key]
        return evidence.makers if evidence.new and len(evidence.makers) == 1 else _NOBODY

    def _worked_outside(self, caller: ModuleCall, inside: Collection[str]) -> bool:
        """Whether a call, or one inside of it, issued something that nodes outside of a body make, and none inside."""
        return any(
            caller in self._hierarchy.stack(self._sources.issued[number].op.call) and keys.isdisjoint(inside)
            for number, keys in self._makers.items()
        )

    @cached_property
    def _makers(self) -> Mapping[int, frozenset[str]]:
        """By the number of a value of the run: the keys of the nodes that make it; a single number is enough."""
        makers: dict[int, set[str]] = {}
        for node in self._graph.nodes:
            for made, _ in self._values.per_round(node):
                for sample in filter(_is_telling, made):
                    same = self._sources.issued_like(sample)
                    # What is equal to something else, or handed on, may have been made elsewhere.
                    if len(same) == 1 and same[0].new:
                        makers.setdefault(same[0].number, set()).add(node.key)
        return {number: frozenset(keys) for number, keys in makers.items()}


def _is_telling(sample: Sample) -> bool:
    """Whether it is no integer: these are equal by chance."""
    return sample.kind == "float" and bool(np.any(sample.values % 1 != 0))
