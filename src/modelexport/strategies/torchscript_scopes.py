"""Claims from the node names that the TorchScript exporter writes.

A name is a scope and an operator: `/encoder/layer.0/attention/self/query/MatMul`. The scope has one part for each
module call that was open, and a part is the tail of that module's path that begins with its last name that is not a
number. This loses information (a ModuleDict's name, a parent whose `forward` was called directly), so scopes are not
parsed back: the scope that each recorded call *must* have is computed, and names are looked up among those.

The exporter makes scopes unique by numbering the deepest part, in the order of first use: the scope of the second call
with the same parts ends in `_1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy, ModuleCall


def torchscript_claims(graph: Graph, hierarchy: Hierarchy, strategy: str) -> dict[str, Claim]:
    scopes = _scopes_in(graph)
    meanings = _Meanings.of(hierarchy, scopes)
    claims: dict[str, Claim] = {}
    for scope, nodes in scopes.items():
        for node in nodes:
            calls = meanings.calls(scope, node)
            if calls:
                claims[node.key] = _claim(calls, strategy)
    return claims


def scope_of(node: Node) -> str | None:
    """The scope part of a node's name; None where the exporter gave it none."""
    return node.name.rpartition("/")[0] if node.name.startswith("/") else None


def expected_scope(stack: Sequence[ModuleCall]) -> str:
    """The scope, not numbered yet, of nodes issued while these calls were open (root first)."""
    return "".join(f"/{_part(call.path)}" for call in stack[1:])


def _part(path: str) -> str:
    names = path.split(".")
    first = next((place for place in reversed(range(len(names))) if not names[place].isnumeric()), 0)
    return ".".join(names[first:])


def _scopes_in(graph: Graph) -> dict[str, list[Node]]:
    """Nodes by scope, scopes in the order of first use."""
    scopes: dict[str, list[Node]] = {}
    for node in graph.nodes:
        scope = scope_of(node)
        if scope is not None:
            scopes.setdefault(scope, []).append(node)
    return scopes


def _claim(calls: tuple[ModuleCall, ...], strategy: str) -> Claim:
    sure = len(calls) == 1
    evidence = Evidence(EvidenceKind.SCOPE, "torchscript", "" if sure else "calls not told apart")
    return Claim(calls, Confidence.EXACT if sure else Confidence.STRONG, (evidence,), strategy)


@dataclass(frozen=True)
class _Meanings:
    """Which calls each scope may stand for."""

    hierarchy: Hierarchy
    candidates: Mapping[str, tuple[ModuleCall, ...]]

    @classmethod
    def of(cls, hierarchy: Hierarchy, scopes: Mapping[str, list[Node]]) -> _Meanings:
        groups: dict[str, list[ModuleCall]] = {}
        for site in hierarchy.calls:
            groups.setdefault(expected_scope(hierarchy.stack(site.call)), []).append(site.call)
        candidates: dict[str, list[ModuleCall]] = {}
        for scope, calls in groups.items():
            used = [name for name in _numbered(scope, len(calls)) if name in scopes]
            for name, matches in zip(used, _spread(len(used), calls), strict=True):
                candidates.setdefault(name, []).extend(matches)
        return cls(hierarchy, {name: tuple(calls) for name, calls in candidates.items()})

    def calls(self, scope: str, node: Node) -> tuple[ModuleCall, ...]:
        found = self.candidates.get(scope, ())
        if len({call.path for call in found}) > 1:
            # `fc_1` is a module of that name or the second call of `fc`: the parameters that a node reads decide.
            return self._by_parameters(found, node) or found
        return found

    def _by_parameters(self, calls: tuple[ModuleCall, ...], node: Node) -> tuple[ModuleCall, ...]:
        owners = {path for value in node.inputs for path in self.hierarchy.tensor_owners.get(value, ())}
        return tuple(call for call in calls if call.path in owners)


def _numbered(scope: str, count: int) -> list[str]:
    return [scope if number == 0 else f"{scope}_{number}" for number in range(count)]


def _spread(used: int, calls: list[ModuleCall]) -> list[tuple[ModuleCall, ...]]:
    """The calls that each numbered scope may stand for. A call that left no node took no number.

    The k-th number is one of the calls from the k-th on that leaves enough calls for the numbers behind it.
    """
    spare = len(calls) - used
    return [tuple(calls[place : place + spare + 1]) for place in range(used)]
