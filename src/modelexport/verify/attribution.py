"""Proof of attributions: a verdict on every node, from values alone.

A node that makes something new is held against the operators of the run that made the same: whoever issued them is its
module. Exporters break operators down, and what is inside of one has no counterpart in the run; but every way out of it
leads to the operator's result, so the nearest proved nodes tell whose it is (a frontier, as in dominance frontiers):

    run:    x ─► layer_norm (module norm) ─► y
    graph:  x ─► ReduceMean ─► Sub ─► … ─► Div ─► Mul ─► y     Mul is proved by y; all before it is enclosed:
                                                               every way down first meets a proved node of norm

Evidence is asked in this order, for and against the owners; the first that tells decides. Values are asked here, and
dataflow where it contradicts; verify/enclosure.py asks the rest of what is left open:

    1 value         many different numbers     whoever issued them        3 several runs  few numbers that agree in all
    2 weights       the only module that reads them                       4 dataflow      encloses, proves nothing

    PROVED        its owners issued its value            ENCLOSED      lies inside the work of its owners
    CONTRADICTED  values show that others did the work   NOT_PROVABLE  values do not tell, with the reason
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cached_property, partial
from types import MappingProxyType

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import MAIN, Node
from modelexport.graph.protos import NCHWC
from modelexport.graph.sample import Sample
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Attribution, Provenance
from modelexport.record.results.verification import NOT_RUN, AttributionProof, NodeProof, ShownBy, Verdict
from modelexport.record.signals import IssuedOp
from modelexport.verify.contributors import BodyRunners, Contributors
from modelexport.verify.evidence import (
    Frontier,
    NodeEvidence,
    SeenValues,
    examine,
    name_fault,
    nearest_proved_above,
    nearest_proved_below,
    nodes_before,
)
from modelexport.verify.witness import IssuedValue, OperatorSources

_Judgement = tuple[Verdict, str, Frontier]

_INSIDE = "lies inside the work of another module"
_UNNAMED = "does the work of a module that is not named"
_RUNS = "another module runs its body"
_NO_PART = "credited to a module that had no part in it"

_NOT_BETWEEN = "not between proved nodes of one module"
_SAYS_NOTHING = "all that is made of it says nothing"
# Neighbours do not tell so far: they may when more of them are proved.
LEFT_TO_NEIGHBOURS = frozenset({_NOT_BETWEEN, _SAYS_NOTHING})

_NOBODY: Frontier = frozenset()
# Domains of operators whose results have channels in another order, and some more of them to fill up a block:
# NCHWc, https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/core/optimizer/nchwc_transformer.cc
_OWN_LAYOUTS = frozenset({NCHWC})
_REORDERS = ("ReorderInput", "ReorderOutput")
_SHOWN_BY = {Verdict.PROVED: ShownBy.VALUE, Verdict.ENCLOSED: ShownBy.BETWEEN}
# Stands for "several modules made the same": a landmark that does not tell whose work is around it.
_SEVERAL: Frontier = frozenset({ModuleCall("", -1)})


class AttributionProver:
    """Judges the attribution of every node of one graph.

    values     what the graph's nodes made
    sources    who issued which value in the run of the model
    trouble    why numbers cannot be relied on everywhere, if they cannot
    constants  what initializers hold, by name: what a module computed from sizes alone may be folded into one
    """

    def __init__(
        self,
        values: SeenValues,
        provenance: Provenance,
        sources: OperatorSources,
        trouble: str = "",
        constants: Mapping[str, Sample] = MappingProxyType({}),
    ) -> None:
        graph = values.graph
        self._values, self._graph, self._provenance, self._sources = values, graph, provenance, sources
        self._trouble, self._constants = trouble, constants
        self._evidence = {node.key: examine(node, values, sources) for node in graph.nodes}
        self._runners = BodyRunners(values, provenance.hierarchy, sources, self._evidence)
        self._proved = {key: evidence.issuers for key, evidence in self._evidence.items() if evidence.is_landmark}
        self._below = nearest_proved_below(graph, self._proved)
        self._above = nearest_proved_above(graph, self._proved)
        self._known = {
            number for sample in (*values.all, *constants.values()) for number in sources.numbers_like(sample)
        }
        self._contributors = self._find_contributors()

    def judging(self, provenance: Provenance) -> AttributionProver:
        """The same values, held against other attributions of the same calls."""
        other = copy(self)
        other._provenance = provenance
        return other

    def _find_contributors(self) -> Mapping[str, Frontier]:
        """By node key: everybody who can have had a part in its value, as far as values tell."""
        graph = self._graph
        held = {key: [*evidence.issued, *evidence.passed] for key, evidence in self._evidence.items()}
        numbers = {key: {value.number for value in values} for key, values in held.items()}
        for name in self._values.exchanged:
            numbers[graph.producers[name].key].update(self._sources.numbers_like(self._values.samples[name]))
        shapes = {node.key: {made.shape for made in self._values.of(node.outputs)} for node in graph.nodes}
        self._slices = slices = Contributors(graph, self._provenance.hierarchy, self._sources, numbers, shapes)
        self._busy = slices.busy
        behind = {node.key: slices.behind(node, self._numbers_made(node)) for node in graph.nodes if numbers[node.key]}
        telling = {key: calls for key, calls in behind.items() if self._evidence[key].issuers}
        around = slices.around(telling, self._proved)
        contributors = {}
        for key, calls in around.items():
            if self._evidence[key].idle:
                # Whoever was given it, or returned it, may have passed it on without an operator.
                contributors[key] = calls | behind.get(key, _NOBODY) | slices.handlers(numbers[key])
            else:
                # A view that nobody issued is told by what is around it, and may be its maker's.
                contributors[key] = telling.get(key) or calls | behind.get(key, _NOBODY)
        return contributors

    def _numbers_made(self, node: Node) -> set[int]:
        """The values of the run that a node can have made, by number: what others handed on has nodes of its own.

        A copy in the same shape need not have one; a view needs none if no node makes anything in its shape.
        """
        evidence = self._evidence[node.key]
        shapes = {made.shape for made in self._values.of(node.outputs)}
        elsewhere = set() if evidence.new else {value.number for value in evidence.passed}
        without_node = {
            value.number
            for value in evidence.passed
            if self._sources.shape(value) in shapes or value.number not in self._viewed
        }
        return {value.number for value in evidence.issued} | without_node | elsewhere

    @cached_property
    def _viewed(self) -> frozenset[int]:
        """The values of the run, by number, that nodes make which only change the shape of what they read."""
        return frozenset(
            value.number
            for node in self._graph.nodes
            for value in self._evidence[node.key].passed
            if not self._evidence[node.key].new
            and self._sources.shape(value) in {made.shape for made in self._values.of(node.outputs)}
        )

    @cached_property
    def _unclear(self) -> frozenset[str]:
        """Keys of nodes beside a landmark that several modules made. Only nodes that nothing else decides ask."""
        graph = self._graph
        landmarks = {key: _SEVERAL if len(issuers) > 1 else issuers for key, issuers in self._proved.items()}
        around = (nearest_proved_below(graph, landmarks), nearest_proved_above(graph, landmarks))
        return frozenset(key for nearest in around for key, calls in nearest.items() if not calls.isdisjoint(_SEVERAL))

    @cached_property
    def _plainly_below(self) -> Mapping[str, Frontier]:
        """The nearest proved nodes on ways down over values that say something.

            floor(x / 8) in a mask:  x ─► Mod ─► Sub ─► Equal ─► Where ─► Softmax

        What is inside of an operator leads to its result. If that is truth values or a few integers, nothing tells it
        from what is made of it, and the next proved node may be one of another module.
        """
        saying = {key for key, evidence in self._evidence.items() if not evidence.silence}
        return nearest_proved_below(self._graph, self._proved, saying)

    def prove(self) -> AttributionProof:
        return AttributionProof(tuple(map(self.prove_node, self._graph.nodes)))

    def prove_node(self, node: Node) -> NodeProof:
        entry = self._provenance.nodes[node.key]
        verdict, reason, issued = self._judge(node, entry.attribution)
        outputs = self._values.of(node.outputs)
        return NodeProof(
            key=node.key,
            name=node.name,
            op_type=node.op_type,
            claimed=entry.attribution.owners,
            verdict=verdict,
            reason=reason,
            issued=tuple(sorted(issued)),
            compute=node.key in self._values.computed and any(made.kind == "float" and made.size for made in outputs),
            fault=name_fault(frozenset(entry.attribution.owners), issued, self._provenance.hierarchy.stack)
            if verdict is Verdict.CONTRADICTED
            else None,
            shown_by=_SHOWN_BY.get(verdict),
        )

    def _judge(self, node: Node, attribution: Attribution) -> _Judgement:
        owners = frozenset(attribution.owners)
        if not owners:
            return Verdict.UNATTRIBUTED, attribution.reason, _NOBODY
        evidence = self._evidence[node.key]
        if judged := self._judge_runner(node, owners, evidence):
            return judged
        if owners & evidence.issuers:
            return self._judge_proved(node, owners, evidence)
        packed = self._judge_packed(node, owners, evidence)
        return packed or self._judge_strangers(node, owners, evidence)

    def _judge_strangers(self, node: Node, owners: Frontier, evidence: NodeEvidence) -> _Judgement:
        """A node none of whose owners issued its value."""
        if self._is_hooks_work(owners, evidence.issuers):
            return Verdict.NOT_PROVABLE, "a hook did it: it is its module's work, and its caller's", evidence.issuers
        if evidence.new and evidence.makers:
            if owners & evidence.passers:
                return Verdict.NOT_PROVABLE, "hands on what another module made", evidence.makers
            # Conv with BatchNorm folded in: the value is the last module's, and the first did a part of the work.
            worked = self._worked(evidence.issued) - self._credited_above(node)
            if owners & worked:
                return Verdict.CONTRADICTED, _UNNAMED, worked | evidence.makers
            return Verdict.CONTRADICTED, "another module issued its value", evidence.makers
        return self._judge_by_neighbours(node, owners, evidence)

    def _judge_packed(self, node: Node, owners: Frontier, evidence: NodeEvidence) -> _Judgement | None:
        """A node whose value is what its owners made, side by side; None for others."""
        if len(owners) < 2 or evidence.silence or evidence.issuers:
            return None
        for made in self._values.of(node.outputs):
            parts, is_certain = self._sources.find_parts(made, owners)
            if parts:
                few = (
                    Verdict.NOT_PROVABLE,
                    "what its modules made, side by side, of which too few numbers were kept",
                    parts,
                )
                return (Verdict.PROVED, "", parts) if is_certain else few
        return None

    def _judge_runner(self, node: Node, owners: Frontier, evidence: NodeEvidence) -> _Judgement | None:
        """A node that runs a body or a function: it does the work of all that is called there. None for others."""
        is_holder, hierarchy = node.key in self._graph.subgraphs, self._provenance.hierarchy
        if not is_holder and node.function not in self._graph.body_outputs:
            return None
        runners = self._runners.of(node) if is_holder else ()
        if runners and not any(call.path in self._sources.hooked for call in {*runners, *owners}):
            # It runs once, in one call.
            right = [call for call in runners if call in owners][:1]
            if owners != frozenset(right):
                return Verdict.CONTRADICTED, _RUNS, frozenset(right or runners[:1])
            is_certain = len(runners) == 1 or owners == evidence.issuers
            return Verdict.PROVED if is_certain else Verdict.ENCLOSED, "", owners
        if is_holder and not self._runners.has_counterparts(node):
            return None
        callers = owners & {caller for call in evidence.issuers for caller in hierarchy.stack(call)}
        # A body inside of a body is nobody's who calls the module that runs the outer one.
        outer = self._owners_of_body(node)
        callers = frozenset(caller for caller in callers if not outer or hierarchy.ran_inside(caller, outer))
        if callers and (strangers := self._strangers(node, owners - callers)):
            return Verdict.CONTRADICTED, _NO_PART, owners - strangers
        return (Verdict.PROVED, "", evidence.issuers) if callers else None

    def _is_hooks_work(self, owners: Frontier, issuers: Frontier) -> bool:
        """Whether one of them called the other, which has hooks."""
        pairs = [pair for owner in owners for call in issuers for pair in ((owner, call), (call, owner))]
        stack = self._provenance.hierarchy.stack
        return any(inner.path in self._sources.hooked and stack(inner)[-2:-1] == (outer,) for outer, inner in pairs)

    def _judge_proved(self, node: Node, owners: Frontier, evidence: NodeEvidence) -> _Judgement:
        """A node that one owner issued: whether all of its owners did, and nobody who is not named."""
        # What is passed on as it is may be the work of all who are in one node with its maker.
        beside = self._fused_beside(node) if node.op_type in _REORDERS or not evidence.new else _NOBODY
        if strangers := self._strangers(node, owners - evidence.issuers - beside):
            return Verdict.CONTRADICTED, _NO_PART, (owners - strangers) | evidence.makers
        if not evidence.new:
            return self._judge_extra_owners(owners, evidence, evidence.issuers)
        issued = [value for value in evidence.issued if value.op.call in owners]
        worked = self._worked(issued)
        unnamed = worked - owners - self._credited_above(node)
        if unnamed or any(not owners & makers for makers in evidence.results):
            return Verdict.CONTRADICTED, _UNNAMED, worked | evidence.makers
        if not evidence.makers <= owners:
            # Modules that made the same by themselves are told apart by what is around, if at all.
            by_neighbours = self._judge_by_neighbours(node, owners, evidence)
            unclear = (Verdict.NOT_PROVABLE, "several modules made the same", evidence.makers)
            return by_neighbours if by_neighbours[0] is Verdict.ENCLOSED else unclear
        shown = worked | evidence.makers
        if not owners <= shown:
            absorbed = self._slices.absorbed_by(node, [value.number for value in issued if value.new])
            shown |= absorbed | self._slices.left_over(node, self._constants, self._evidence)
        return self._judge_extra_owners(owners, evidence, shown)

    def _worked(self, issued: Iterable[IssuedValue]) -> Frontier:
        """Who did the work between some values of the run and what is known before them."""
        return frozenset(op.call for value in issued for op in self._sources.operators_behind(value, self._known))

    def _judge_extra_owners(self, owners: Frontier, evidence: NodeEvidence, shown: Frontier) -> _Judgement:
        """A node that is its owner's: whether values show that the further owners had a part in it."""
        if owners <= shown:
            return Verdict.PROVED, "", owners & evidence.issuers
        # They are on the way to its value, and changed no number, or nothing is known of what they made.
        return Verdict.NOT_PROVABLE, "credited to more modules than values show", shown

    def _is_bounded(self, node: Node, evidence: NodeEvidence) -> bool:
        """Whether all who had a part in a node's value are known, though the value itself does not tell."""
        if node.key in self._values.random or node.domain in _OWN_LAYOUTS or node.key in self._open_ended:
            return False
        calls = self._contributors[node.key]
        if not evidence.silence:
            return bool(calls)
        return node.key in self._values.computed and any(op.call in calls for op in self._operators_like(node))

    def _operators_like(self, node: Node) -> Iterator[IssuedOp]:
        """Operators of the run that made the same as a node from the same, though it may be zeros from ones."""
        read = [seen for seen in self._values.of(node.inputs) if seen.size > 1]
        for made in self._values.of(node.outputs):
            for value in self._sources.issued_like(made):
                if self._sources.shape(value) == made.shape and self._sources.reads_all(value, read):
                    yield value.op

    def _strangers(self, node: Node, owners: Frontier) -> Frontier:
        """Those of its owners that had no part in its value; a hook may have done the work of its module."""
        contributors = self._contributors[node.key]
        # A body runs again and again: not every call of a module inside of it was looked at.
        paths = set() if node.graph == MAIN else {call.path for call in contributors}
        strangers = {owner for owner in owners - contributors if owner.path not in paths}
        if self._evidence[node.key].idle:
            strangers &= self._busy
        strangers -= self._slices.left_over(node, self._constants, self._evidence) if strangers else _NOBODY
        return frozenset(owner for owner in strangers if owner.path not in self._sources.hooked)

    def _credited_above(self, node: Node) -> Frontier:
        """The owners of the nodes between this one and what is known."""

        def silent_before(reader: Node) -> list[Node]:
            return [maker for maker in self._graph.predecessors(reader) if not self._evidence[maker.key].issuers]

        between = backward_slice(silent_before(node), silent_before)
        return frozenset(owner for maker in between for owner in self._owners(maker))

    def _owners(self, node: Node) -> tuple[ModuleCall, ...]:
        return self._provenance.nodes[node.key].attribution.owners

    def _judge_by_neighbours(self, node: Node, owners: Frontier, evidence: NodeEvidence) -> _Judgement:
        """By the nearest proved nodes above and below, where the node's own values do not decide."""
        around = self._owners_of_body(node)
        # What did not run is in no call: that of the module in another call, where it ran, is as good.
        is_inside = partial(self._provenance.hierarchy.ran_inside, in_any_call=evidence.silence == NOT_RUN)
        if around and not any(is_inside(owner, around) for owner in owners):
            return Verdict.CONTRADICTED, "inside a body that another module runs", around
        if node.key in self._returned or evidence.silence == NOT_RUN:
            return Verdict.NOT_PROVABLE, evidence.silence or "leads out of its function", _NOBODY
        if self._is_bounded(node, evidence) and (strangers := self._strangers(node, owners)):
            if self._trouble:
                return Verdict.NOT_PROVABLE, self._trouble, self._contributors[node.key] - strangers
            if strangers < owners:
                return Verdict.CONTRADICTED, _NO_PART, (owners - strangers) | evidence.issuers
            return Verdict.CONTRADICTED, _INSIDE, evidence.issuers or self._contributors[node.key]
        return self._judge_enclosed(node, owners, evidence)

    def _owners_of_body(self, node: Node) -> Frontier:
        """The modules that run the bodies around a node; nobody in the main graph and in functions."""
        holder = next(self._graph.enclosing_nodes(node), None)
        return _NOBODY if holder is None else frozenset(self._owners(holder))

    @cached_property
    def _returned(self) -> frozenset[str]:
        """Keys of nodes in functions from which a way leads out over nothing that is proved: calls lie there."""
        bodies = self._graph.body_outputs
        functions = [graph_id for graph_id in bodies if graph_id != MAIN and graph_id not in self._graph.body_owner]
        return nodes_before(self._graph, {value for name in functions for value in bodies[name]}, self._proved)

    @cached_property
    def _open_ended(self) -> frozenset[str]:
        """Keys of nodes from which a way leads to a result of the model over nothing that says whose it is.

        x ─► Sub ─► Mul ─► ReduceMean ─► y: three numbers, the result of std. Who had a part in it is not known.
        """
        telling = {key for key, evidence in self._evidence.items() if evidence.issuers}
        return nodes_before(self._graph, self._graph.outputs, telling) - telling

    def _judge_enclosed(self, node: Node, owners: Frontier, evidence: NodeEvidence) -> _Judgement:
        under, over = self._below[node.key], self._above[node.key]
        around = under | over
        if under and owners <= around and (under <= owners or (owners & under and owners & over)):
            reason = evidence.silence or ("hands on what it reads" if evidence.idle else "")
            return Verdict.ENCLOSED, reason, owners & under
        unclear = "between values that several modules made" if node.key in self._unclear else ""
        if silence := evidence.silence or self._trouble or unclear:
            return Verdict.NOT_PROVABLE, silence, _NOBODY
        beside = self._fused_beside(node)
        if owners <= beside and not evidence.passers:
            return Verdict.NOT_PROVABLE, "beside a node that does the work of several modules", beside
        return self._judge_misplaced(node, owners, evidence, under)

    def _fused_beside(self, node: Node) -> Frontier:
        """The owners of neighbours that do the work of several modules: their values show the last of these only."""
        neighbours = (*self._graph.successors(node), *self._graph.predecessors(node))
        if node.op_type in _REORDERS:
            # Another layout is the work of whoever needs it, before or behind.
            return frozenset(owner for near in neighbours for owner in self._owners(near))
        groups = [(self._owners(near), self._evidence[near.key].issuers) for near in neighbours]
        proved = [owners for owners, issuers in groups if len(owners) > 1 and not issuers.isdisjoint(owners)]
        return _NOBODY.union(*proved)

    def _judge_misplaced(self, node: Node, owners: Frontier, evidence: NodeEvidence, under: Frontier) -> _Judgement:
        """A node that says something, and not that it is its owner's."""
        if node.domain in _OWN_LAYOUTS:
            return Verdict.NOT_PROVABLE, "kept in a layout of ONNX Runtime's own", under
        if evidence.passers and not evidence.idle:
            return Verdict.CONTRADICTED, "another module issued its value in this shape", evidence.passers
        if evidence.new and under and not owners & under and node.key not in self._open_ended:
            if not self._plainly_below[node.key]:
                return Verdict.NOT_PROVABLE, _SAYS_NOTHING, under
            return Verdict.CONTRADICTED, _INSIDE, under
        return Verdict.NOT_PROVABLE, _NOT_BETWEEN, under
