"""Evidence: what the values of one node say, by themselves, about who made them.

    Add ─► y        y is in the run, new, issued by layer.0        makers: layer.0
    Reshape ─► r    r holds what Add made, in another shape        not new; passers: who issued it in this shape
    Shape ─► s      two integers: anybody could have made these    silent

Inside of the body of a Loop or a function, a node makes a value in each round: all of them count as its results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from modelexport.graph.index import MAIN, SHAPE_READERS, Graph, Node
from modelexport.graph.sample import Sample, alike
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import NOT_RUN, Fault
from modelexport.verify.witness import IssuedValue, OperatorSources

Frontier = frozenset[ModuleCall]

_NOBODY: Frontier = frozenset()
OTHER_NUMBERS = "numbers differ from the model's"


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What the values of one node say.

    makers   calls that issued the same as something new
    passers  calls that issued the same in the same shape, new or passed on
    new      whether the node makes something new; if not, it passes on what it reads
    idle     it passes that on in the same shape: a module that does so need not issue anything
    silence  why its values say nothing, if they do not
    issued   the values of the run that hold the same
    results  the makers of each of its results that has any
    passed   the values of the run that hold the same and are not new
    """

    makers: Frontier = _NOBODY
    passers: Frontier = _NOBODY
    new: bool = True
    idle: bool = False
    silence: str = ""
    issued: tuple[IssuedValue, ...] = ()
    results: tuple[Frontier, ...] = ()
    passed: tuple[IssuedValue, ...] = ()

    @property
    def issuers(self) -> Frontier:
        """The calls that it belongs to by its own values. What changes nothing (untrained norms) makes what it read."""
        return (self.makers if self.new else _NOBODY) or self.passers

    @property
    def is_landmark(self) -> bool:
        """Whether it says whose work is around it. What only changes the shape says less than what is behind it."""
        return bool(self.issuers) and (self.new or self.idle)


@dataclass(frozen=True)
class SeenValues:
    """The values of one graph in one run of it.

    samples  by id; of values inside of bodies, in the first round
    rounds   of values inside of bodies, in each round after the first
    drawing  keys of nodes that draw random numbers
    exchanged  values that were wrong, and were given to their readers as the model has them
    """

    graph: Graph
    samples: Mapping[str, Sample]
    rounds: Sequence[Mapping[str, Sample]] = ()
    drawing: Collection[str] = ()
    exchanged: Collection[str] = ()

    @property
    def all(self) -> Iterator[Sample]:
        """In all rounds."""
        return (sample for values in (self.samples, *self.rounds) for sample in values.values())

    def of(self, values: Iterable[str]) -> list[Sample]:
        return [self.samples[value] for value in values if value in self.samples]

    def per_round(self, node: Node) -> list[tuple[list[Sample], list[Sample]]]:
        """What a node made and read, in each round in which it ran."""
        rounds = [(self.of(node.outputs), self.of(node.inputs))]
        for values in self.rounds if node.graph != MAIN else ():
            made = [values[name] for name in node.outputs if name in values]
            # What comes from outside of the body is the same in every round.
            read = [values.get(name) or self.samples[name] for name in node.inputs if name in self.samples]
            rounds += [(made, read)] if made else []
        return rounds

    @cached_property
    def random(self) -> frozenset[str]:
        """Keys of the nodes that draw random numbers, and of all that depend on them."""
        return with_successors(self.graph, self.drawing)

    @cached_property
    def computed(self) -> frozenset[str]:
        """Keys of the nodes that depend on the content of what the model is fed, inside of bodies and functions too."""
        dependent = set(self.graph.fed_inputs)
        before = 0
        while before < len(dependent):  # a function may be called behind another one that stands after it
            before = len(dependent)
            for node in self.graph.nodes:
                if node.operator not in SHAPE_READERS and not dependent.isdisjoint(node.inputs):
                    dependent.update(filter(None, node.outputs))
                    dependent.update(self._handed_in(node, dependent))
                    dependent.update(value for owner in self.graph.enclosing_nodes(node) for value in owner.outputs)
        return frozenset(node.key for node in self.graph.nodes if not dependent.isdisjoint(node.outputs))

    def _handed_in(self, node: Node, dependent: Collection[str]) -> Iterator[str]:
        """What a node gives to its bodies, or to the function that it calls, and depends on the inputs."""
        for body in self.graph.subgraphs.get(node.key, ()):
            yield from self.graph.body_inputs[body]
        for formal, value in zip(self.graph.body_inputs.get(node.function, ()), node.inputs, strict=False):
            if value in dependent:
                yield formal

    def silence(self, node: Node) -> str:
        """Why nothing can be told from what a node makes, whatever it is; empty if it can."""
        if node.key in self.random:
            return "depends on random numbers"
        if any(value in self.exchanged for value in node.outputs):
            return OTHER_NUMBERS
        if not any(made for made, _ in self.per_round(node)):
            return NOT_RUN if self._was_passed_over(node.graph) else "its value could not be seen"
        return "" if node.key in self.computed else "does not depend on the inputs"

    def _was_passed_over(self, graph_id: str) -> bool:
        """Whether a body is a branch that was not taken, or in one."""
        holder = self.graph.by_key.get(self.graph.body_owner.get(graph_id, ""))
        if holder is None:
            return False
        others = (body for body in self.graph.subgraphs[holder.key] if body != graph_id)
        taken = any(body in self._bodies_run or body not in self.graph.members for body in others)
        return (holder.op_type == "If" and taken) or self._was_passed_over(holder.graph)

    @cached_property
    def _bodies_run(self) -> frozenset[str]:
        """Ids of the bodies of which some value was seen."""
        return frozenset(node.graph for node in self.graph.nodes if any(name in self.samples for name in node.outputs))


