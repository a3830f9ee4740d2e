"""What strategies say of one graph.

All strategies, what each of them needs to be recorded, and which graph it reads.

`universal`: what the exporter's own module tracking says, and nothing else.

A scope that can only mean one module is claimed for it, down to the modules of torch.nn. What the exporter leaves open
stays open: no dataflow, no order of nodes, no weights that a node reads.

`enhanced_semantic`, the default: what the exporter wrote about its own nodes, then dataflow for what it did not.

It works from the ONNX model and the hierarchy record alone. The PyTorch model is not needed.

`htp`, hierarchical trace and project: what ran in the model, projected on the graph.

It looks at no node name and no metadata, so it is evidence of its own, and works on files that somebody else exported.

`fx_graph`: the module stack that FX keeps with every node.

Dynamo's exporter makes its ONNX nodes from the FX nodes of torch.export and says of which: those are exact, with the
number of the call. On any other graph the FX program is run like the model itself, and projected.

`usage_based`: only what is certain. A missing claim is no fault, a wrong one is.

A node that reads a weight belongs to the one call that put this weight to use in the run, if the operator that did can
become such a node. And what lies wholly between nodes of one call that called nothing else belongs to that call: there
is nobody else who could have issued it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from modelexport.attribute.dataflow import (
    dataflow_claims,
    initializer_claims,
    initializer_dataflow,
    parameter_claims,
    weight_claims,
)
from modelexport.attribute.projection.anchor_regions import uses_of, weight_uses
from modelexport.attribute.projection.matched_values import MatchedRun
from modelexport.attribute.projection.project import project
from modelexport.attribute.scopes import (
    dynamo_calls,
    dynamo_claims,
    fx_node,
    mend_lost_scopes,
    torchscript_calls,
    torchscript_claims,
)
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.signals import Signals, Trace


@dataclass(frozen=True)
class GraphClaims:
    """What a strategy says of one graph: at most one claim for each node and for each initializer."""

    nodes: Mapping[str, Claim]
    initializers: Mapping[str, Claim]


def claims_by_node(*said: GraphClaims) -> dict[str, tuple[Claim, ...]]:
    """What several strategies say of each node."""
    return _gathered(claims.nodes for claims in said)


def claims_by_initializer(*said: GraphClaims) -> dict[str, tuple[Claim, ...]]:
    """What several strategies say of each initializer."""
    return _gathered(claims.initializers for claims in said)


def _gathered(said: Iterable[Mapping[str, Claim]]) -> dict[str, tuple[Claim, ...]]:
    found: dict[str, tuple[Claim, ...]] = {}
    for claims in said:
        for key, claim in claims.items():
            found[key] = (*found.get(key, ()), claim)
    return found


UNIVERSAL = "universal"


def universal(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    nodes = _claim_scopes("torchscript", torchscript_calls(graph, hierarchy, signals.scopes.parts))
    nodes |= _claim_scopes("dynamo", dynamo_calls(graph, hierarchy, signals.scopes))
    return GraphClaims(nodes, initializer_claims(graph, hierarchy, UNIVERSAL))


def _claim_scopes(exporter: str, found: Mapping[Node, tuple[ModuleCall, ...]]) -> dict[str, Claim]:
    certain = {node: calls for node, calls in found.items() if len({call.path for call in calls}) == 1}
    return {node.key: _claim_scope(exporter, calls) for node, calls in certain.items()}


def _claim_scope(exporter: str, calls: tuple[ModuleCall, ...]) -> Claim:
    one = len(calls) == 1
    evidence = Evidence(EvidenceKind.SCOPE, exporter, "" if one else "calls not told apart")
    return Claim(calls, Confidence.EXACT if one else Confidence.STRONG, (evidence,), UNIVERSAL)


ENHANCED_SEMANTIC = "enhanced_semantic"


def enhanced_semantic(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    scopes = signals.scopes
    named = torchscript_claims(graph, hierarchy, ENHANCED_SEMANTIC, scopes.parts) | dynamo_claims(
        graph, hierarchy, scopes, ENHANCED_SEMANTIC
    )
    nodes = named | mend_lost_scopes(graph, hierarchy, named, ENHANCED_SEMANTIC)
    unnamed = [node for node in graph.nodes if node.key not in nodes]
    nodes |= parameter_claims(hierarchy, unnamed, ENHANCED_SEMANTIC)
    nodes |= dataflow_claims(graph, hierarchy, nodes, ENHANCED_SEMANTIC)
    initializers = initializer_claims(graph, hierarchy, ENHANCED_SEMANTIC)
    initializers |= initializer_dataflow(graph, hierarchy, nodes, initializers, ENHANCED_SEMANTIC)
    return GraphClaims(nodes, initializers)


HTP = "htp"


def htp(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    if signals.trace is None or signals.values is None:
        return GraphClaims({}, {})
    return claim_by_projection(graph, hierarchy, signals, signals.trace, HTP)


def claim_by_projection(
    graph: Graph, hierarchy: Hierarchy, signals: Signals, trace: Trace, strategy: str
) -> GraphClaims:
    """What the projection of a run says, and dataflow for the rest."""
    assert signals.values is not None
    nodes = project(graph, hierarchy, trace, signals.values, strategy)
    nodes |= dataflow_claims(graph, hierarchy, nodes, strategy)
    initializers = weight_claims(graph, hierarchy, trace, signals.values, strategy)
    initializers |= initializer_dataflow(graph, hierarchy, nodes, initializers, strategy)
    return GraphClaims(nodes, initializers)


USAGE_BASED = "usage_based"

# Nobody and, where two sides meet, more than one.
_SEVERAL = ModuleCall("", -1)


def usage_based(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    if signals.trace is None or signals.values is None:
        return GraphClaims({}, {})
    matched = MatchedRun(graph, signals.trace, signals.values)
    users = _users(matched)
    nodes = {key: _claim_usage(call, EvidenceKind.PARAMETER, "used by") for key, call in users.items()}
    inside = _enclosed(graph, users, _without_calls(hierarchy))
    nodes |= {key: _claim_usage(call, EvidenceKind.DATAFLOW, "inside") for key, call in inside.items()}
    return GraphClaims(nodes, weight_claims(graph, hierarchy, signals.trace, signals.values, USAGE_BASED))


def _users(matched: MatchedRun) -> dict[str, ModuleCall]:
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


def _uses(matched: MatchedRun) -> dict[int, tuple[int, ...]]:
    """Where the run put weights to use, and constants: one of these may hold the same as a weight."""
    trace = matched.trace
    fixed = {str(number): number for number in range(len(trace.values)) if number not in matched.from_data}
    return weight_uses(replace(trace, tensors=fixed)) | weight_uses(trace)


def _becomes(node: Node, place: int, matched: MatchedRun) -> bool:
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


def _claim_usage(call: ModuleCall, kind: EvidenceKind, how: str) -> Claim:
    return Claim((call,), Confidence.EXACT, (Evidence(kind, how),), USAGE_BASED)


FX_GRAPH = "fx_graph"


def fx_graph(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    """Claims from `signals.fx` if it was recorded, else from the exporter's own FX nodes if it has any."""
    if signals.fx is not None and signals.values is not None:
        return claim_by_projection(graph, hierarchy, signals, signals.fx, FX_GRAPH)
    return _named(graph, hierarchy, signals)


