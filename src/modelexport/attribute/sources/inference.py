"""Inference: modules of nodes that no source speaks of, from the modules around them in the dataflow.

A module calls other modules and computes with what they return. So a node that reads from several modules belongs to
the innermost module around them, and so does what is made of it:

    query ─► Transpose ─┐
    key   ─► Transpose ─┴► MatMul ─► Softmax ─► … ─► output.dense      all nodes between are attention's

    a join       a node made from several modules: the innermost module that two of them are in, if what follows lies
                 outside of it
    a passage    any other node: the common module of what it is made from last, and of what it is made for
    a tail       what is made from a join alone, until it enters a module outside: still the join's module
    an end       nothing known on one side: the module around the other side, which called it

Joins are worked out first, because passages lead to them. Constants and arithmetic on shapes exist for their readers,
and nodes in bodies belong to the node that runs them (`attribute/dataflow.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from modelexport.attribute.dataflow import claim_by_dataflow
from modelexport.attribute.roles.blocks import group_norms
from modelexport.attribute.roles.value_origins import RoleFlow
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.hierarchy import Hierarchy, ModuleCall, common_prefix, parent_path
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind

# Modules that a value is made from, the latest of them: enough for every operator with several inputs.
_MOST_SOURCES = 6


def infer_claims(flow: RoleFlow, hierarchy: Hierarchy, known: Mapping[str, Claim], strategy: str) -> dict[str, Claim]:
    """Claims for nodes without one in `known`; none for what is connected to nothing that is known."""
    graph = flow.graph
    paths = {key: common_path(call.path for call in claim.owners) for key, claim in known.items()}
    norms = _complete_norms(flow, paths)
    paths |= norms
    first = _OpenNodes(graph, paths)
    joins = {key: path for key, (path, is_join) in first.infer(first.paths_below()).items() if is_join}
    settled = _OpenNodes(graph, {**paths, **joins})
    inferred = {**joins, **{key: path for key, (path, _) in settled.infer(settled.paths_below()).items()}}
    claims = {key: _claim(path, "between" if key not in joins else "joins", strategy) for key, path in inferred.items()}
    claims |= {key: _claim(path, "normalization", strategy) for key, path in norms.items()}
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
    evidence = (Evidence(EvidenceKind.DATAFLOW, how),)
    return Claim((ModuleCall(path),), Confidence.INFERRED, evidence, strategy)


def common_path(paths: Iterable[str]) -> str:
    """The innermost module around all of them."""
    distinct = set(paths)
    if len(distinct) == 1:
        return distinct.pop()
    return ".".join(common_prefix(path.split(".") if path else [] for path in distinct))


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


@dataclass(frozen=True)
class _OpenNodes:
    """Nodes of the main graph that compute with data, and what is known of some of them."""

    graph: Graph
    known: Mapping[str, str]

    def _is_open(self, node: Node) -> bool:
        return node.graph == MAIN and node.key in self.graph.computed and node.key not in self.known

    def paths_below(self) -> Mapping[str, str]:
        """By node: the common module of the nearest known nodes that its result goes to."""
        below: dict[str, str] = {}
        for node in reversed(self.graph.nodes):
            if self._is_open(node):
                readers = (self.known.get(reader.key, below.get(reader.key)) for reader in self.graph.successors(node))
                paths = [path for path in readers if path is not None]
                if paths:
                    below[node.key] = common_path(paths)
        return below

    def infer(self, below: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
        """By node: its module, and whether it is a join, or the tail of one, that decides it."""
        inferred: dict[str, tuple[str, bool]] = {}
        # By node: the modules that its result is made from, up to the last known node or join, the latest last.
        made_from: dict[str, tuple[str, ...]] = {}
        for node in self.graph.nodes:
            if node.key in self.known:
                made_from[node.key] = (self.known[node.key],)
            if not self._is_open(node):
                continue
            sources = sorted(self.graph.predecessors(node), key=lambda source: source.position)
            keys = [source.key for source in sources if made_from.get(source.key)]
            above = list(dict.fromkeys(path for key in keys for path in made_from[key]))[-_MOST_SOURCES:]
            answer = _infer_path(above, below.get(node.key))
            if answer is not None and len(above) == 1 and all(inferred.get(key, ("", False))[1] for key in keys):
                answer = above[0], True
            made_from[node.key] = tuple(above)
            if answer is not None:
                if answer[1]:
                    made_from[node.key] = (answer[0],)
                # A sum of branches is what a module returns: it has no tail.
                inferred[node.key] = (answer[0], answer[1] and not (node.operator == "Add" and len(above) > 1))
        return inferred


def _infer_path(above: list[str], below: str | None) -> tuple[str, bool] | None:
    if not above or below is None:
        known = above[-1] if above else below
        # That it belongs to the whole model follows from nothing but a default.
        return (_caller(known), False) if known and _caller(known) else None
    passed = common_path((above[-1], below))
    joined = max((common_path(pair) for pair in combinations(above, 2)), key=_depth, default="")
    # A module and one inside of it are no two: what the outer one computed with may be all there is.
    is_join = _depth(joined) > _depth(passed) and joined not in above
    return (joined, True) if is_join else (passed, False)


def _caller(path: str) -> str:
    """The module around one that is known: whoever runs it computes before and after it. Lists run nothing."""
    above = parent_path(path)
    return parent_path(above) if path.rpartition(".")[2].isdecimal() else above
