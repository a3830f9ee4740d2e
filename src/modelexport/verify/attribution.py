"""The verdict on every attribution, from values alone.

A node that makes something new is held against the operators of the run that made the same: whoever issued them is its
module. Exporters break operators down, and what is inside of one has no counterpart in the run; but every way out of it
leads to the operator's result, so the first proved nodes below tell whose it is.

Which proved nodes come next, upwards and downwards from each node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.graph.index import MAIN, Graph, Node
from modelexport.graph.operators import DOMAIN
from modelexport.graph.sample import Sample, alike
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Attribution, Provenance
from modelexport.record.results.verification import AttributionProof, NodeProof, Verdict
from modelexport.verify.witness import IssuedValue, OperatorSources

Frontier = frozenset[ModuleCall]
_Proved = Mapping[str, Frontier]


def nearest_proved_below(graph: Graph, proved: _Proved) -> Mapping[str, Frontier]:
    """By node key: the calls of the first proved nodes on every way down from it."""
    return _frontiers(reversed(graph.running_order), graph.successors, proved)


def nearest_proved_above(graph: Graph, proved: _Proved) -> Mapping[str, Frontier]:
    """By node key: the calls of the first proved nodes on every way up from it."""
    return _frontiers(graph.nodes, graph.predecessors, proved)


def _frontiers(
    nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]], proved: _Proved
) -> Mapping[str, Frontier]:
    found: dict[str, Frontier] = {}
    for node in nodes:
        reached = (proved.get(other.key) or found.get(other.key, frozenset()) for other in neighbours(node))
        found[node.key] = frozenset[ModuleCall]().union(*reached)
    return found


_NOBODY: Frontier = frozenset()
# Domains of operators whose results have channels in another order, and some more of them to fill up a block.
_OWN_LAYOUTS = frozenset({DOMAIN})
# In the place of modules that made the same: a landmark that does not tell whose work is around it.
_SEVERAL: Frontier = frozenset({ModuleCall("", -1)})


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What the values of one node say.

    makers   calls that issued the same as something new
    passers  calls that issued the same in the same shape, new or handed on
    new      whether the node makes something new; if not, it hands on what it reads
    idle     it hands that on in the same shape: a module that does so need not issue anything
    silence  why its values say nothing, if they do not
    issues   the operators that made the same
    results  the makers of each of its results that has any
    """

    makers: Frontier = _NOBODY
    passers: Frontier = _NOBODY
    new: bool = True
    idle: bool = False
    silence: str = ""
    issues: tuple[IssuedValue, ...] = ()
    results: tuple[Frontier, ...] = ()

    @property
    def truth(self) -> Frontier:
        """The calls that the node belongs to, as far as its own values say.

        Of what a model does to no effect, a norm that was never trained say, the result is what it read.
        """
        return (self.makers if self.new else _NOBODY) or self.passers

    @property
    def is_landmark(self) -> bool:
        """Whether it says whose work is around it. What only changes the shape says less than what is behind it."""
        return bool(self.truth) and (self.new or self.idle)


