"""Strategies: the ways to claim the nodes of a graph for module calls, in one catalogue.

    name               rests on                                       says nothing of
    enhanced_semantic  what the exporter wrote, then dataflow         (default)
    htp                a run of the model, projected on the graph     nodes without values or weights to match
    fx_graph           the module stacks of torch.export's FX nodes   models that FX cannot trace
    usage_based        weights that one call alone put to use         whatever is not certain
    universal          what the exporter wrote, and nothing else      whatever the exporter leaves open

A strategy is a function `(graph, hierarchy, signals) -> GraphClaims`. It decides nothing: claims may contradict those
of other strategies, and `resolve.py` is the one place with opinions. It reads the graph and the recorded signals, never
the PyTorch model.

To add one: write the function here (evidence of a new kind has a file of its own, as `scopes.py` or `projection.py`),
and a line in the literal at the end of this file. It says what must be recorded for the strategy (`Need`), and whether
it reads what the exporter wrote. The command line, `compare` and `make strategies` take it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from modelexport.attribute import dataflow
from modelexport.attribute.matched_values import MatchedRun, find_weight_uses
from modelexport.attribute.projection import project
from modelexport.attribute.scopes import (
    claim_dynamo_scopes,
    claim_same_fx_nodes,
    claim_torchscript_scopes,
    dynamo_calls,
    fx_node,
    mend_lost_scopes,
    torchscript_calls,
)
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.signals import Signals, Trace

ENHANCED_SEMANTIC, HTP, FX_GRAPH = "enhanced_semantic", "htp", "fx_graph"
USAGE_BASED, UNIVERSAL, ALL = "usage_based", "universal", "all"

# Where two sides of a node meet more than one call, or none.
_SEVERAL = ModuleCall("", -1)


@dataclass(frozen=True)
class GraphClaims:
    """What a strategy says of one graph: at most one claim for each node and for each initializer."""

    nodes: Mapping[str, Claim]
    initializers: Mapping[str, Claim]


def claims_by_node(*results: GraphClaims) -> dict[str, tuple[Claim, ...]]:
    return _group_by_key(claims.nodes for claims in results)


def claims_by_initializer(*results: GraphClaims) -> dict[str, tuple[Claim, ...]]:
    return _group_by_key(claims.initializers for claims in results)


def _group_by_key(results: Iterable[Mapping[str, Claim]]) -> dict[str, tuple[Claim, ...]]:
    groups: dict[str, tuple[Claim, ...]] = {}
    for claims in results:
        for key, claim in claims.items():
            groups[key] = (*groups.get(key, ()), claim)
    return groups


def universal(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    """Scopes of the exporter that can only mean one module: no dataflow, no order of nodes, no weights."""
    nodes = _claim_scopes("torchscript", torchscript_calls(graph, hierarchy, signals.scopes.parts))
    nodes |= _claim_scopes("dynamo", dynamo_calls(graph, hierarchy, signals.scopes))
    return GraphClaims(nodes, dataflow.claim_named_initializers(graph, hierarchy, UNIVERSAL))


def _claim_scopes(exporter: str, calls_by_node: Mapping[Node, tuple[ModuleCall, ...]]) -> dict[str, Claim]:
    claims: dict[str, Claim] = {}
    for node, calls in calls_by_node.items():
        if len({call.path for call in calls}) == 1:
            is_one = len(calls) == 1
            evidence = Evidence(EvidenceKind.SCOPE, exporter, "" if is_one else "calls not told apart")
            confidence = Confidence.EXACT if is_one else Confidence.STRONG
            claims[node.key] = Claim(calls, confidence, (evidence,), UNIVERSAL)
    return claims


def enhanced_semantic(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    """The default: what the exporter wrote about its own nodes, then dataflow for what it did not."""
    scopes = signals.scopes
    named = claim_torchscript_scopes(graph, hierarchy, ENHANCED_SEMANTIC, scopes.parts)
    named |= claim_dynamo_scopes(graph, hierarchy, scopes, ENHANCED_SEMANTIC)
    nodes = named | mend_lost_scopes(graph, hierarchy, named, ENHANCED_SEMANTIC)
    unnamed = [node for node in graph.nodes if node.key not in nodes]
    nodes |= dataflow.claim_parameter_readers(hierarchy, unnamed, ENHANCED_SEMANTIC)
    nodes |= claim_same_fx_nodes(graph, nodes, ENHANCED_SEMANTIC)
    return _complete_by_dataflow(graph, hierarchy, nodes, ENHANCED_SEMANTIC)


def _complete_by_dataflow(graph: Graph, hierarchy: Hierarchy, nodes: dict[str, Claim], strategy: str) -> GraphClaims:
    """Claims of nodes, with what follows from them for their neighbours, and initializers by name."""
    nodes = nodes | dataflow.claim_by_dataflow(graph, hierarchy, nodes, strategy)
    initializers = dataflow.claim_named_initializers(graph, hierarchy, strategy)
    initializers |= dataflow.claim_initializers_by_dataflow(graph, hierarchy, nodes, initializers, strategy)
    return GraphClaims(nodes, initializers)


def htp(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    """Hierarchical trace and project: evidence of its own, for any exporter's file, as it reads no name or metadata."""
    if signals.trace is None or signals.values is None:
        return GraphClaims({}, {})
    return claim_by_projection(graph, hierarchy, signals, signals.trace, HTP)