def with_successors(graph: Graph, keys: Collection[str]) -> frozenset[str]:
    """The nodes with these keys, and all that depend on them."""
    dependent = set(keys)
    for node in graph.nodes:
        if any(before.key in dependent for before in graph.predecessors(node)):
            dependent.add(node.key)
    return frozenset(dependent)


def nodes_before(graph: Graph, values: Iterable[str], barriers: Container[str]) -> frozenset[str]:
    """Keys of the nodes from which a way leads to one of these values, over no node whose key is a barrier.

    A size is not a way: nothing is done with what it is asked of.
    """
    wanted, before = frozenset(values), set[str]()
    for node in reversed(graph.running_order):
        below = (near.key for near in graph.successors(node) if near.operator not in SHAPE_READERS)
        if not wanted.isdisjoint(node.outputs) or any(key in before and key not in barriers for key in below):
            before.add(node.key)
    return frozenset(before)


def nearest_proved_below(
    graph: Graph, proved: Mapping[str, Frontier], passable: Collection[str] | None = None
) -> Mapping[str, Frontier]:
    """By node key: the calls of the first proved nodes on every way down from it.

    passable  keys of the nodes that ways lead over; all if not given
    """
    if passable is None:
        return _frontiers(reversed(graph.running_order), graph.successors, proved)

    def go_down(node: Node) -> Iterable[Node]:
        return (near for near in graph.successors(node) if near.key in passable)

    return _frontiers(reversed(graph.running_order), go_down, proved)


def nearest_proved_above(graph: Graph, proved: Mapping[str, Frontier]) -> Mapping[str, Frontier]:
    return _frontiers(graph.nodes, graph.predecessors, proved)


def _frontiers(
    nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]], proved: Mapping[str, Frontier]
) -> Mapping[str, Frontier]:
    frontiers: dict[str, Frontier] = {}
    for node in nodes:
        reached = (proved.get(near.key) or frontiers.get(near.key, _NOBODY) for near in neighbours(node))
        frontiers[node.key] = _NOBODY.union(*reached)
    return frontiers


def examine(node: Node, values: SeenValues, sources: OperatorSources) -> NodeEvidence:
    """Hold what a node makes against what operators of the run issued."""
    rounds = values.per_round(node)
    if silence := values.silence(node) or _why_silent([made for outputs, _ in rounds for made in outputs], sources):
        return NodeEvidence(silence=silence)
    telling = [([made for made in outputs if _tells(made, sources)], inputs) for outputs, inputs in rounds]
    passing = [
        [(made, read) for made in outputs for read in inputs if alike(made, read)] for outputs, inputs in telling
    ]
    # What adds zeros in one round, and something else in others, makes something new.
    is_new = any(outputs and not passed_on for (outputs, _), passed_on in zip(telling, passing, strict=True))
    outputs = [
        made
        for (outputs, _), passed_on in zip(telling, passing, strict=True)
        if not (is_new and passed_on)
        for made in outputs
    ]
    same = [(made, sources.issued_like(made)) for made in outputs]
    results = [frozenset(value.op.call for value in issued if value.new) for _, issued in same]
    makers = _NOBODY.union(*results)
    shape = sources.shape
    return NodeEvidence(
        makers=makers,
        passers=frozenset(value.op.call for made, issued in same for value in issued if shape(value) == made.shape),
        new=is_new,
        idle=any(made.shape == read.shape for passed_on in passing for made, read in passed_on) and not is_new,
        issued=tuple(value for _, issued in same for value in issued if value.new or not makers),
        results=tuple(filter(None, results)),
        passed=tuple(value for _, issued in same for value in issued if not value.new),
    )


def _tells(sample: Sample, sources: OperatorSources) -> bool:
    return sample.distinctive and sample.kind in ("float", "int") and not sources.is_input(sample)


def _why_silent(outputs: Sequence[Sample], sources: OperatorSources) -> str:
    if any(_tells(made, sources) for made in outputs):
        return ""
    kinds = {made.kind for made in outputs}
    if kinds <= {"int", "bool"}:
        return "truth values" if kinds == {"bool"} else "integer arithmetic"
    if any(made.distinctive for made in outputs):
        return "hands on an input of the model"
    return "too few different numbers"


def name_fault(owners: Frontier, issued: Frontier, stack: Callable[[ModuleCall], tuple[ModuleCall, ...]]) -> Fault:
    """How owners are wrong, where values point to others. stack: of a call, itself and those around it."""
    if owners & issued:
        return Fault.TOO_NARROW if owners <= issued else Fault.TOO_WIDE
    callers = {caller for call in issued for caller in stack(call)}
    return Fault.TOO_SHALLOW if owners <= callers else Fault.ANOTHER_MODULE
