"""Anchors and the regions between them: which operators of the run a node of the graph can be part of.

An *anchor* is a node that the run explains by itself: it makes a value that one call alone made, or reads a weight that
one call alone used. An *end* is a value that graph and run both have: one that an anchor makes, or an input. The nodes
before an anchor, back to the nearest ends (a backward slice), do the work of the operators that lie there in the run:

    graph   x ─► Pow ─► Add ─► Tanh ─► Mul ─► y ─► MatMul      x and y are ends. What is between them does the work of
    run     x ─► gelu (call mlp.act) ────────► y ─► mm         gelu, so all four nodes are mlp.act's.

A node can only be part of an operator that depends on everything that the node depends on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from modelexport.attribute.matched_values import MatchedRun
from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import Node
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind


@dataclass(frozen=True, slots=True)
class Anchor:
    """The operators that a node does the work of, of one call as a rule, and how that is known."""

    op_indices: tuple[int, ...]
    calls: frozenset[ModuleCall]
    evidence: Evidence


def find_value_anchors(matched: MatchedRun) -> dict[str, Anchor]:
    evidence = Evidence(EvidenceKind.VALUE, matched.trace.source)
    anchors: dict[str, Anchor] = {}
    for node in matched.nodes:
        distinctive = [name for name in node.outputs if matched.is_distinctive(name)]
        if distinctive and node.key in matched.graph.computed:
            op_indices = {op_index for name in distinctive for op_index in matched.makers(name)}
            if matched.passes_on(node):
                # A value that is merely passed on is not the node's own, unless by a weight that happens to change
                # nothing: a bias of zeros is still the bias of the call that made the value.
                made = {op_index for name in distinctive for op_index in matched.makers_in_any_shape(name)}
                op_indices = made & {op_index for name in node.inputs for op_index in matched.users_of(name)}
            anchors.update(
                _of_one_call(node, op_indices, matched, evidence) or _of_outputs(node, distinctive, matched, evidence)
            )
    return anchors


def _of_outputs(node: Node, names: Iterable[str], matched: MatchedRun, evidence: Evidence) -> dict[str, Anchor]:
    """An anchor of several calls, if each output is what one of them made: a sum, say, and its norm."""
    made = [matched.makers(name) for name in names]
    calls = [matched.calls(op_indices) for op_indices in made]
    if matched.passes_on(node) or any(len(makers) != 1 for makers in calls):
        return {}
    op_indices = sorted({op_index for makers in made for op_index in makers})
    return {node.key: Anchor(tuple(op_indices), frozenset[ModuleCall]().union(*calls), evidence)}


def find_part_anchors(matched: MatchedRun, known: Mapping[str, Anchor]) -> dict[str, Anchor]:
    """Nodes that read weights put together or cut: they do the work of all calls that use those."""
    evidence = Evidence(EvidenceKind.PARAMETER, matched.trace.source, "parts")
    anchors: dict[str, Anchor] = {}
    for node in matched.nodes:
        if node.key not in known and node.key in matched.graph.computed:
            op_indices = {op_index for name in node.inputs for op_index in matched.users_of_parts(name)}
            calls = matched.calls(op_indices)
            if calls:
                anchors[node.key] = Anchor(tuple(sorted(op_indices)), frozenset(calls), evidence)
    return anchors


def find_passing_anchors(matched: MatchedRun) -> dict[str, Anchor]:
    """Nodes that pass a value on as one call alone did, by an operator that becomes such a node."""
    evidence = Evidence(EvidenceKind.TRACE, matched.trace.source, "passed on")
    anchors: dict[str, Anchor] = {}
    for node in matched.nodes:
        # What a weight of zeros or ones lets through may be any of the calls that have such a weight.
        weighted = any(matched.users_of(name) for name in node.inputs)
        if node.key in matched.graph.computed and not weighted and matched.passes_on(node):
            passing = {op_index for name in node.outputs for op_index in matched.passers(name)}
            op_indices = {op_index for op_index in passing if matched.fits_itself(node, op_index)}
            anchors.update(_of_one_call(node, op_indices, matched, evidence))
    return anchors


def find_weight_anchors(matched: MatchedRun, known: Mapping[str, Anchor]) -> dict[str, Anchor]:
    """Nodes that read a weight, or what the run made of it, which one call alone put to use."""
    evidence = Evidence(EvidenceKind.PARAMETER, matched.trace.source)
    readers: dict[tuple[tuple[str, ...], tuple[int, ...]], list[Node]] = {}
    for node in matched.nodes:
        if node.key not in known and node.key in matched.graph.computed:
            distinctive = [name for name in node.inputs if matched.is_distinctive(name)]
            weights = {name: users for name in distinctive if (users := matched.users_of(name))}
            op_indices = set[int].intersection(*weights.values()) if weights else None
            if op_indices:
                readers.setdefault((tuple(weights), tuple(sorted(op_indices))), []).append(node)
    anchors: dict[str, Anchor] = {}
    for (_, shared), nodes in readers.items():
        for node, own in _pair_with_calls(nodes, shared, matched):
            anchors.update(_of_one_call(node, own, matched, evidence))
    return anchors


def _pair_with_calls(
    nodes: list[Node], op_indices: Iterable[int], matched: MatchedRun
) -> Iterator[tuple[Node, list[int]]]:
    """The operators that each node stands for: with as many nodes as calls, one call each, in their order."""
    by_call: dict[ModuleCall, list[int]] = {}
    for op_index in op_indices:
        by_call.setdefault(matched.trace.ops[op_index].call, []).append(op_index)
    groups = list(by_call.values())
    if len(groups) == 1:
        yield from ((node, groups[0]) for node in nodes)
    elif len(groups) == len(nodes):
        yield from zip(nodes, groups, strict=True)


def _of_one_call(node: Node, op_indices: Iterable[int], matched: MatchedRun, evidence: Evidence) -> dict[str, Anchor]:
    """An anchor if the operators are one call's, or those are whose operator becomes such a node."""
    own = sorted(op_indices)
    if len(matched.calls(own)) > 1:
        own = [op_index for op_index in own if matched.fits(node, op_index)]
    calls = matched.calls(own)
    return {node.key: Anchor(tuple(own), frozenset(calls), evidence)} if len(calls) == 1 else {}


