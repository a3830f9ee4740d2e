"""Claims from the node names that the TorchScript exporter writes.

A name is a scope and an operator: `/encoder/layer.0/attention/self/query/MatMul`. The scope has one part for each
module call that was open, and a part is the tail of that module's path that begins with its last name that is not a
number. This loses information (a ModuleDict's name, a parent whose `forward` was called directly), so scopes are not
parsed back: the scope that each recorded call *must* have is computed, and names are looked up among those.

The exporter makes scopes unique by numbering the deepest part, in the order of first use: the scope of the second call
with the same parts ends in `_1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy, ModuleCall

_Calls = tuple[ModuleCall, ...]
_NO_PARTS: Mapping[str, str] = MappingProxyType({})


def torchscript_claims(
    graph: Graph, hierarchy: Hierarchy, strategy: str, parts: Mapping[str, str] = _NO_PARTS
) -> dict[str, Claim]:
    """Claims from scopes; where one has several meanings, parameters and the order of nodes narrow them down."""
    named = torchscript_calls(graph, hierarchy, parts)
    found = {node: _by_parameters(calls, node, hierarchy) or calls for node, calls in named.items()}
    return {node.key: _claim(calls, strategy) for node, calls in _within_time(found, hierarchy).items()}


def torchscript_calls(graph: Graph, hierarchy: Hierarchy, parts: Mapping[str, str] = _NO_PARTS) -> dict[Node, _Calls]:
    """The calls that each node's scope can stand for.

    parts: how TorchScript's own module map names modules; what it does not name follows from the path
    """
    scopes = _scopes_in(graph)
    meanings = _meanings(hierarchy, scopes, parts)
    return {node: meanings[scope] for scope, nodes in scopes.items() if scope in meanings for node in nodes}


def scope_of(node: Node) -> str | None:
    """The scope part of a node's name; None where the exporter gave it none."""
    return node.name.rpartition("/")[0] if node.name.startswith("/") else None


def expected_scope(stack: Sequence[ModuleCall], parts: Mapping[str, str] = _NO_PARTS) -> str:
    """The scope, not numbered yet, of nodes issued while these calls were open (root first)."""
    return "".join(f"/{parts.get(call.path) or _part_of(call.path)}" for call in stack[1:])


def _part_of(path: str) -> str:
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


def _claim(calls: _Calls, strategy: str) -> Claim:
    if len(calls) == 1:
        return Claim(calls, Confidence.EXACT, (Evidence(EvidenceKind.SCOPE, "torchscript"),), strategy)
    evidence = Evidence(EvidenceKind.SCOPE, "torchscript", f"one of {', '.join(map(str, calls))}")
    # The module is known; which of its calls it was is a guess, and the first is as good as any.
    owners = calls[:1] if len({call.path for call in calls}) == 1 else calls
    return Claim(owners, Confidence.INFERRED, (evidence,), strategy)


def _within_time(found: dict[Node, _Calls], hierarchy: Hierarchy) -> dict[Node, _Calls]:
    """Rule out calls that were over, or had not begun, when a node was issued.

    Nodes are listed in the order in which they were issued, so nodes whose call is known bound the time of the others.
    """
    if all(len(calls) == 1 for calls in found.values()):
        return found
    begin, end = _spans(hierarchy)
    ordered = sorted(found, key=lambda node: node.position)
    # Constants are moved around freely; they say nothing about time.
    known = {node: found[node][0] for node in ordered if len(found[node]) == 1 and node.op_type != "Constant"}
    earliest = _running(max, [(node, begin[known[node]] if node in known else 0) for node in ordered])
    last = len(hierarchy.calls)
    latest = _running(min, [(node, end[known[node]] if node in known else last) for node in reversed(ordered)])
    return {
        node: tuple(call for call in calls if end[call] >= earliest[node] and begin[call] <= latest[node]) or calls
        for node, calls in found.items()
    }


def _spans(hierarchy: Hierarchy) -> tuple[dict[ModuleCall, int], dict[ModuleCall, int]]:
    """For each call, its own place in the order of calls, and the place of the last call that was made inside of it."""
    begin = {site.call: place for place, site in enumerate(hierarchy.calls)}
    end = dict(begin)
    for site in reversed(hierarchy.calls):
        if site.parent is not None:
            end[site.parent] = max(end[site.parent], end[site.call])
    return begin, end


def _running(pick: Callable[[int, int], int], values: list[tuple[Node, int]]) -> dict[Node, int]:
    """For each node, the value picked among its own and all before it."""
    result: dict[Node, int] = {}
    picked = values[0][1] if values else 0
    for node, value in values:
        picked = pick(picked, value)
        result[node] = picked
    return result


def _meanings(hierarchy: Hierarchy, scopes: Mapping[str, list[Node]], parts: Mapping[str, str]) -> dict[str, _Calls]:
    """Which calls each scope may stand for."""
    groups: dict[str, list[ModuleCall]] = {}
    for site in hierarchy.calls:
        groups.setdefault(expected_scope(hierarchy.stack(site.call), parts), []).append(site.call)
    candidates: dict[str, list[ModuleCall]] = {}
    for scope, calls in groups.items():
        used = [name for name in _numbered(scope, len(calls)) if name in scopes]
        for name, matches in zip(used, _spread(len(used), calls), strict=True):
            candidates.setdefault(name, []).extend(matches)
    return {name: tuple(calls) for name, calls in candidates.items()}


def _by_parameters(calls: _Calls, node: Node, hierarchy: Hierarchy) -> _Calls:
    """`fc_1` is a module of that name or the second call of `fc`: the parameters that a node reads decide."""
    if len({call.path for call in calls}) == 1:
        return calls
    owners = {path for value in node.inputs for path in hierarchy.tensor_owners.get(value, ())}
    return tuple(call for call in calls if call.path in owners)


def _numbered(scope: str, count: int) -> list[str]:
    return [scope if number == 0 else f"{scope}_{number}" for number in range(count)]


def _spread(used: int, calls: list[ModuleCall]) -> list[_Calls]:
    """The calls that each numbered scope may stand for. A call that left no node took no number.

    The k-th number is one of the calls from the k-th on that leaves enough calls for the numbers behind it.
    """
    spare = len(calls) - used
    return [tuple(calls[place : place + spare + 1]) for place in range(used)]
