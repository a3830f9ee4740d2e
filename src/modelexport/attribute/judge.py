"""Attribution: signals -> claims -> one attribution for each node -> role. Read this file from top to bottom.

    signals (record/signals.py)      what was seen while the model ran and was exported
       │  run_strategy               each strategy (attribute/strategies.py) claims nodes and initializers for modules
       ▼
    claims                           "/encoder/fc/MatMul is encoder.fc's, EXACT, by its scope"
       │  resolve (resolve.py)       the most confident claims win, contradictions become the call around all of them
       ▼
    attributions
       │  assign_roles (roles/)      what a node is for: mlp.up, attention.query, norm
       ▼
    Provenance                       what is written into the file

An exporter's optimizer changes the graph after the scopes were written. Strategies that read what the exporter wrote
judge the graph from *before* the optimizer, and lineage carries their claims through it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from modelexport.attribute import dataflow
from modelexport.attribute.resolve import Agreement, agreement, build_provenance, disagreements, explain_absent_modules
from modelexport.attribute.roles.assign import assign_roles
from modelexport.attribute.strategies import (
    ALL,
    CATALOGUE,
    FX_GRAPH,
    HTP,
    GraphClaims,
    Strategy,
    claims_by_initializer,
    claims_by_node,
    strategies_named,
)
from modelexport.graph.index import MAIN, Graph, Node, edges_of
from modelexport.graph.related import are_scopes_refuted
from modelexport.lineage.descent import trace_lineage
from modelexport.lineage.inherit import carry_claims, claim_folded_modules
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.lineage import TORCH_OPTIMIZER, TORCHSCRIPT_FOLDING, Lineage, Relation
from modelexport.record.provenance import Attribution, Claim, Confidence, EvidenceKind, Origin, Provenance
from modelexport.record.signals import Signals


@dataclass(frozen=True)
class AttributionInput:
    """Everything that an attribution rests on.

    graph     the graph that is written
    before    the exporter's graph before its optimizer ran, where there is one
    recorded  what that optimizer was seen to make of it, as far as it was seen
    by_value  what values show of the graph that is written, where they were asked for what is guessed without them
    unfolded  makes the exporter's graph before folding, for an exporter that cannot show it otherwise
    foreign   somebody else made the graph, and may have optimized it
    """

    graph: Graph
    hierarchy: Hierarchy
    signals: Signals
    before: Graph | None = None
    recorded: Lineage | None = None
    unfolded: Callable[[], Graph] | None = None
    foreign: bool = False
    by_value: GraphClaims | None = None

    @cached_property
    def lineage(self) -> Lineage:
        assert self.before is not None
        if self.recorded is not None and all(node.key in self.recorded.nodes for node in self.graph.nodes):
            return self.recorded
        traced = trace_lineage(self.before, self.graph)
        if self.recorded is None:
            return traced
        # What was seen is certain; what came to be unseen (a copy of a value that is returned twice) is found out.
        return replace(self.recorded, nodes={**traced.nodes, **self.recorded.nodes})


@dataclass(frozen=True)
class StrategyResult:
    """What one strategy says of the written graph.

    owned_before  the modules that owned something before the exporter's optimizer ran, where that is known
    """

    strategy: str
    claims: GraphClaims
    seconds: float
    owned_before: set[str] | None = None


@dataclass(frozen=True)
class AttributionResult:
    """One answer for each node, what each strategy had said, and what to know about it."""

    provenance: Provenance
    judged: tuple[StrategyResult, ...]
    notes: tuple[str, ...]


def attribute_graph(case: AttributionInput, origin: Origin) -> AttributionResult:
    """Judge by the strategy that `origin` names; its name in the result is that of the strategy that really judged."""
    strategies, notes = _usable_strategies(strategies_named(origin.strategy), case.signals)
    judged = tuple(run_strategy(strategy, case) for strategy in strategies)
    refuted = _refuted_strategies(judged, case) if case.foreign else []
    notes += tuple(f"{name} not heard: values contradict what is written in the file" for name in refuted)
    claims = [result.claims for result in judged if result.strategy not in refuted]
    used = origin.strategy if origin.strategy == ALL else strategies[0].name
    nodes, weights = claims_by_node(*claims), claims_by_initializer(*claims)
    provenance = build_provenance(case.graph, case.hierarchy, nodes, weights, replace(origin, strategy=used))
    absent = _find_absent_modules(provenance, case, judged)
    provenance = assign_roles(case.graph, replace(provenance, absent=absent, edges=edges_of(case.graph)))
    return AttributionResult(provenance, judged, (*notes, *_remarks(provenance, case.signals, strategies)))


def _usable_strategies(
    strategies: tuple[Strategy, ...], signals: Signals
) -> tuple[tuple[Strategy, ...], tuple[str, ...]]:
    """The strategies that have what they need; where fx_graph alone was asked for and has not, htp takes its place."""
    if signals.trace_failure:
        kept = tuple(strategy for strategy in strategies if not strategy.needs)
        return kept, (f"judged without running the model again: {signals.trace_failure}",)
    fx = CATALOGUE[FX_GRAPH]
    if fx not in strategies or not signals.fx_failure:
        return strategies, ()
    note = f"fx_graph cannot trace this model ({signals.fx_failure})"
    if signals.scopes.fx_calls:
        return strategies, (f"{note}; the exporter's own FX nodes are used",)
    kept = tuple(strategy for strategy in strategies if strategy is not fx)
    return kept or (CATALOGUE[HTP],), (note if kept else f"{note}; attributed by htp",)


def run_strategy(strategy: Strategy, case: AttributionInput) -> StrategyResult:
    start = time.perf_counter()
    owned: set[str] | None = None
    if case.before is not None and _reads_exporter(strategy, case.signals):
        if case.before.fingerprint == case.graph.fingerprint:
            # The optimizer found nothing to do: every node is kept, and there is nothing to trace.
            claims = strategy.judge(case.before, case.hierarchy, case.signals)
            owned = _owner_paths(claims.nodes)
        else:
            claims, owned = _judge_before_optimizer(strategy, case, case.before)
    else:
        claims = strategy.judge(case.graph, case.hierarchy, case.signals)
        if case.unfolded is not None and strategy.infers and _reads_exporter(strategy, case.signals):
            claims, owned = _look_behind_folding(strategy, case, case.unfolded, claims)
    if case.by_value is not None and strategy.infers:
        claims = _replace_guesses(strategy, case, claims, case.by_value)
    if case.foreign and _reads_exporter(strategy, case.signals):
        # Optimizers leave a merged node with the scope of one of its sources: what is written there is not all.
        capped = {key: min(claim.confidence, Confidence.STRONG) for key, claim in claims.nodes.items()}
        nodes = {key: replace(claim, confidence=capped[key]) for key, claim in claims.nodes.items()}
        claims = GraphClaims(nodes, claims.initializers)
    return StrategyResult(strategy.name, claims, time.perf_counter() - start, owned)


def _reads_exporter(strategy: Strategy, signals: Signals) -> bool:
    """Whether a strategy rests on what the exporter wrote. FX claims do only if the exporter's FX nodes are known."""
    return strategy.before and (not strategy.needs or (signals.fx is None and bool(signals.scopes.fx_calls)))