def _last_outputs(matched: MatchedRun, anchor: Anchor) -> list[int]:
    """What the last operator of each call makes."""
    last = {matched.trace.ops[op_index].call: op_index for op_index in sorted(anchor.op_indices)}
    return [value for op_index in last.values() for value in matched.trace.ops[op_index].outputs]


# How many steps further up than the run an exporter takes values from; a transposition is one.
_STEPS = 4
_NONE: frozenset[int] = frozenset()
_Needs = Mapping[int, frozenset[int]]  # by the index of an operator: the numbers of the ends that it depends on


@dataclass(frozen=True)
class RegionEnds:
    """Numbers of ends, by the values that they are in the run and in the graph."""

    of_run: Mapping[int, int]
    of_graph: Mapping[str, int]

    @classmethod
    def at(cls, matched: MatchedRun, anchors: Mapping[str, Anchor]) -> RegionEnds:
        values: dict[str, Iterable[int]] = {name: matched.matches.get(name, ()) for name in matched.graph.inputs}
        for key, anchor in anchors.items():
            for name in filter(None, matched.graph.by_key[key].outputs):
                # An anchor without a value of its own stands where the operators that it was found by stand.
                values[name] = matched.matches.get(name) or _last_outputs(matched, anchor)
        return cls._number(values)

    @classmethod
    def inside(cls, matched: MatchedRun, nodes: Iterable[Node], op_indices: Iterable[int]) -> RegionEnds:
        """Values within a region that both have; they do not tell by themselves, but there they do."""
        made = {value for op_index in op_indices for value in matched.trace.ops[op_index].outputs}
        names = [name for node in nodes for name in node.outputs if name in matched.matches]
        shared = {name: made.intersection(matched.matches[name]) for name in names}
        return cls._number({name: numbers for name, numbers in shared.items() if numbers})

    @classmethod
    def _number(cls, values: Mapping[str, Iterable[int]]) -> RegionEnds:
        """An end's number is the first value of the run that it is."""
        of_run: dict[int, int] = {}
        of_graph: dict[str, int] = {}
        for name, numbers in values.items():
            listed = sorted(numbers)
            if listed:
                of_graph[name] = next((of_run[number] for number in listed if number in of_run), listed[0])
                of_run.update(dict.fromkeys(listed, of_graph[name]))
        return cls(of_run, of_graph)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The operators that a node can be part of as far as one anchor knows.

    op_indices  those that fit best
    able        all that depend on everything that the node depends on
    alone       whether the whole region is one call's, and depends on the same as the node
    """

    op_indices: frozenset[int]
    able: frozenset[int]
    alone: bool


class AnchorRegions:
    """The regions of one projection: for each node between anchors, the operators that it can be part of."""

    def __init__(self, matched: MatchedRun, hierarchy: Hierarchy, anchors: Mapping[str, Anchor], strategy: str) -> None:
        self._matched, self._hierarchy = matched, hierarchy
        self._anchors, self._strategy = anchors, strategy
        self._ends = RegionEnds.at(matched, anchors)
        self._behind: dict[int, frozenset[int]] = {}
        self._by_node: dict[str, list[_Candidates]] = {}
        for key, anchor in anchors.items():
            for node, candidates in self.candidates(matched.graph.by_key[key], anchor):
                self._by_node.setdefault(node.key, []).append(candidates)

    def claims(self) -> dict[str, Claim]:
        by_key = self._matched.graph.by_key
        claims = ((key, self._claim(by_key[key], candidates)) for key, candidates in self._by_node.items())
        return {key: claim for key, claim in claims if claim is not None}

    def allow(self, key: str, op_index: int) -> bool:
        """Whether an operator lies where a node lies, and depends on what the node depends on."""
        return any(op_index in candidates.able for candidates in self._by_node.get(key, ()))

    def candidates(self, target: Node, anchor: Anchor) -> Iterator[tuple[Node, _Candidates]]:
        """The nodes before an anchor, each with the operators that it can be part of as far as this anchor knows."""
        # Nodes without an anchor that lead to this one with no other anchor in between, in file order.
        region = backward_slice(self._open_makers(target), self._open_makers)
        nodes = sorted(region, key=lambda node: node.position)
        if not nodes:
            return
        op_indices = self.ops_before(anchor.op_indices)
        inside = RegionEnds.inside(self._matched, nodes, op_indices)
        needs = self._needs_of_ops(op_indices, inside)
        alone = len(self._matched.calls(op_indices)) == 1
        for node, needed in self._needs_of_nodes(nodes, inside).items():
            able, direct = self._able(needed, needs)
            # Where nothing in the run depends on what a node depends on, the run did it some other way.
            if able:
                yield node, _Candidates(self._best(node, able), frozenset(able), alone and direct)

    def _open_makers(self, node: Node) -> Iterator[Node]:
        for maker in self._matched.graph.predecessors(node):
            if maker.key not in self._anchors and maker.key in self._matched.graph.computed:
                yield maker

    def ops_before(self, op_indices: Iterable[int], stops: Container[int] = ()) -> list[int]:
        """These operators, and those before them back to the nearest ends and `stops`, in their order."""

        def makers(op_index: int) -> Iterator[int]:
            for value in self._matched.trace.ops[op_index].inputs:
                if value not in self._ends.of_run and value not in stops and value in self._matched.maker:
                    yield self._matched.maker[value]

        return sorted(backward_slice(op_indices, makers))

    def _needs_of_ops(self, op_indices: Iterable[int], inside: RegionEnds) -> dict[int, frozenset[int]]:
        needs: dict[int, frozenset[int]] = {}
        for op_index in op_indices:
            own: set[int] = set()
            for value in self._matched.trace.ops[op_index].inputs:
                if value in self._ends.of_run:
                    own.add(self._ends.of_run[value])
                    continue
                own |= needs.get(self._matched.maker.get(value, -1), _NONE)
                if value in inside.of_run:
                    own.add(inside.of_run[value])
            needs[op_index] = frozenset(own)
        return needs

    def _needs_of_nodes(self, nodes: Iterable[Node], inside: RegionEnds) -> dict[Node, frozenset[int]]:
        needs: dict[str, frozenset[int]] = {}
        by_node: dict[Node, frozenset[int]] = {}
        for node in nodes:
            own: set[int] = set()
            for value in node.inputs:
                own |= needs.get(value, _NONE)
                end = self._ends.of_graph.get(value, inside.of_graph.get(value))
                if end is not None:
                    own.add(end)
            by_node[node] = frozenset(own)
            needs.update(dict.fromkeys(node.outputs, by_node[node]))
        return by_node

    def _able(self, needed: frozenset[int], needs: _Needs) -> tuple[_Needs, bool]:
        """The operators that depend on all that is needed, with what they depend on; whether they do so directly."""
        for steps in range(_STEPS):
            able = {op_index: have for op_index, have in needs.items() if needed <= have}
            if able:
                return able, steps == 0
            # An exporter may take a value from further up than the run did.
            needs = {op_index: have.union(*map(self._ends_behind, have)) for op_index, have in needs.items()}
        return {}, False

    def _best(self, node: Node, able: _Needs) -> frozenset[int]:
        """Those that depend on the least, of those that made the node's value or else can become such a node."""
        made = list(self._makers(node) & able.keys())
        best = made or [op_index for op_index in able if self._matched.fits(node, op_index)] or list(able)
        least = min(len(able[op_index]) for op_index in best)
        return frozenset(op_index for op_index in best if len(able[op_index]) == least)

    def _ends_behind(self, end: int) -> frozenset[int]:
        if end not in self._behind:
            # While it is being looked for it has none: a value that is written into leads back to itself.
            self._behind[end] = _NONE
            op_index = self._matched.maker.get(end)
            if op_index is not None:
                self._behind[end] = self._needs_of_ops(self.ops_before([op_index]), RegionEnds({}, {}))[op_index]
        return self._behind[end]

    def _makers(self, node: Node) -> set[int]:
        return {op_index for name in node.outputs for op_index in self._matched.makers(name)}

    def _claim(self, node: Node, candidates: list[_Candidates]) -> Claim | None:
        """One claim from the operators that each of the anchors behind a node allows."""
        sets = [item.op_indices for item in candidates]
        common = frozenset.intersection(*sets)
        op_indices = common or frozenset().union(*sets)
        calls = self._matched.calls(op_indices)
        passes_on = self._matched.passes_on(node)
        if len(calls) == 1:
            # Nothing in the run shows that a node was there which merely passes a value on.
            fits = any(self._matched.fits(node, op_index) for op_index in op_indices)
            alone = fits and all(item.alone for item in candidates)
            sure = not passes_on and (alone or not op_indices.isdisjoint(self._makers(node)))
            return self._claim_of(calls, Confidence.STRONG if sure else Confidence.INFERRED, "before")
        if not common and not passes_on and all(len(self._matched.calls(indices)) == 1 for indices in sets):
            # Each of several calls did this work, and the exporter kept it once.
            sure = not any(indices.isdisjoint(self._makers(node)) for indices in sets)
            return self._claim_of(calls, Confidence.STRONG if sure else Confidence.INFERRED, "shared")
        # Of several possible calls, those that made just this value, by an operator that becomes such a node.
        made = self._makers(node) & op_indices
        fitting = {op_index for op_index in made or op_indices if self._matched.fits(node, op_index)}
        enclosing = self._hierarchy.common_ancestor(self._matched.calls(fitting or made or op_indices))
        return None if enclosing is None else self._claim_of({enclosing}, Confidence.INFERRED, "between")

    def _claim_of(self, calls: set[ModuleCall], confidence: Confidence, how: str) -> Claim:
        evidence = Evidence(EvidenceKind.TRACE, self._matched.trace.source, how)
        return Claim(tuple(sorted(calls)), confidence, (evidence,), self._strategy)
