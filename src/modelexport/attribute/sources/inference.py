"""Inference: modules of nodes that no source speaks of, from the order of the file and from dataflow.

Exporters write nodes in the order in which the model issued them, and the call of a module is one piece of that order.
So between two nodes that are known, the model left one module, went up to the innermost module around both, and down
into the other:

    attention.self.value ─► (open nodes) ─► attention.output.dense
    on the way out: attention.self; certainly: attention; on the way in: attention.output

    joins        made from values of two modules inside of one on the way out: computed there, and so is everything
                 before it, and what is made from it alone
    side input   made from inputs of the model alone, as masks are: computed by the module on the way in that reads it,
                 and not by a layer of it
    between      anything else: the module that execution certainly was in; with nothing known on one side, the module
                 that the node on the other side was run from
    made for     arithmetic on shapes: the module that reads it

A weight names a module that was called: what is handed to it was computed by its caller. Constants, and nodes in
bodies, belong to the node that reads or runs them (`attribute/dataflow.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from modelexport.attribute.dataflow import claim_by_dataflow
from modelexport.attribute.roles.blocks import group_norms
from modelexport.attribute.roles.value_origins import RoleFlow
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.graph.operators import SUMMANDS
from modelexport.record.hierarchy import ROOT, Hierarchy, ModuleCall, common_prefix, lineage_of, parent_path
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind

# Reasons that go by the order of nodes in the file, besides dataflow.
_BY_ORDER = frozenset({"between", "joins", "side input"})
_ORDER = "order of the file"


def infer_claims(flow: RoleFlow, hierarchy: Hierarchy, known: Mapping[str, Claim], strategy: str) -> dict[str, Claim]:
    """Claims for nodes without one in `known`; none for what is connected to nothing that is known."""
    graph = flow.graph
    paths = {key: common_path(call.path for call in claim.owners) for key, claim in known.items()}
    norms = _complete_norms(flow, paths)
    by_weight = {key for key, claim in known.items() if claim.evidence[0].kind is EvidenceKind.PARAMETER}
    order = _Order(graph, _Frames(hierarchy), {**paths, **norms}, by_weight | norms.keys())
    placed = order.place_data()
    reasons = {"normalization": norms, **placed, "made for": order.place_arithmetic(placed)}
    claims = {key: _claim(path, how, strategy) for how, several in reasons.items() for key, path in several.items()}
    # That a value leaves the graph is no evidence here: of a file without names, nothing would be unknown.
    return claims | claim_by_dataflow(graph, hierarchy, {**known, **claims}, strategy, returned=False)


def _complete_norms(flow: RoleFlow, paths: Mapping[str, str]) -> dict[str, str]:
    """The arithmetic that a normalization was taken apart into is the module's whose weight scales it."""
    completed: dict[str, str] = {}
    for members in group_norms(flow):
        known = {paths[node.key] for node in members if node.key in paths}
        if len(known) == 1:
            completed.update(dict.fromkeys((node.key for node in members if node.key not in paths), known.pop()))
    return completed


def _claim(path: str, how: str, strategy: str) -> Claim:
    evidence = (Evidence(EvidenceKind.DATAFLOW, how, _ORDER if how in _BY_ORDER else ""),)
    return Claim((ModuleCall(path),), Confidence.INFERRED, evidence, strategy)


def common_path(paths: Iterable[str]) -> str:
    """The innermost module around all of them."""
    distinct = set(paths)
    if len(distinct) == 1:
        return distinct.pop()
    return ".".join(common_prefix(path.split(".") if path else [] for path in distinct))


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _nearest(path: str, others: Iterable[str]) -> str:
    """The one with which a path has most in common."""
    return max(others, key=lambda other: _depth(common_path((path, other))))


@dataclass(frozen=True)
class _Frames:
    """Which modules of a hierarchy run something themselves."""

    hierarchy: Hierarchy

    def is_list(self, path: str) -> bool:
        return path in self._lists

    def is_leaf(self, path: str) -> bool:
        return path not in self._children

    def running(self, path: str) -> str:
        """The module itself; if it is a list, which runs nothing, the one around it."""
        while path in self._lists:
            path = parent_path(path)
        return path

    def computing(self, path: str) -> str:
        """The module itself; if all that it does is to run the modules of a list, the one around it."""
        while path in self._lists or path in self._loops:
            path = parent_path(path)
        return path

    @cached_property
    def _lists(self) -> frozenset[str]:
        return frozenset(module.path for module in self.hierarchy.modules.values() if module.container)

    @cached_property
    def _loops(self) -> frozenset[str]:
        only = {path: inside[0] for path, inside in self._children.items() if path != ROOT and len(inside) == 1}
        return frozenset(path for path, child in only.items() if child in self._lists)

    @cached_property
    def _children(self) -> Mapping[str, list[str]]:
        children: dict[str, list[str]] = {}
        for path in self.hierarchy.modules:
            if path != ROOT:
                children.setdefault(parent_path(path), []).append(path)
        return children


@dataclass(frozen=True)
class _Run:
    """Nodes in a row of which nothing is known, and the known ones before and after; None at an end of the graph."""

    before: Node | None
    nodes: tuple[Node, ...]
    after: Node | None

    @property
    def ends(self) -> list[str]:
        return [node.key for node in (self.before, self.after) if node is not None]