def claim_by_projection(
    graph: Graph, hierarchy: Hierarchy, signals: Signals, trace: Trace, strategy: str
) -> GraphClaims:
    assert signals.values is not None
    nodes = project(graph, hierarchy, trace, signals.values, strategy)
    nodes |= dataflow.claim_by_dataflow(graph, hierarchy, nodes, strategy)
    initializers = dataflow.claim_weights_by_content(graph, hierarchy, trace, signals.values, strategy)
    initializers |= dataflow.claim_initializers_by_dataflow(graph, hierarchy, nodes, initializers, strategy)
    return GraphClaims(nodes, initializers)


def fx_graph(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    """The module stack that FX keeps with every node (`nn_module_stack`).

    Dynamo's exporter makes its ONNX nodes from the FX nodes of torch.export and says of which: those are exact, with
    the number of the call. On any other graph the FX program is run like the model (`signals.fx`), and projected.
    https://docs.pytorch.org/docs/stable/export.html
    """
    if signals.fx is not None and signals.values is not None:
        return claim_by_projection(graph, hierarchy, signals, signals.fx, FX_GRAPH)
    calls = signals.scopes.fx_calls
    names = {node.key: fx_node(node) for node in graph.nodes if node.graph == MAIN}
    nodes = {
        key: Claim((calls[name],), Confidence.EXACT, (Evidence(EvidenceKind.FX, "torch.export", name),), FX_GRAPH)
        for key, name in names.items()
        if name in calls
    }
    return _complete_by_dataflow(graph, hierarchy, nodes, FX_GRAPH)


def usage_based(graph: Graph, hierarchy: Hierarchy, signals: Signals) -> GraphClaims:
    """Only what is certain: a missing claim is no fault, a wrong one is.

    A node that reads a weight belongs to the one call that put this weight to use in the run, if the operator that did
    can become such a node. What lies wholly between nodes of one call that called nothing else belongs to that call:

        MatMul (reads fc.weight) ─► Reshape ─► Add (reads fc.bias)      Reshape is fc's as well
    """
    if signals.trace is None or signals.values is None:
        return GraphClaims({}, {})
    matched = MatchedRun(graph, signals.trace, signals.values)
    users = _calls_using_weights(matched)
    nodes = {key: _claim_usage(call, EvidenceKind.PARAMETER, "used by") for key, call in users.items()}
    # Leaf calls: those from inside of which no other call was made.
    parents = {site.parent for site in hierarchy.calls}
    inside = _enclosed_nodes(graph, users, {site.call for site in hierarchy.calls} - parents)
    nodes |= {key: _claim_usage(call, EvidenceKind.DATAFLOW, "inside") for key, call in inside.items()}
    weights = dataflow.claim_weights_by_content(graph, hierarchy, signals.trace, signals.values, USAGE_BASED)
    return GraphClaims(nodes, weights)


def _claim_usage(call: ModuleCall, kind: EvidenceKind, how: str) -> Claim:
    return Claim((call,), Confidence.EXACT, (Evidence(kind, how),), USAGE_BASED)


def _calls_using_weights(matched: MatchedRun) -> dict[str, ModuleCall]:
    trace = matched.trace
    # Constants of the run count too: one of these may hold the same as a weight.
    constants = {str(number): number for number in range(len(trace.values)) if number not in matched.from_data}
    uses = find_weight_uses(replace(trace, tensors=constants)) | find_weight_uses(trace)
    users: dict[str, ModuleCall] = {}
    for node in matched.nodes:
        # That a constant of few different numbers is a weight may be an accident: exporters keep equal ones once.
        # What rearranges a weight for somebody else is used by that one: its result tells, too.
        rearranged = () if node.key in matched.graph.computed else node.outputs
        distinctive = [name for name in (*node.inputs, *rearranged) if matched.is_distinctive(name)]
        # A weight into which another module's was folded is nearly the same, and not that one's alone.
        copied = [name for name in distinctive if matched.is_copy(name)]
        op_indices = {index for name in copied for index in matched.users_of(name, uses)}
        calls = matched.calls(op_indices)
        if len(calls) == 1 and any(_becomes(node, index, matched) for index in op_indices):
            users[node.key] = calls.pop()
    return users


def _becomes(node: Node, op_index: int, matched: MatchedRun) -> bool:
    """Unlike elsewhere, an operator that no exporter knows becomes nothing."""
    op = matched.trace.ops[op_index]
    return any(node.op_type in matched.trace.operators.get(name, ()) for name in (op.name, op.function))


def _enclosed_nodes(graph: Graph, users: Mapping[str, ModuleCall], leaves: set[ModuleCall]) -> dict[str, ModuleCall]:
    """Nodes that lie between nodes of one leaf call alone, on both sides."""
    above = _nearest_user(graph.nodes, graph.predecessors, users)
    below = _nearest_user(reversed(graph.nodes), graph.successors, users)
    both = ((key, call) for key, call in above.items() if call == below.get(key) and call in leaves)
    return {key: call for key, call in both if key in graph.computed}


def _nearest_user(
    nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]], users: Mapping[str, ModuleCall]
) -> dict[str, ModuleCall]:
    """For each node that is not a user's, the one call that all ways in a direction first meet."""
    nearest: dict[str, ModuleCall] = {}
    for node in nodes:
        if node.key not in users:
            met = [users.get(near.key) or nearest.get(near.key, _SEVERAL) for near in neighbours(node)]
            nearest[node.key] = met[0] if met and all(call == met[0] for call in met) else _SEVERAL
    return {key: call for key, call in nearest.items() if call != _SEVERAL}


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

# In the order of every table. It does not weigh claims: `resolve` goes by confidence.
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
NAMES = (*CATALOGUE, ALL)


def strategies_named(name: str) -> tuple[Strategy, ...]:
    return tuple(CATALOGUE.values()) if name == ALL else (CATALOGUE[name],)
