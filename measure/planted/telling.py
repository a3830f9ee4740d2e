"""Whether values can tell that an attribution is wrong: worked out from samples, by code that `verify` does not use.

A node whose value is many different numbers is the work of the operators of the run between this value, which the run
has too, and values that the graph has before the node. If the run does not have its value, the node is a part of the
first ones below it that are in the run. Values tell that a module is wrong if none of these operators is its own:

    run:    x ─► linear (query) ─► q ─► view (self) ─► …
    graph:  x ─► MatMul ─► m ─► Add ─► q         work of MatMul and Add: query. Credited to key: values tell.

Values cannot tell whose sizes, constants, truth values and copies are, nor which of two modules that made the same did
what is in the graph once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from measure.planted.faults import LEFT_OUT, WIDENED, Owners, PlantedFault
from modelexport.graph.index import Graph, Node
from modelexport.graph.sample import Sample
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance
from modelexport.record.signals import EagerRun, IssuedOp

_MANY = 8
_NEAR = 3e-4


class ValueJudge:
    """
    seen     the values of the graph, by id
    samples  the values of the run, by number
    """

    def __init__(
        self, graph: Graph, record: Provenance, seen: Mapping[str, Sample], run: EagerRun, samples: Sequence[Sample]
    ) -> None:
        self._graph, self._record, self._seen, self._run, self._samples = graph, record, seen, run, samples
        self._makers: dict[int, IssuedOp] = {number: op for op in run.ops for number in op.makes}
        self._numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
        for number in sorted(run.computed & self._makers.keys()):
            self._numbers[samples[number].kind, samples[number].size].append(number)
        self._same = {node.key: self._find_same(node) for node in graph.nodes}

    def tells(self, fault: PlantedFault) -> bool:
        """Whether values tell that a fault is one, at any of its nodes."""
        return any(
            self._tells_node(fault.kind, self._graph.by_key[key], owners) for key, owners in fault.owners.items()
        )

    def _tells_node(self, kind: str, node: Node, owners: Owners) -> bool:
        true = set(self._record.nodes[node.key].attribution.owners)
        if self._is_elsewhere(node, owners):
            return True
        if kind == LEFT_OUT:
            return bool((true - set(owners)) & self._needed(node))
        work = self._work(node)
        if any(call.path in self._run.hooked for call in (*work, *owners)):
            return False  # what a hook did is its module's work, and its caller's
        wrong = set(owners) - true if kind == WIDENED else set(owners)
        return bool(work) and wrong.isdisjoint(work)

    def _is_elsewhere(self, node: Node, owners: Owners) -> bool:
        """Whether a node in a body is credited outside of the module that runs the body."""
        holder = next(self._graph.enclosing_nodes(node), None)
        if holder is None:
            return False
        runners = set(self._record.nodes[holder.key].attribution.owners)
        return all(runners.isdisjoint(self._record.hierarchy.stack(owner)) for owner in owners)

    def _work(self, node: Node) -> set[ModuleCall]:
        """The calls whose operators a node can stand for; nobody if values do not tell."""
        if not self._is_many(node) or self._hands_on(node, same_shape=True):
            return set()
        if self._same[node.key]:
            in_shape = any(self._has_shape(node, number) for number in self._same[node.key])
            return self._calls_behind(node, self._same[node.key]) if in_shape or self._is_new(node) else set()
        if not self._is_new(node):
            return set()
        landmarks = list(self._first_below(node))
        return set().union(*(self._calls_behind(below, self._same[below.key]) for below in landmarks))

    def _needed(self, node: Node) -> set[ModuleCall]:
        """Calls without whose operators the value of a node would be another one, if no node before does their work."""
        same = [number for number in self._same[node.key] if self._makes_new(number)]
        if len(same) != 1 or not self._is_new(node):
            return set()  # what several modules made may be the work of any of them
        before = [near for near in self._graph.predecessors(node) if near.key in self._graph.computed]
        reached = self._numbers_behind(node, same) if all(self._same[near.key] for near in before) else set(same)
        return {self._makers[number].call for number in reached if self._makes_new(number)}

    def _first_below(self, node: Node) -> Iterator[Node]:
        """The first nodes on the ways down that make something new which the run has."""
        waiting, met = list(self._graph.successors(node)), set[str]()
        while waiting:
            below = waiting.pop()
            if below.key in met:
                continue
            met.add(below.key)
            if self._same[below.key] and self._is_new(below):
                yield below
            else:
                waiting += self._graph.successors(below)

    def _calls_behind(self, node: Node, numbers: Iterable[int]) -> set[ModuleCall]:
        reached = self._numbers_behind(node, numbers)
        idle = {
            ended.call
            for ended in self._run.calls
            if ended.call not in self._busy and not reached.isdisjoint(ended.outputs)
        }
        return {self._makers[number].call for number in reached} | idle

    def _numbers_behind(self, node: Node, numbers: Iterable[int]) -> set[int]:
        """Values of the run between these and what nodes before hold; constants included."""
        held = {number for key in self._before(node) for number in self._same[key]}
        reached, waiting = set[int](), list(numbers)
        while waiting:
            number = waiting.pop()
            if number not in reached and number in self._makers:
                reached.add(number)
                waiting += [read for read in self._makers[number].reads if read not in held]
        return reached

    def _before(self, node: Node) -> set[str]:
        before, waiting = set[str](), [node]
        while waiting:
            reader = waiting.pop()
            holders = list(self._graph.enclosing_nodes(reader))
            sources = [maker for item in (reader, *holders) for maker in self._graph.predecessors(item)]
            sources += self._graph.subgraph_nodes(reader)
            for maker in sources:
                if maker.key not in before:
                    before.add(maker.key)
                    waiting.append(maker)
        return before

    @cached_property
    def _busy(self) -> set[ModuleCall]:
        return {caller for op in self._run.ops for caller in self._record.hierarchy.stack(op.call)}

    def _find_same(self, node: Node) -> list[int]:
        if not self._is_many(node):
            return []
        made = [self._seen[name] for name in node.outputs if name in self._seen]
        return [
            number
            for sample in made
            for number in self._numbers[sample.kind, sample.size]
            if _are_same(sample, self._samples[number])
        ]

    def _is_many(self, node: Node) -> bool:
        """Whether it makes many different numbers from the inputs, other than the inputs."""
        if node.key not in self._graph.computed:
            return False
        made = [self._seen[name] for name in node.outputs if name in self._seen]
        given = [self._samples[number] for number in self._run.given]
        return any(_has_many(sample) and not any(_are_same(sample, other) for other in given) for sample in made)

    def _is_new(self, node: Node) -> bool:
        return not self._hands_on(node, same_shape=False)

    def _hands_on(self, node: Node, *, same_shape: bool) -> bool:
        made = [self._seen[name] for name in node.outputs if name in self._seen]
        read = [self._seen[name] for name in node.inputs if name in self._seen]
        return any(_are_same(a, b) and (a.shape == b.shape or not same_shape) for a in made for b in read)

    def _makes_new(self, number: int) -> bool:
        reads = self._makers[number].reads
        return not any(_are_same(self._samples[number], self._samples[read]) for read in reads)

    def _has_shape(self, node: Node, number: int) -> bool:
        return any(self._seen[name].shape == self._samples[number].shape for name in node.outputs if name in self._seen)


def _has_many(sample: Sample) -> bool:
    return sample.kind in ("float", "int") and len(np.unique(np.round(sample.values, 4))) >= _MANY


def _are_same(a: Sample, b: Sample) -> bool:
    if a.kind != b.kind or a.size != b.size or not a.size or a.kind == "other":
        return False
    near = max(_NEAR, a.grain, b.grain) if a.kind == "float" else 0.0
    return float(np.linalg.norm(a.values - b.values)) <= near * max(float(np.linalg.norm(a.values)), 1e-12)