def _judge_before_optimizer(strategy: Strategy, case: AttributionInput, before: Graph) -> tuple[GraphClaims, set[str]]:
    """Judge the graph before torch's optimizer, where the exporter is right, and carry the claims through it.

    before   Transpose (fc) ─► MatMul (fc)     after   MatMul (fc), reads a weight that was transposed in advance
    """
    graph, hierarchy, lineage = case.graph, case.hierarchy, case.lineage
    origin = strategy.judge(before, hierarchy, case.signals)
    nodes = carry_claims(origin.nodes, lineage.nodes, TORCH_OPTIMIZER)
    initializers = carry_claims(origin.nodes, lineage.initializers, TORCH_OPTIMIZER)
    initializers |= dataflow.claim_folded_parameters(initializers, _source_nodes(before, lineage), hierarchy)
    initializers |= dataflow.claim_named_initializers(graph, hierarchy, strategy.name)
    if strategy.infers:
        nodes |= dataflow.claim_by_dataflow(graph, hierarchy, nodes, strategy.name)
        initializers |= dataflow.claim_initializers_by_dataflow(graph, hierarchy, nodes, initializers, strategy.name)
    initializers |= _claim_shared_weights(case, lineage, nodes, initializers)
    return GraphClaims(nodes, initializers), _owner_paths(origin.nodes)


