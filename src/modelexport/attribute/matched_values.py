"""Value matching: which values of a run and which values of an ONNX graph hold the same, by fingerprint.

    graph                               run (ops by index, values by number)
    /fc/MatMul_out  [0.31, -1.2, …]  ≈  #17, made by ops[9] = addmm, call encoder.fc

Inside of an If, a Loop or a Scan exporters name no modules. A body is run with what it was given, and what a node makes
in it is what one call of the run made; of a body that runs again and again, one call each time
(`claim_bodies_by_value`):

    Scan (root) ─► body:  linear ─► sigmoid     round 0  sigmoid is what cell.act@0 made
                                                round 1                  cell.act@1          all of them own the node

`op_index` is the index of an operator in the order of the run, `number` that of a value of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property

from modelexport.graph.fingerprint import distance
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.graph.tensor_content import NearIndex
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.signals import Fingerprint, GraphValues, Trace

# Measured: two kernels that do the same arithmetic differ by some 1e-6 of a tensor's size, after dozens of layers 1e-5;
# 16-bit floats by some 1e-3. Values of other origin differ by far more than this.
_TOLERANCE = 2e-3
# The nearest value is meant if the next one is this many times as far away.
_FAR = 20.0
_NOISE = 1e-6
# What was only copied is equal but for the order in which a sketch was summed up.
_COPIED = 1e-9
# Elements of a tensor that is no size, axis or shape.
_MANY = 9


class ValueIndex:
    """The values of a trace, by content. The order of elements counts, their arrangement in a shape does not."""

    def __init__(self, trace: Trace) -> None:
        self._prints = trace.values
        self._exact: dict[tuple[str, bytes], list[int]] = {}
        floats: list[tuple[int, float, int]] = []
        for number, fingerprint in enumerate(trace.values):
            if fingerprint.kind == "float":
                # Values that are near have a near first projection: that is the sort key.
                floats.append((size_of(fingerprint), fingerprint.sketch[0], number))
            elif fingerprint.digest:
                self._exact.setdefault((fingerprint.kind, fingerprint.digest), []).append(number)
        self._floats = NearIndex.of(floats)

    def matches(self, fingerprint: Fingerprint) -> tuple[int, ...]:
        """Numbers of the values that hold the same, those of the same shape if there are any."""
        alike = self.alike(fingerprint)
        return tuple(number for number in alike if self._prints[number].shape == fingerprint.shape) or alike

    def alike(self, fingerprint: Fingerprint) -> tuple[int, ...]:
        """Numbers of the values that hold the same, in whatever shape."""
        if fingerprint.kind == "float":
            return tuple(sorted(self._near(fingerprint)))
        equal = self._exact.get((fingerprint.kind, fingerprint.digest), ())
        return tuple(number for number in equal if size_of(self._prints[number]) == size_of(fingerprint))

    def copies(self, fingerprint: Fingerprint) -> tuple[int, ...]:
        """Of those that match, the ones that were copied and not computed anew: nothing at all was folded in."""
        near = self.matches(fingerprint)
        return tuple(number for number in near if distance(self._prints[number], fingerprint) <= _COPIED)

    def _near(self, fingerprint: Fingerprint) -> list[int]:
        reach = _TOLERANCE * max(fingerprint.spread, 1e-30) * 2
        candidates = self._floats.near(size_of(fingerprint), fingerprint.sketch[0], reach)
        apart = {number: distance(self._prints[number], fingerprint) for number in candidates}
        near = {number: far for number, far in apart.items() if far <= _TOLERANCE}
        limit = _FAR * max(min(near.values(), default=0.0), _NOISE)
        return [number for number, far in near.items() if far <= limit]


def size_of(fingerprint: Fingerprint) -> int:
    return math.prod(fingerprint.shape)


def match_values(index: ValueIndex, prints: Mapping[str, Fingerprint]) -> dict[str, tuple[int, ...]]:
    """For each value of a graph, the values of the run that hold the same; those with none are left out."""
    matches = {name: index.matches(fingerprint) for name, fingerprint in prints.items()}
    return {name: numbers for name, numbers in matches.items() if numbers}


def data_values(trace: Trace) -> frozenset[int]:
    """Values of the run that depend on what the model was given."""
    dependent = set(trace.inputs.values())
    for op in trace.ops:
        if not dependent.isdisjoint(op.inputs):
            dependent.update(op.outputs)
    return frozenset(dependent)


def find_weight_uses(trace: Trace) -> dict[int, tuple[int, ...]]:
    """By value made from weights alone: the operators that use it, behind those that only rearrange it (Transpose)."""
    from_weights = set(trace.tensors.values())
    for op in trace.ops:
        if op.inputs and from_weights.issuperset(op.inputs):
            from_weights.update(op.outputs)
    uses: dict[int, set[int]] = {}
    # From the last operator back: who uses what an operator makes is known before who uses what it reads.
    for op_index in reversed(range(len(trace.ops))):
        op = trace.ops[op_index]
        # An exporter works this out in advance: its users are those of the result.
        folded = bool(op.inputs) and from_weights.issuperset(op.inputs)
        users = {use for output in op.outputs for use in uses.get(output, ())} if folded else {op_index}
        for value in op.inputs:
            if value in from_weights:
                uses.setdefault(value, set()).update(users)
    return {value: tuple(sorted(op_indices)) for value, op_indices in uses.items() if op_indices}


class MatchedRun:
    """A graph and a run side by side, with the values that both have.

    nodes    the main graph's nodes; what is in bodies and functions has no values of its own
    matches  values of the graph by name, mapped to the values of the run that hold the same
    """

    def __init__(self, graph: Graph, trace: Trace, values: GraphValues) -> None:
        self.graph, self.trace, self.prints = graph, trace, values.prints
        self.nodes = [node for node in graph.nodes if node.graph == MAIN]
        self._index = ValueIndex(trace)
        self.matches = match_values(self._index, values.prints)
        self._parts = values.parts

    @cached_property
    def maker(self) -> Mapping[int, int]:
        """For each value of the run, the index of the operator that made it."""
        return {value: op_index for op_index, op in enumerate(self.trace.ops) for value in op.outputs}

    def makers(self, name: str) -> list[int]:
        """Indices of the operators that made what the named value holds; not those that passed it on."""
        op_indices, passing = self._makers_and_passers(name)
        return [op_index for op_index in op_indices if op_index not in passing] or op_indices

    def makers_in_any_shape(self, name: str) -> set[int]:
        """Indices of all operators that made what the named value holds, be it in another shape."""
        fingerprint = self.prints.get(name)
        numbers = () if fingerprint is None else self._index.alike(fingerprint)
        return {self.maker[number] for number in numbers if number in self.maker}

    def passers(self, name: str) -> list[int]:
        """Indices of the operators that were given what the named value holds, and passed it on."""
        return sorted(self._makers_and_passers(name)[1])

    def is_distinctive(self, name: str) -> bool:
        """Whether the content of a named value is more than chance; zeros and ones are in many places."""
        return name in self.prints and self.prints[name].distinctive

    def is_long(self, name: str) -> bool:
        """Whether a named value has more numbers than the sizes, axes, shapes and masks that are equal by chance."""
        return self.prints[name].kind != "bool" and size_of(self.prints[name]) >= _MANY

    @cached_property
    def _weight_uses(self) -> Mapping[int, tuple[int, ...]]:
        return find_weight_uses(self.trace)

    def users_of(self, name: str, uses: Mapping[int, tuple[int, ...]] | None = None) -> set[int]:
        """Indices of the operators that use a weight which holds what a constant of the graph holds.

        uses  by number of a value; those of the model's weights if left out
        """
        numbers = () if name in self.graph.computed else self.matches.get(name, ())
        return {op_index for number in numbers for op_index in (uses or self._weight_uses).get(number, ())}

    def users_of_parts(self, name: str) -> set[int]:
        """Indices of the operators that use the parameters which a packed or cut weight of the graph holds."""
        parameters = {part.parameter for part in self._parts.get(name, ())}
        numbers = {self.trace.tensors[parameter] for parameter in parameters if parameter in self.trace.tensors}
        return {op_index for number in numbers for op_index in self._weight_uses.get(number, ())}

    def is_copy(self, name: str) -> bool:
        """Whether a value is just what some value of the run is, and not nearly."""
        return name in self.prints and bool(self._index.copies(self.prints[name]))

    @cached_property
    def held(self) -> frozenset[int]:
        """Values of the run that some node of the graph makes, whoever it belongs to."""
        made = (name for node in self.nodes for name in node.outputs if name in self.graph.computed)
        return frozenset(number for name in made for number in self.matches.get(name, ()))

    def passes_on(self, node: Node) -> bool:
        """Whether what a node makes is what it was given: a cast or a reshape that changes nothing."""
        made = {number for output in node.outputs for number in self.matches.get(output, ())}
        return any(not made.isdisjoint(self.matches.get(value, ())) for value in node.inputs)

    def fits(self, node: Node, op_index: int) -> bool:
        """Whether an exporter can have made such a node of this operator; one that nobody knows can become anything."""
        op = self.trace.ops[op_index]
        # torch may run a function (`F.gelu`) as one operator or as several; exporters translate either.
        known = [self.trace.operators[name] for name in (op.name, op.function) if name in self.trace.operators]
        return not known or any(node.op_type in operators for operators in known)

    def fits_itself(self, node: Node, op_index: int) -> bool:
        """The same without the function that the operator is a part of."""
        operators = self.trace.operators.get(self.trace.ops[op_index].name)
        return operators is None or node.op_type in operators

    def is_fusion(self, node: Node) -> bool:
        """Whether no exporter makes such a node of any operator of the run: a tool put it together."""
        return all(node.op_type not in operators for operators in self.trace.operators.values())

    @cached_property
    def weights(self) -> frozenset[int]:
        return frozenset(self.trace.tensors.values())

    @cached_property
    def from_data(self) -> frozenset[int]:
        return data_values(self.trace)

    def rearranges(self, op_index: int) -> bool:
        """Whether an operator makes nothing but what it was given, in another shape."""
        op = self.trace.ops[op_index]
        made, given = ([self.trace.values[value] for value in values] for values in (op.outputs, op.inputs))
        return any(distance(a, b) == 0 for a in made for b in given if a.kind == b.kind and size_of(a) == size_of(b))

    def calls(self, op_indices: Iterable[int]) -> set[ModuleCall]:
        return {self.trace.ops[op_index].call for op_index in op_indices}

    def _makers_and_passers(self, name: str) -> tuple[list[int], set[int]]:
        same = set(self.matches.get(name, ()))
        op_indices = sorted({self.maker[value] for value in same if value in self.maker})
        return op_indices, {op_index for op_index in op_indices if not same.isdisjoint(self.trace.ops[op_index].inputs)}


def claim_bodies_by_value(matched: MatchedRun, values: GraphValues, strategy: str) -> dict[str, Claim]:
    """Claims for nodes in bodies of the main graph whose values one module alone made."""
    index = ValueIndex(matched.trace)
    evidence = (Evidence(EvidenceKind.VALUE, matched.trace.source, "in the body"),)
    claims: dict[str, Claim] = {}
    for node in matched.graph.nodes:
        rounds = [values.inside[name] for name in node.outputs if name in values.inside]
        if rounds and node.graph in matched.graph.body_owner and node.key in matched.graph.computed:
            calls = _find_makers(node, rounds[0], matched, values, index)
            if len({call.path for call in calls}) == 1:
                claims[node.key] = Claim(tuple(sorted(calls)), Confidence.EXACT, evidence, strategy)
    return claims


def _find_makers(
    node: Node, made: Iterable[Fingerprint], matched: MatchedRun, values: GraphValues, index: ValueIndex
) -> set[ModuleCall]:
    """The calls that made what a node makes, round by round; nobody where it is not one call alone each time."""
    makers: set[ModuleCall] = set()
    for number, fingerprint in enumerate(made):
        same = index.matches(fingerprint) if fingerprint.distinctive else ()
        read = {value for name in node.inputs for value in _held_in(name, number, matched, values, index)}
        issued = {matched.maker[value] for value in same if value in matched.maker}
        # What an operator or the node only passes on is not its own.
        issued = {op_index for op_index in issued if not set(same) & set(matched.trace.ops[op_index].inputs)} or issued
        if not issued or not read.isdisjoint(same):
            continue
        fitting = [op_index for op_index in issued if matched.fits(node, op_index)]
        calls = matched.calls(fitting or issued)
        if len(calls) != 1:
            return set()
        makers |= calls
    return makers


def _held_in(name: str, number: int, matched: MatchedRun, values: GraphValues, index: ValueIndex) -> Iterable[int]:
    """The values of the run that a value read in a body holds in that round."""
    rounds = values.inside.get(name)
    if rounds is None:
        return matched.matches.get(name, ())
    return index.matches(rounds[number]) if number < len(rounds) else ()
