"""From the strategies that were chosen to one provenance."""

from __future__ import annotations

from dataclasses import dataclass, replace

from modelexport.api.attribute import Judged, Scene, judge
from modelexport.graph.edges import edges_of
from modelexport.record.evidence import Attribution, Claim, Confidence
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import Origin, Provenance
from modelexport.record.signals import Signals
from modelexport.resolve.merge import Agreement, agreement, disagreements
from modelexport.resolve.provenance import absent_modules, build_provenance
from modelexport.roles.assign import assign_roles
from modelexport.strategies.catalogue import ALL, CATALOGUE, Strategy, chosen
from modelexport.strategies.claims import by_initializer, by_node

_BY_VALUE = "htp"
# An optimizer misplaces a scope here and there; a file with more of them tells of another graph.
_TOO_MANY = 0.2


@dataclass(frozen=True)
class Verdict:
    """One answer for each node, what each strategy had said, and what to know about it."""

    provenance: Provenance
    judged: tuple[Judged, ...]
    notes: tuple[str, ...]


def decide(scene: Scene, origin: Origin) -> Verdict:
    """Judge by the strategy that `origin` names; its name in the result is that of the strategy that really judged."""
    strategies, notes = _able(chosen(origin.strategy), scene.signals)
    judged = tuple(judge(strategy, scene) for strategy in strategies)
    refuted = _refuted(judged, scene) if scene.foreign else []
    notes += tuple(f"{name} not heard: values contradict what is written in the file" for name in refuted)
    claims = [item.claims for item in judged if item.strategy not in refuted]
    used = origin.strategy if origin.strategy == ALL else strategies[0].name
    found = build_provenance(
        scene.graph, scene.hierarchy, by_node(*claims), by_initializer(*claims), replace(origin, strategy=used)
    )
    found = replace(found, absent=_absent(found, scene, judged), edges=edges_of(scene.graph))
    found = assign_roles(scene.graph, found)
    return Verdict(found, judged, (*notes, *_remarks(found, scene.signals, strategies)))


def _refuted(judged: tuple[Judged, ...], scene: Scene) -> list[str]:
    """Strategies that go by what a file says of itself, where values show that it says something else than is true."""
    known = next((item.claims.nodes for item in judged if item.strategy == _BY_VALUE), {})
    certain = {key: claim for key, claim in known.items() if claim.confidence is Confidence.EXACT}
    found: list[str] = []
    for item in judged:
        said = [(item.claims.nodes[key], claim) for key, claim in certain.items() if key in item.claims.nodes]
        false = sum(_contradicts(claim, fact, scene.hierarchy) for claim, fact in said)
        if CATALOGUE[item.strategy].before and false > _TOO_MANY * len(said):
            found.append(item.strategy)
    return found


def _contradicts(claim: Claim, fact: Claim, hierarchy: Hierarchy) -> bool:
    answer = Attribution(fact.owners, hierarchy.common_ancestor(fact.owners), fact.confidence)
    fewer = set(fact.owners) < set(claim.owners)
    return not fewer and agreement(claim, answer, hierarchy) is Agreement.OTHER


def _able(strategies: tuple[Strategy, ...], signals: Signals) -> tuple[tuple[Strategy, ...], tuple[str, ...]]:
    """The strategies that have what they need; where fx_graph alone was asked for and has not, htp takes its place."""
    if signals.trace_failure:
        kept = tuple(strategy for strategy in strategies if not strategy.needs)
        return kept, (f"judged without running the model again: {signals.trace_failure}",)
    fx = CATALOGUE["fx_graph"]
    if fx not in strategies or not signals.fx_failure:
        return strategies, ()
    note = f"fx_graph cannot trace this model ({signals.fx_failure})"
    if signals.scopes.fx_calls:
        return strategies, (f"{note}; the exporter's own FX nodes are used",)
    kept = tuple(strategy for strategy in strategies if strategy is not fx)
    return kept or (CATALOGUE["htp"],), (note if kept else f"{note}; attributed by htp",)


def _absent(found: Provenance, scene: Scene, judged: tuple[Judged, ...]) -> dict[str, str]:
    owned = {owner.path for entry in found.nodes.values() for owner in entry.attribution.owners}
    owned |= {owner.path for attribution in found.initializers.values() for owner in attribution.owners}
    before = next((item.owned_before for item in judged if item.owned_before is not None), None)
    return absent_modules(scene.hierarchy, owned, before)


def _remarks(found: Provenance, signals: Signals, strategies: tuple[Strategy, ...]) -> list[str]:
    remarks: list[str] = []
    if signals.values is not None and signals.values.failure and any(strategy.needs for strategy in strategies):
        remarks.append(f"{signals.values.failure}; judged by weights and order alone, one step less sure")
    entries = found.nodes.values()
    split = sum(1 for entry in entries if disagreements(entry.attribution, found.hierarchy))
    if split:
        remarks.append(f"strategies disagree on {split} of {len(found.nodes)} nodes")
    return remarks