def _look_behind_folding(
    strategy: Strategy, case: AttributionInput, unfolded: Callable[[], Graph], claims: GraphClaims
) -> tuple[GraphClaims, set[str] | None]:
    """Where an exporter that folds before it can be seen hid a module, find out what it became part of."""
    orphans, sharing = find_orphans(case.hierarchy, claims), _find_sharing(case.hierarchy, claims)
    if not orphans and not sharing:
        return claims, None
    before = unfolded()  # exports once more: only where a module is missing
    origin = strategy.judge(before, case.hierarchy, Signals(scopes=case.signals.scopes))
    # torch names outputs anew in each export, after numbers of values: `8` of the one is `9` of the other.
    lineage = trace_lineage(before, case.graph, same_outputs=True)
    nodes, initializers = dict(claims.nodes), dict(claims.initializers)
    nodes |= claim_folded_modules(nodes, lineage.nodes, origin.nodes, orphans, TORCHSCRIPT_FOLDING)
    # Other calls have nodes of their own still: only what was fused into another module's node is known to be there.
    own = {key for key, claim in nodes.items() if any(call.path in sharing for call in claim.owners)}
    links = {key: link for key, link in lineage.nodes.items() if link.relation is Relation.FUSED and key not in own}
    nodes |= claim_folded_modules(nodes, links, origin.nodes, sharing, TORCHSCRIPT_FOLDING)
    initializers |= claim_folded_modules(initializers, lineage.initializers, origin.nodes, orphans, TORCHSCRIPT_FOLDING)
    initializers |= dataflow.claim_folded_parameters(initializers, _source_nodes(before, lineage), case.hierarchy)
    initializers |= _claim_shared_weights(case, lineage, nodes, initializers)
    return GraphClaims(nodes, initializers), _owner_paths(origin.nodes)


def find_orphans(hierarchy: Hierarchy, claims: GraphClaims) -> set[str]:
    """Modules with parameters or buffers that ran and own neither a node nor an initializer."""
    ran = {path for path in hierarchy.call_counts if hierarchy.modules[path].tensors}
    return ran - _owner_paths(claims.nodes) - _owner_paths(claims.initializers)


def _find_sharing(hierarchy: Hierarchy, claims: GraphClaims) -> set[str]:
    """Modules with parameters or buffers of which some calls own nodes, and others none.

    x ──► Conv (conv, and the first call of bn) ──► Relu ──► BatchNormalization (the second call of bn)
    """
    often = {path for path, count in hierarchy.call_counts.items() if count > 1 and hierarchy.modules[path].tensors}
    owning = {call for claim in claims.nodes.values() for call in claim.owners if call.path in often}
    counts = Counter(call.path for call in owning)
    return {path for path, count in counts.items() if count < hierarchy.call_counts[path]}


def _claim_shared_weights(
    case: AttributionInput, lineage: Lineage, nodes: Mapping[str, Claim], claims: Mapping[str, Claim]
) -> dict[str, Claim]:
    """Claims of weights that stand for more than one parameter: merged because they were equal, or fused."""
    graph, hierarchy, links = case.graph, case.hierarchy, lineage.nodes
    replaced = dataflow.claim_replaced_parameters(claims, lineage.stands_for, hierarchy)
    fused = {key: claim for key, claim in nodes.items() if key in links and links[key].relation is Relation.FUSED}
    weights = [name for name in graph.initializers if name in hierarchy.parameter_owners or name in lineage.stands_for]
    return replaced | dataflow.claim_absorbed_parameters(graph, hierarchy, {**claims, **replaced}, fused, weights)


