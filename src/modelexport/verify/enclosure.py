"""Completion of a proof: what the values of one run leave undecided, told by further runs, weights and dataflow.

Values of further runs come first (verify/series.py), then weights: what only one module reads, only that one computes
with. All the rest is enclosed, if it is: a fixpoint over shown nodes, where each that is shown shows others in turn.

What a module computes for itself alone is its own: sizes, axes, constants and masks, whose numbers do not tell.

    x ─► Shape ─► Gather ─► Concat ─► Reshape (proved: attention)      Concat, then Gather, then Shape: attention's

Sizes and constants that several modules need are in the graph once. They were there when the first of their readers
ran, so they are the work of that one, or of the module that called all of them:

    Gather ─┬─► Concat (shown: layer.0)                                Gather: layer.0's, or encoder's
            └─► Concat (shown: layer.1)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import NOT_RUN, AttributionProof, NodeProof, ShownBy, Verdict
from modelexport.verify.attribution import LEFT_TO_NEIGHBOURS
from modelexport.verify.evidence import (
    Frontier,
    name_fault,
    nearest_proved_above,
    nearest_proved_below,
    with_successors,
)
from modelexport.verify.series import RunSeries, SeriesEvidence

_NOBODY: Frontier = frozenset()
_REFUTED = "others issued its value in several runs"
_WEIGHT_OF_OTHERS = "another module reads the weight that it reads"
_Stack = Callable[[ModuleCall], tuple[ModuleCall, ...]]
_Shown = dict[str, ShownBy]


@dataclass(frozen=True, slots=True)
class _Told:
    """What weights and further runs say of a node.

    said        the calls that issued its value in every run
    likely      its owners are among them
    idle        it passes on what it reads
    shown_by    what shows that it is its owners'
    others      whose it is by the same evidence, if not its owners'
    reason      why
    is_refuted  whether that is more than a few numbers: nothing is enclosed across it
    is_sure     whether it is a reason to contradict
    is_open     whether dataflow may tell whose it is
    """

    said: SeriesEvidence
    likely: bool
    idle: bool
    shown_by: ShownBy | None = None
    others: Frontier = _NOBODY
    reason: str = ""
    is_refuted: bool = False
    is_sure: bool = False
    is_open: bool = False


class ProofCompletion:
    """A proof by the values of one run, to be completed.

    stack    of a call: itself and those around it, outermost first
    drawing  keys of nodes that draw random numbers
    exact    the numbers of the file are those of the model: else nothing is contradicted by them
    """

    def __init__(
        self,
        graph: Graph,
        stack: _Stack,
        proof: AttributionProof,
        drawing: Collection[str] = (),
        *,
        exact: bool = True,
    ) -> None:
        self._graph, self._stack, self._proof, self._exact = graph, stack, proof, exact
        self._random = with_successors(graph, drawing)
        self._by_key = {node.key: node for node in proof.nodes}
        self._owners = {node.key: frozenset(node.claimed) for node in proof.nodes}
        self._undecided = [graph.by_key[node.key] for node in proof.nodes if _is_undecided(node)]
        enclosed = (node for node in proof.nodes if node.verdict is Verdict.ENCLOSED and node.reason)
        # Whose values say nothing in one run.
        self._silent = [*self._undecided, *(graph.by_key[node.key] for node in enclosed)]

    @property
    def wanted(self) -> frozenset[str]:
        """The values that a further run is to show: what undecided nodes read and make."""
        return frozenset(value for node in self._silent for value in (*node.inputs, *node.outputs) if value)

    def complete(self, series: RunSeries) -> AttributionProof:
        told = {node.key: self._ask(node, series) for node in self._silent}
        newly_shown: _Shown = {key: heard.shown_by for key, heard in told.items() if heard.shown_by}
        refuted = {key: self._refute(key, heard) for key, heard in told.items() if heard.is_refuted}
        doubted = {key for key, heard in told.items() if heard.others}
        likely = {key for key, heard in told.items() if heard.likely}
        idle = {key for key, heard in told.items() if heard.idle}
        # What others issued in several runs is theirs: nothing is enclosed across it.
        others_work = {key: heard.others for key, heard in told.items() if heard.is_refuted}
        own = {key: self._owners[key] for key in {*self._proof.shown, *newly_shown} - doubted}
        enclosure = Enclosure(self._graph, self._owners, {**own, **others_work}, self._stack)
        enclosed = {node.key for node in self._silent if node.key in own} - {*newly_shown}
        reopened = enclosure.reopen(enclosed, others_work) if others_work else set[str]()
        reopened |= self._cut_off({**newly_shown, **others_work}, enclosure)
        waiting = [node for node in self._undecided if told[node.key].is_open]
        waiting += map(self._graph.by_key.__getitem__, reopened)
        shareable = idle | {node.key for node in waiting if node.key not in self._graph.computed}
        newly_shown |= enclosure.extend(waiting, shareable=shareable, likely=likely)
        said = {key: heard.said for key, heard in told.items()}
        by_readers = series.tell_apart(self._graph, said, enclosure.shown)
        apart = {key for key in likely - newly_shown.keys() if self._owners[key] == by_readers.get(key)}
        if apart:
            enclosure.show(apart)
            newly_shown |= dict.fromkeys(apart, ShownBy.BESIDE)
            waiting = [node for node in waiting if node.key not in newly_shown]
            newly_shown |= enclosure.extend(waiting, shareable=shareable, likely=likely)
        judged = (refuted.get(node.key, node) for node in self._proof.nodes)
        no_more = (reopened | doubted) - {*newly_shown, *refuted}
        opened = (_open(node) if node.key in no_more else node for node in judged)
        return AttributionProof(tuple(self._complete_node(node, newly_shown) for node in opened))

    def _ask(self, node: Node, series: RunSeries) -> _Told:
        """What weights say, and then further runs, of a node whose value in one run does not decide."""
        owners, readers = self._owners[node.key], series.weight_readers(node)
        said = SeriesEvidence() if node.key in self._random else series.examine(node)
        likely, idle = owners <= said.issuers, series.is_idle(node)
        told = partial(_Told, said=said, likely=likely, idle=idle)
        # A module that is called again reads its weights again: they tell whose, and not in which call.
        is_sole = len(readers) == 1 or (node.graph != MAIN and len({call.path for call in readers}) == 1)
        if is_sole and readers == owners:
            return told(shown_by=ShownBy.WEIGHTS)
        if said.issuers and said.issuers == owners:
            return told(shown_by=ShownBy.SERIES)
        # What is passed on as it is was issued by its maker, and need not be by whoever passes it on. Who runs a body
        # need not have issued what it returns.
        if likely or idle or node.key in self._graph.subgraphs or node.function in self._graph.body_outputs:
            return told(is_open=not readers or owners <= readers)
        computed = node.key in self._graph.computed
        if is_sole and not _share_module(owners, readers) and not series.are_hooked(owners | readers):
            return told(others=readers, reason=_WEIGHT_OF_OTHERS, is_refuted=True, is_sure=computed)
        # A fused node does the work of others, too; its value shows the last of them.
        # Sizes are equal to those that others asked for, in any number of runs.
        if owners.isdisjoint(said.issuers) and said.issuers and (said.is_strong or computed):
            # A range or a table may come up inside of an operator that the exporter broke down, and be the same as
            # that of another module: what is worked out from what the model is fed is not.
            is_sure = said.is_new and computed
            return told(others=said.issuers, reason=_REFUTED, is_refuted=said.is_strong, is_sure=is_sure)
        return told(is_open=not said.is_strong and (not readers or owners <= readers))

    def _cut_off(self, landmarks: Collection[str], enclosure: Enclosure) -> set[str]:
        """Keys of nodes that the first run enclosed, and what is known by now does not, across nodes that it left open.

        Sizes are on no way: what is made of a value is, and what is asked of its shape is not.
        """
        proved = {node.key: self._owners[node.key] for node in self._proof.nodes if node.verdict is Verdict.PROVED}
        known = {key: enclosure.shown.get(key) or self._owners[key] for key in landmarks if key in self._graph.computed}
        enclosed = [
            node.key for node in self._proof.nodes if node.verdict is Verdict.ENCLOSED and node.key not in known
        ]
        return enclosure.cut_off(enclosed, proved, {**proved, **known}) if known else set()

    def _refute(self, key: str, told: _Told) -> NodeProof:
        """A node that, in several runs or by its weights, is the work of others than its owners."""
        is_sure = self._exact and told.is_sure
        return replace(
            self._by_key[key],
            verdict=Verdict.CONTRADICTED if is_sure else Verdict.NOT_PROVABLE,
            reason=told.reason,
            issued=tuple(sorted(told.others)),
            fault=name_fault(self._owners[key], told.others, self._stack) if is_sure else None,
            shown_by=None,
        )

    def wants_more(self, proof: AttributionProof, series: RunSeries) -> bool:
        """Whether a further run could show nodes that are still open: nothing has been said of them in two runs."""
        shown = proof.shown
        nodes = (node for node in self._undecided if node.key not in shown and node.key not in self._random)
        return any(series.is_short(node) for node in nodes)

    def _complete_node(self, node: NodeProof, newly_shown: _Shown) -> NodeProof:
        # What is enclosed already may be proved by now.
        if node.key not in newly_shown:
            return node
        shown_by = newly_shown[node.key]
        verdict = Verdict.PROVED if shown_by in (ShownBy.SERIES, ShownBy.WEIGHTS) else Verdict.ENCLOSED
        return replace(node, verdict=verdict, shown_by=shown_by, issued=tuple(sorted(node.claimed)))


def _share_module(some: Frontier, others: Frontier) -> bool:
    """Whether a module is among both, be it in another call."""
    return not {call.path for call in some}.isdisjoint(call.path for call in others)


def _open(proof: NodeProof) -> NodeProof:
    return replace(proof, verdict=Verdict.NOT_PROVABLE, shown_by=None, issued=())


def _is_undecided(proof: NodeProof) -> bool:
    """Whether values leave open whose it is, and refute none of its owners."""
    if proof.verdict is not Verdict.NOT_PROVABLE or proof.reason == NOT_RUN:
        return False
    is_left = not proof.issued or proof.reason in LEFT_TO_NEIGHBOURS
    return is_left or set(proof.claimed) <= set(proof.issued)


class Enclosure:
    """The shown nodes of one graph, and those that they enclose.

    owners  what each node is credited to, by key
    shown   by key, whose the nodes are that values have shown: their owners', or others'
    """

    def __init__(
        self, graph: Graph, owners: Mapping[str, Frontier], shown: Mapping[str, Frontier], stack: _Stack
    ) -> None:
        self._graph, self._owners, self._stack = graph, owners, stack
        self.shown = dict(shown)
        self._returned = frozenset(value for values in graph.body_outputs.values() for value in values)

    def show(self, keys: Iterable[str]) -> None:
        self.shown |= {key: self._owners[key] for key in keys}

    def extend(self, nodes: Collection[Node], *, shareable: Collection[str], likely: Collection[str]) -> _Shown:
        """How nodes are enclosed, by key, until nothing more is.

        shareable  keys of nodes that make nothing from what the model is fed: sizes, constants, and copies
        likely     keys of nodes whose value their owners issued, and others, too
        """
        waiting = sorted(nodes, key=lambda node: -node.position)
        enclosed: _Shown = {}
        while True:
            before = len(enclosed)
            for node in waiting:
                shown_by = self._by_readers(node, node.key in shareable)
                if shown_by is None and node.key in likely and self._is_beside(node):
                    shown_by = ShownBy.BESIDE
                if shown_by is not None:
                    enclosed[node.key] = shown_by
                    self.show([node.key])
            waiting = [node for node in waiting if node.key not in enclosed]
            if len(enclosed) == before:
                between = dict.fromkeys(self._between([node.key for node in waiting], self.shown), ShownBy.BETWEEN)
                enclosed |= between
                self.show(between)
                waiting = [node for node in waiting if node.key not in enclosed]
            if len(enclosed) == before:
                return enclosed

    def reopen(self, keys: Iterable[str], others: Collection[str]) -> set[str]:
        """Keys of those of some nodes that lie between nodes of their owners only if others' work is passed over.

        others  keys of shown nodes that are not their owners'
        """
        left, reopened = set(keys), set[str]()
        while True:
            own = {key: calls for key, calls in self.shown.items() if key not in others}
            crossing = set(self._between(left, own)) - set(self._between(left, self.shown))
            if not crossing:
                return reopened
            reopened |= crossing
            left -= crossing
            self.shown = {key: calls for key, calls in self.shown.items() if key not in crossing}

    def cut_off(self, keys: Collection[str], before: Mapping[str, Frontier], now: Mapping[str, Frontier]) -> set[str]:
        """Those of some nodes that what was known before encloses, and what is known now does not: shown no more.

        before, now  by key, whose the proved nodes are
        """
        lost = set(self._between(keys, before)) - set(self._between(keys, now))
        self.shown = {key: calls for key, calls in self.shown.items() if key not in lost}
        return lost

    def _by_readers(self, node: Node, is_shareable: bool) -> ShownBy | None:
        """How its readers enclose a node, if they do."""
        owners = self._owners[node.key]
        readers = sorted(set(self._graph.successors(node)), key=lambda reader: reader.position)
        shown = [self.shown[reader.key] for reader in readers if reader.key in self.shown]
        if not owners or not shown:
            return None
        is_private = len(shown) == len(readers) and self._returned.isdisjoint(node.outputs)
        if owners <= _NOBODY.union(*shown):
            if is_private and not any(owners.isdisjoint(calls) for calls in shown):
                return ShownBy.READERS
            is_first = not owners.isdisjoint(self.shown.get(readers[0].key, _NOBODY))
            return ShownBy.FIRST_READER if is_shareable and is_first else None
        return ShownBy.CALLED if is_shareable and is_private and owners == self._common_caller(shown) else None

    def _common_caller(self, groups: Iterable[Frontier]) -> Frontier:
        """The innermost call around all of several calls; nobody for a single one."""
        calls = _NOBODY.union(*groups)
        levels = zip(*map(self._stack, calls), strict=False)
        common = [callers[0] for callers in levels if len(set(callers)) == 1]
        return frozenset(common[-1:]) if len(calls) > 1 else _NOBODY

    def _is_beside(self, node: Node) -> bool:
        """Whether what a node reads, or what reads it, is shown to be its owners'."""
        near = (*self._graph.predecessors(node), *self._graph.successors(node))
        around = _NOBODY.union(*(self.shown.get(other.key, _NOBODY) for other in near))
        return bool(self._owners[node.key]) and self._owners[node.key] <= around

    def _between(self, keys: Iterable[str], shown: Mapping[str, Frontier]) -> list[str]:
        """Keys of nodes between shown nodes of their owners, over nodes that are not shown."""
        below, above = nearest_proved_below(self._graph, shown), nearest_proved_above(self._graph, shown)
        return [key for key in keys if self._is_between(key, below[key], above[key])]

    def _is_between(self, key: str, under: Frontier, over: Frontier) -> bool:
        owners = self._owners[key]
        if not owners or not under or not owners <= under | over:
            return False
        return under <= owners or bool(owners & under and owners & over)