@dataclass(frozen=True)
class _Order:
    """The nodes of the main graph in their order, and what is known of some of them.

    known      by key of a node: its module
    by_weight  keys of nodes that are known by a weight alone
    """

    graph: Graph
    frames: _Frames
    known: Mapping[str, str]
    by_weight: AbstractSet[str]

    def place_data(self) -> dict[str, dict[str, str]]:
        """By reason, and by key of a node that computes with data: its module."""
        between: dict[str, str] = {}
        joins: dict[str, str] = {}
        # By node: the module that its result was made in last; None if it is made from inputs alone.
        origins: dict[str, str | None] = dict(self.known)
        runs = list(self._find_runs())
        for run in runs:
            passed = self._passed(run)
            joins_of_run = self._find_joins(run, passed, origins)
            joins |= joins_of_run
            innermost = passed
            for node in reversed(run.nodes):
                innermost = max(innermost, joins_of_run.get(node.key, passed), key=_depth)
                between[node.key] = self._leave_leaf(run, innermost, origins[node.key])
        return {"between": between, "joins": joins, "side input": dict(self._enter(runs, origins, between | joins))}

    def _leave_leaf(self, run: _Run, path: str, origin: str | None) -> str:
        """A module that is known by two of its weights computes between them with its own values alone."""
        is_inside = run.before is not None and path == self.known[run.before.key] and origin != path
        return self._caller(run.before.key) if run.before is not None and is_inside else path

    def _find_runs(self) -> Iterator[_Run]:
        waiting: list[Node] = []
        before: Node | None = None
        for node in self.graph.members.get(MAIN, ()):
            if node.key not in self.graph.computed:
                continue
            if node.key in self.known:
                if waiting:
                    yield _Run(before, tuple(waiting), node)
                waiting, before = [], node
            else:
                waiting.append(node)
        if waiting:
            yield _Run(before, tuple(waiting), None)

    def _passed(self, run: _Run) -> str:
        """The module that execution certainly was in."""
        paths = map(self.known.__getitem__ if len(run.ends) == 2 else self._caller, run.ends)
        return self.frames.running(common_path(paths))

    def _caller(self, key: str) -> str:
        """The module that a known node was run from. A module with modules inside computes with its weights itself."""
        path = self.known[key]
        is_called = key in self.by_weight and self.frames.is_leaf(path)
        return self.frames.running(parent_path(path)) if is_called else path

    def _find_joins(self, run: _Run, passed: str, origins: dict[str, str | None]) -> dict[str, str]:
        """By node: the module on the way out that it is computed in. Tells `origins` what the run is made from."""
        joins: dict[str, str] = {}
        # Nodes that something in the same module may follow: not sums of branches, which are what a module returns.
        tails: set[str] = set()
        for node in run.nodes:
            made_in = {key: path for key in self._sources(node) if (path := origins.get(key)) is not None}
            origins[node.key] = None
            if run.before is None or not made_in:
                continue
            frames = self._frames_left(run.before, made_in, tails)
            if len(made_in) == 1 and tails.issuperset(made_in):
                frames *= 2
            if len(frames) > 1 and _depth(frames[1]) > _depth(passed):
                origins[node.key] = joins[node.key] = frames[1]
                if node.operator not in SUMMANDS or len(made_in) == 1:
                    tails.add(node.key)
            else:
                origins[node.key] = _nearest(self.known[run.before.key], made_in.values())
        return joins

    def _sources(self, node: Node) -> Iterable[str]:
        return dict.fromkeys(source.key for source in self.graph.predecessors(node))

    def _frames_left(self, before: Node, made_in: Mapping[str, str], tails: set[str]) -> list[str]:
        """Modules on the way out that values come from, each by a way of its own, innermost first."""
        left = self.known[before.key]
        frames: dict[str, str] = {}
        for key, origin in made_in.items():
            common = common_path((origin, left))
            # Two values of one known module may be what it returned, read twice.
            frames[key if key in tails else origin] = (
                self._caller(before.key) if common == left else self.frames.running(common)
            )
        return sorted(frames.values(), key=_depth, reverse=True)

    def _enter(
        self, runs: list[_Run], origins: Mapping[str, str | None], between: Mapping[str, str]
    ) -> Iterator[tuple[str, str]]:
        """Side inputs, and the modules on the way in that read them."""
        paths = dict(between)
        for run in reversed(runs):
            passed = self._passed(run)
            for node in reversed(run.nodes):
                readers = self._readers(node, paths) if run.after is not None and origins[node.key] is None else ()
                if not readers or run.after is None:
                    continue
                way = lineage_of(common_path((*readers, self._caller(run.after.key))))
                inside = [path for path in way if _depth(path) > _depth(passed)]
                entered = [passed, *takewhile(lambda path: not self.frames.is_list(path), inside)]
                path = self.frames.computing(entered[-1])
                if _depth(path) > _depth(passed):
                    paths[node.key] = path
                    yield node.key, path

    def _readers(self, node: Node, placed: Mapping[str, str]) -> list[str]:
        keys = [reader.key for reader in self.graph.successors(node)]
        paths = (self._caller(key) if key in self.known else placed.get(key) for key in keys)
        return [path for path in paths if path is not None]

    def place_arithmetic(self, placed: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """By key of a node that computes with shapes alone: the module that reads it."""
        paths = {key: path for several in placed.values() for key, path in several.items()}
        arithmetic: dict[str, str] = {}
        for node in reversed(self.graph.members.get(MAIN, ())):
            is_open = node.key not in self.graph.computed and node.key not in self.known and node.inputs
            if is_open and (readers := self._readers(node, paths)):
                paths[node.key] = arithmetic[node.key] = self.frames.computing(common_path(readers))
        return arithmetic
