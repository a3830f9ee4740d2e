"""`usage_based`: only what is certain. A missing claim is no fault, a wrong one is.

A node that reads a weight belongs to the one call that put this weight to use in the run, if the operator that did can
become such a node. And what lies wholly between nodes of one call that called nothing else belongs to that call: there
is nobody else who could have issued it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.signals import Signals
from modelexport.strategies.claims import GraphClaims
from modelexport.strategies.projection.anchors import uses_of, weight_uses
from modelexport.strategies.projection.matched import Matched
from modelexport.strategies.weights import weight_claims

NAME = "usage_based"

# Nobody and, where two sides meet, more than one.
_SEVERAL = ModuleCall("", -1)


def usage_based(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    if signals.trace is None or signals.values is None:
        return GraphClaims({}, {})
    matched = Matched(graph, signals.trace, signals.values)
    users = _users(matched)
    nodes = {key: _claim(call, EvidenceKind.PARAMETER, "used by") for key, call in users.items()}
    inside = _enclosed(graph, users, _without_calls(hierarchy))
    nodes |= {key: _claim(call, EvidenceKind.DATAFLOW, "inside") for key, call in inside.items()}
    return GraphClaims(nodes, weight_claims(graph, hierarchy, signals.trace, signals.values, NAME))


def _users(matched: Matched) -> dict[str, ModuleCall]:
    """Nodes that read a weight, and the one call that used it."""
    uses = _uses(matched)
    found: dict[str, ModuleCall] = {}
    for node in matched.nodes:
        # That a constant of few different numbers is a weight may be an accident: exporters keep equal ones once.
        telling = [name for name in node.inputs if name in matched.prints and matched.prints[name].telling]
        # A weight into which another module's was folded is nearly the same, and not that one's alone.
        copied = [name for name in telling if matched.is_copy(name)]
        places = {place for name in copied for place in uses_of(name, matched, uses)}
        calls = matched.calls(places)
        if len(calls) == 1 and any(_becomes(node, place, matched) for place in places):
            found[node.key] = calls.pop()
    return found


def _uses(matched: Matched) -> dict[int, tuple[int, ...]]:
    """Where the run put weights to use, and constants: one of these may hold the same as a weight."""
    trace = matched.trace
    fixed = {str(number): number for number in range(len(trace.values)) if number not in matched.from_data}
    return weight_uses(replace(trace, tensors=fixed)) | weight_uses(trace)


def _becomes(node: Node, place: int, matched: Matched) -> bool:
    """Unlike elsewhere, an operator that no exporter knows becomes nothing."""
    op = matched.trace.ops[place]
    return any(node.op_type in matched.trace.operators.get(name, ()) for name in (op.name, op.function))


def _without_calls(hierarchy: Hierarchy) -> set[ModuleCall]:
    """Calls from inside of which no other call was made."""
    return {site.call for site in hierarchy.calls} - {
        site.parent for site in hierarchy.calls if site.parent is not None
    }


def _enclosed(graph: Graph, users: Mapping[str, ModuleCall], leaves: set[ModuleCall]) -> dict[str, ModuleCall]:
    """Nodes that lie between nodes of one leaf call alone, on both sides."""
    above = _nearest(graph.nodes, graph.predecessors, users)
    below = _nearest(reversed(graph.nodes), graph.successors, users)
    reached = {key: call for key, call in above.items() if call == below.get(key) and call in leaves}
    return {key: call for key, call in reached.items() if key in graph.computed}


def _nearest(
    nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]], users: Mapping[str, ModuleCall]
) -> dict[str, ModuleCall]:
    """For each node that is not a user's, the one call that all ways in a direction first meet."""
    near: dict[str, ModuleCall] = {}
    for node in nodes:
        if node.key in users:
            continue
        met = [users.get(other.key) or near.get(other.key, _SEVERAL) for other in neighbours(node)]
        near[node.key] = met[0] if met and all(call == met[0] for call in met) else _SEVERAL
    return {key: call for key, call in near.items() if call != _SEVERAL}


def _claim(call: ModuleCall, kind: EvidenceKind, how: str) -> Claim:
    return Claim((call,), Confidence.EXACT, (Evidence(kind, how),), NAME)