def _source_nodes(before: Graph, lineage: Lineage) -> dict[str, list[Node]]:
    return {name: [before.by_key[key] for key in link.sources] for name, link in lineage.initializers.items()}


def _owner_paths(claims: Mapping[str, Claim]) -> set[str]:
    firm = [claim for claim in claims.values() if claim.confidence is not Confidence.NONE]
    return {call.path for claim in firm for call in claim.owners}


def _refuted_strategies(judged: tuple[StrategyResult, ...], case: AttributionInput) -> list[str]:
    """Strategies that go by what a file says of itself, where values show that it says something else than is true."""
    by_value = next((result.claims.nodes for result in judged if result.strategy == HTP), {})
    # Less than exact, the projection itself may be wrong.
    certain = {key: claim for key, claim in by_value.items() if claim.confidence is Confidence.EXACT}
    refuted: list[str] = []
    for result in judged:
        said = result.claims.nodes
        pairs = [(said[key], fact) for key, fact in certain.items() if key in said]
        contradictions = sum(_contradicts(claim, fact, case.hierarchy) for claim, fact in pairs)
        if CATALOGUE[result.strategy].before and are_scopes_refuted(contradictions, len(pairs)):
            refuted.append(result.strategy)
    return refuted


def _contradicts(claim: Claim, fact: Claim, hierarchy: Hierarchy) -> bool:
    answer = Attribution(fact.owners, hierarchy.common_ancestor(fact.owners), fact.confidence)
    # Of a fused node the value shows the last module; naming the others as well is right.
    fewer = set(fact.owners) < set(claim.owners)
    return not fewer and agreement(claim, answer, hierarchy) is Agreement.OTHER


def _find_absent_modules(
    provenance: Provenance, case: AttributionInput, judged: tuple[StrategyResult, ...]
) -> dict[str, str]:
    before = next((result.owned_before for result in judged if result.owned_before is not None), None)
    return explain_absent_modules(case.hierarchy, provenance.owning_paths, before)


def _remarks(provenance: Provenance, signals: Signals, strategies: tuple[Strategy, ...]) -> list[str]:
    remarks: list[str] = []
    if signals.values is not None and signals.values.failure and any(strategy.needs for strategy in strategies):
        remarks.append(f"{signals.values.failure}; judged by weights and order alone, one step less sure")
    entries = provenance.nodes.values()
    split = sum(1 for entry in entries if disagreements(entry.attribution, provenance.hierarchy))
    if split:
        remarks.append(f"strategies disagree on {split} of {len(entries)} nodes")
    return remarks


def find_guesses(graph: Graph, claims: Mapping[str, Claim]) -> frozenset[str]:
    """Keys of nodes that work on data or make tables, and of which only their neighbours tell whose they are.

    Constants and arithmetic on shapes belong to those that read them, and need no other witness. A table of positions
    may be made by whoever hands it to its readers. What is in functions goes with the nodes that call them.
    """
    nodes = (node for node in graph.nodes if node.graph == MAIN or node.graph in graph.body_owner)
    working = (node.key for node in nodes if node.key in graph.computed or node.key in graph.tables)
    return frozenset(key for key in working if key in claims and _is_guess(claims[key]))


def _is_guess(claim: Claim) -> bool:
    kinds = {item.kind for item in claim.evidence}
    return claim.confidence is Confidence.INFERRED and kinds <= {EvidenceKind.DATAFLOW, EvidenceKind.PARAMETER}