def _named(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    calls = signals.scopes.fx_calls
    names = {node.key: fx_node(node) for node in graph.nodes if node.graph == MAIN}
    nodes = {
        key: Claim((calls[name],), Confidence.EXACT, (Evidence(EvidenceKind.FX, "torch.export", name),), FX_GRAPH)
        for key, name in names.items()
        if name in calls
    }
    nodes |= dataflow_claims(graph, hierarchy, nodes, FX_GRAPH)
    initializers = initializer_claims(graph, hierarchy, FX_GRAPH)
    initializers |= initializer_dataflow(graph, hierarchy, nodes, initializers, FX_GRAPH)
    return GraphClaims(nodes, initializers)


class Need(StrEnum):
    """A signal that costs a run of its own."""

    TRACE = "trace"
    VALUES = "values"
    FX = "fx"


@dataclass(frozen=True)
class Strategy:
    """One way to judge a graph.

    needs     signals without which it says nothing
    before    it rests on what the exporter wrote, and so reads the exporter's graph before any optimizer touched it
    infers    it also says what follows from the neighbours of a node
    """

    name: str
    judge: Callable[[Graph, Hierarchy, Signals], GraphClaims]
    needs: frozenset[Need] = frozenset()
    before: bool = False
    infers: bool = True


_RUN = frozenset({Need.TRACE, Need.VALUES})

# In the order in which people choose: the default, the independent one, then those for particular wishes.
CATALOGUE = {
    strategy.name: strategy
    for strategy in (
        Strategy(ENHANCED_SEMANTIC, enhanced_semantic, before=True),
        Strategy(HTP, htp, _RUN),
        Strategy(FX_GRAPH, fx_graph, frozenset({Need.FX, Need.VALUES}), before=True),
        Strategy(USAGE_BASED, usage_based, _RUN, infers=False),
        Strategy(UNIVERSAL, universal, before=True, infers=False),
    )
}
ALL = "all"
NAMES = (*CATALOGUE, ALL)


def strategies_named(name: str) -> tuple[Strategy, ...]:
    """The strategies that a name stands for."""
    return tuple(CATALOGUE.values()) if name == ALL else (CATALOGUE[name],)