class AttributionProver:
    """Everything that verdicts are based on.

    samples  of the graph's values
    trouble  why numbers cannot be relied on everywhere, if they cannot
    drawing  keys of nodes that draw random numbers
    """

    def __init__(
        self,
        graph: Graph,
        provenance: Provenance,
        samples: Mapping[str, Sample],
        issuing: OperatorSources,
        trouble: str = "",
        drawing: Collection[str] = (),
    ) -> None:
        self._graph = graph
        self._provenance = provenance
        self._samples = samples
        self._issuing = issuing
        self._trouble = trouble
        self._random = _behind(graph, drawing)
        self._testimonies = {node.key: self._heard(node) for node in graph.nodes}
        truths = {key: found.truth for key, found in self._testimonies.items() if found.is_landmark}
        self._below = nearest_proved_below(graph, truths)
        self._above = nearest_proved_above(graph, truths)
        self._truths = truths
        self._known = {number for one in samples.values() for number in issuing.numbers(one)}

    @cached_property
    def _unclear(self) -> frozenset[str]:
        """Keys of nodes beside a landmark that several modules made. Only nodes that nothing else decides ask."""
        graph = self._graph
        landmarks = {key: _SEVERAL if len(truth) > 1 else truth for key, truth in self._truths.items()}
        around = (nearest_proved_below(graph, landmarks), nearest_proved_above(graph, landmarks))
        return frozenset(key for found in around for key, calls in found.items() if not calls.isdisjoint(_SEVERAL))

    def proof(self) -> AttributionProof:
        return AttributionProof(tuple(map(self._judged, self._graph.nodes)))

    def _judged(self, node: Node) -> NodeProof:
        entry = self._provenance.nodes[node.key]
        verdict, reason, issued = self._verdict(node, entry.attribution)
        return NodeProof(
            key=node.key,
            name=node.name,
            op_type=node.op_type,
            claimed=entry.attribution.owners,
            verdict=verdict,
            reason=reason,
            issued=tuple(sorted(issued)),
            compute=self._computes(node),
        )

    def _verdict(self, node: Node, attribution: Attribution) -> tuple[Verdict, str, Frontier]:
        owners = frozenset(attribution.owners)
        if not owners:
            return Verdict.UNATTRIBUTED, attribution.reason, _NOBODY
        heard = self._testimonies[node.key]
        inside = self._is_inside(node, owners, heard.truth)
        if inside or owners & heard.truth:
            return (Verdict.PROVED, "", heard.truth) if inside else self._completed(node, owners, heard)
        if self._is_hooks_work(owners, heard.truth):
            return Verdict.NOT_PROVABLE, "a hook did it: it is its module's work, and its caller's", heard.truth
        if heard.new and heard.makers:
            if owners & heard.passers:
                return Verdict.NOT_PROVABLE, "hands on what another module made", heard.makers
            return Verdict.CONTRADICTED, "another module issued its value", heard.makers
        return self._enclosed(node, owners, heard)

    def _is_inside(self, node: Node, owners: Frontier, truth: Frontier) -> bool:
        """Whether a call of a function makes what was issued while its module ran: it does all of the module's work."""
        if node.function not in self._graph.yields:
            return False
        return any(not owners.isdisjoint(self._provenance.hierarchy.stack(call)) for call in truth)

    def _is_hooks_work(self, owners: Frontier, truth: Frontier) -> bool:
        """Whether one of them called the other, which has hooks."""
        pairs = [pair for owner in owners for call in truth for pair in ((owner, call), (call, owner))]
        stack = self._provenance.hierarchy.stack
        return any(inner.path in self._issuing.hooked and stack(inner)[-2:-1] == (outer,) for outer, inner in pairs)

    def _completed(self, node: Node, owners: Frontier, heard: NodeEvidence) -> tuple[Verdict, str, Frontier]:
        """A node that its owner issued: whether all of its owners did, and nobody who is not named."""
        if not heard.new:
            return self._without_extras(node, owners, heard, heard.truth)
        issues = [issue for issue in heard.issues if issue.op.call in owners]
        worked = frozenset(op.call for issue in issues for op in self._issuing.behind(issue, self._known))
        unnamed = worked - owners - self._credited_above(node)
        if unnamed or any(not owners & makers for makers in heard.results):
            return Verdict.CONTRADICTED, "does the work of a module that is not named", worked | heard.makers
        if not heard.makers <= owners:
            # Modules that made the same by themselves are told apart by what is around, if at all.
            around = self._enclosed(node, owners, heard)
            unclear = (Verdict.NOT_PROVABLE, "several modules made the same", heard.makers)
            return around if around[0] is Verdict.ENCLOSED else unclear
        idle = frozenset(op.call for issue in issues for op in self._issuing.idle_behind(issue, self._known))
        return self._without_extras(node, owners, heard, worked | heard.makers | heard.passers, idle)

    def _without_extras(
        self, node: Node, owners: Frontier, heard: NodeEvidence, shown: Frontier, idle: Frontier = _NOBODY
    ) -> tuple[Verdict, str, Frontier]:
        """A node that is its owner's: whether those who are named beside had any part in it.

        idle  calls on the way to its value of whose work no number tells
        """
        extra = owners - shown
        if not extra:
            return Verdict.PROVED, "", owners & heard.truth
        # What is handed on as it is may be the work of all who are in one node with its maker.
        beside = _NOBODY if heard.new else self._fused_beside(node)
        around = self._below[node.key] | self._above[node.key] | beside | shown | idle
        if not self._trouble and not all(self._takes_part(one, around) for one in extra):
            return Verdict.CONTRADICTED, "credited to a module that has nothing to do with it", shown
        return Verdict.NOT_PROVABLE, "credited to more modules than values show", shown

    def _credited_above(self, node: Node) -> Frontier:
        """The owners of the nodes between this one and what is known."""
        found, waiting, seen = set[ModuleCall](), [*self._graph.predecessors(node)], set[str]()
        while waiting:
            other = waiting.pop()
            if other.key in seen or self._testimonies[other.key].truth:
                continue
            seen.add(other.key)
            found.update(self._provenance.nodes[other.key].attribution.owners)
            waiting += self._graph.predecessors(other)
        return frozenset(found)

    def _enclosed(self, node: Node, owners: Frontier, heard: NodeEvidence) -> tuple[Verdict, str, Frontier]:
        if node.graph != MAIN:
            return Verdict.NOT_PROVABLE, heard.silence, _NOBODY  # a branch may not even have run
        under, over = self._below[node.key], self._above[node.key]
        around = under | over
        if under and owners <= around and (under <= owners or (owners & under and owners & over)):
            return Verdict.ENCLOSED, heard.silence or ("hands on what it reads" if heard.idle else ""), owners & under
        unclear = "between values that several modules made" if node.key in self._unclear else ""
        if silence := heard.silence or self._trouble or unclear:
            return Verdict.NOT_PROVABLE, silence, _NOBODY
        beside = self._fused_beside(node)
        moved = heard.idle or node.domain in _OWN_LAYOUTS
        if not moved and not all(self._takes_part(one, around | beside) for one in owners):
            return Verdict.CONTRADICTED, "lies between modules that have nothing to do with it", around
        if owners <= beside and not heard.passers:
            return Verdict.NOT_PROVABLE, "beside a node that does the work of several modules", beside
        return self._misplaced(node, heard, under)

    def _fused_beside(self, node: Node) -> Frontier:
        """The owners of neighbours that do the work of several modules: their values show the last of these only."""
        found: set[ModuleCall] = set()
        for other in (*self._graph.successors(node), *self._graph.predecessors(node)):
            owners = self._provenance.nodes[other.key].attribution.owners
            if len(owners) > 1 and not self._testimonies[other.key].truth.isdisjoint(owners):
                found.update(owners)
        return frozenset(found)

    def _misplaced(self, node: Node, heard: NodeEvidence, under: Frontier) -> tuple[Verdict, str, Frontier]:
        """A node that says something, and not that it is its owner's."""
        owners = frozenset(self._provenance.nodes[node.key].attribution.owners)
        if node.domain in _OWN_LAYOUTS:
            return Verdict.NOT_PROVABLE, "kept in a layout of ONNX Runtime's own", under
        if heard.passers and not heard.idle:
            return Verdict.CONTRADICTED, "another module issued its value in this shape", heard.passers
        if heard.new and under and not owners & under:
            return Verdict.CONTRADICTED, "lies inside the work of another module", under
        return Verdict.NOT_PROVABLE, "not between proved nodes of one module", under

    def _takes_part(self, owner: ModuleCall, around: Frontier) -> bool:
        """Whether it did any of the work around a node, called somebody who did, or was called by one who did."""
        stack = self._provenance.hierarchy.stack
        callers = {call for one in around for call in stack(one)}
        return not around or owner in callers or not around.isdisjoint(stack(owner))

    def _heard(self, node: Node) -> NodeEvidence:
        seen = [self._samples[output] for output in node.outputs if output in self._samples]
        silence = self._silence(node, seen)
        if silence:
            return NodeEvidence(silence=silence)
        telling = [one for one in seen if self._is_telling(one)]
        read = [self._samples[value] for value in node.inputs if value in self._samples]
        handed_on = [(one, other) for one in telling for other in read if alike(one, other)]
        issues = [(one, issue) for one in telling for issue in self._issuing.of(one)]
        results = [frozenset(issue.op.call for found, issue in issues if found is one and issue.new) for one in telling]
        makers = frozenset(issue.op.call for _, issue in issues if issue.new)
        return NodeEvidence(
            makers=makers,
            passers=frozenset(issue.op.call for one, issue in issues if self._issuing.shape(issue) == one.shape),
            new=not handed_on,
            idle=any(one.shape == other.shape for one, other in handed_on),
            issues=tuple(issue for _, issue in issues if issue.new or not makers),
            results=tuple(filter(None, results)),
        )

    def _silence(self, node: Node, seen: Iterable[Sample]) -> str:
        if node.graph != MAIN:
            return "inside the body of another node"
        if node.key in self._random:
            return "depends on random numbers"
        found = list(seen)
        if not found:
            return "its value could not be seen"
        if node.key not in self._graph.computed:
            return "does not depend on the inputs"
        if any(map(self._is_telling, found)):
            return ""
        return _why_silent(found)

    def _is_telling(self, one: Sample) -> bool:
        return one.telling and one.kind in ("float", "int") and not self._issuing.is_input(one)

    def _computes(self, node: Node) -> bool:
        made = [self._samples[output] for output in node.outputs if output in self._samples]
        return any(one.kind == "float" and one.size for one in made) and node.key in self._graph.computed


def _behind(graph: Graph, keys: Collection[str]) -> frozenset[str]:
    """The nodes with these keys, and all that read from them."""
    found = set(keys)
    for node in graph.nodes:
        if any(before.key in found for before in graph.predecessors(node)):
            found.add(node.key)
    return frozenset(found)


def _why_silent(seen: Iterable[Sample]) -> str:
    kinds = {one.kind for one in seen}
    if kinds <= {"int", "bool"}:
        return "truth values" if kinds == {"bool"} else "integer arithmetic"
    if any(one.telling for one in seen):
        return "hands on an input of the model"
    return "too few different numbers"