def _replace_guesses(
    strategy: Strategy, case: AttributionInput, claims: GraphClaims, shown: GraphClaims
) -> GraphClaims:
    """What values show in the place of guesses, and what follows from it for the guesses around.

    A scripted function leaves no scope:    MatMul (fc) ─► If (?) ─► MatMul (block.fc)     dataflow: If is the root's
                                            a call of `block` alone made what If makes     If, and its body, are block's
    """
    guesses = find_guesses(case.graph, claims.nodes)
    settled = {key: shown.nodes[key] for key in guesses if key in shown.nodes}
    settled = {key: replace(claim, strategy=strategy.name) for key, claim in settled.items() if _shows_module(claim)}
    settled = {
        key: claim for key, claim in settled.items() if _is_inside(key, claim, {**claims.nodes, **settled}, case)
    }
    # Whose weight somebody else was seen reading is not run, in another branch either.
    read = {path for key in settled for path in _read_modules(claims.nodes[key])}
    firm = {
        key: claim
        for key, claim in claims.nodes.items()
        if not _is_guess(claim)
        or (_tells_unseen(key, claim, shown.nodes, case) and read.isdisjoint(_read_modules(claim)))
    }
    known = firm | settled
    nodes = known | dataflow.claim_by_dataflow(case.graph, case.hierarchy, known, strategy.name)
    return GraphClaims(nodes, claims.initializers)


def _tells_unseen(key: str, claim: Claim, shown: Mapping[str, Claim], case: AttributionInput) -> bool:
    """Whether a weight tells whose a node of a body is that did not run: neither values nor a call will ever tell.

    cond(x.sum() > 0, self.a, self.b, (x,))    for an x whose sum is negative, `a` neither ran nor has values
    """
    kinds = {item.kind for item in shown[key].evidence} if key in shown else set()
    is_inside = case.graph.by_key[key].graph in case.graph.body_owner
    return is_inside and EvidenceKind.VALUE not in kinds and bool(_read_modules(claim))


def _read_modules(claim: Claim) -> list[str]:
    """Paths of the modules whose weights a claim rests on."""
    return [item.detail for item in claim.evidence if item.kind is EvidenceKind.PARAMETER]


def _is_inside(key: str, claim: Claim, claims: Mapping[str, Claim], case: AttributionInput) -> bool:
    """Whether the owners of a node in a body ran inside of the call that runs the body."""
    holder = next(case.graph.enclosing_nodes(case.graph.by_key[key]), None)
    if holder is None or holder.key not in claims:
        return True
    return all(case.hierarchy.ran_inside(owner, claims[holder.key].owners) for owner in claim.owners)


def _shows_module(claim: Claim) -> bool:
    return claim.confidence >= Confidence.STRONG and any(item.kind is EvidenceKind.VALUE for item in claim.evidence)


def find_ambiguous_calls(provenance: Provenance) -> frozenset[str]:
    """Keys of nodes whose module the exporter names, and whose call is a guess.

    A call whose result nobody reads leaves nothing in the graph, and exporters that number calls then number what is
    left: `/fc_1/MatMul` may be the second or the third call of `fc`.
    """
    answers = ((key, entry.attribution) for key, entry in provenance.nodes.items())
    guesses = ((key, answer) for key, answer in answers if answer.confidence is Confidence.INFERRED)
    return frozenset(key for key, guess in guesses if any(item.kind is EvidenceKind.SCOPE for item in guess.evidence))


def disambiguate_calls(provenance: Provenance, by_value: Provenance) -> Provenance:
    """The calls that values show in the place of guesses, where the module is the same."""
    nodes = dict(provenance.nodes)
    for key in find_ambiguous_calls(provenance):
        guess, shown = nodes[key].attribution, by_value.nodes[key].attribution
        same = {owner.path for owner in guess.owners} == {owner.path for owner in shown.owners}
        if same and shown.confidence >= Confidence.STRONG:
            evidence = (*guess.evidence, *shown.evidence)
            answer = replace(guess, owners=shown.owners, ancestor=shown.ancestor, evidence=evidence)
            nodes[key] = replace(nodes[key], attribution=replace(answer, confidence=Confidence.STRONG))
    return replace(provenance, nodes=nodes)
