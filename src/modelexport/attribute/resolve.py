"""Resolution: claims of different strategies become one attribution. The one place with opinions.

The most confident claims decide. Among them a claim that says all that another one says, and more, is the better of the
two: it names a module inside of the other's, or further modules of a fused node. Where claims that contradict each
other remain, the answer is the innermost call that encloses all of them, one level less confident. Every claim that is
not the answer is kept as lost. The result does not depend on the order of the claims, and an agreeing claim never
lowers confidence.

    encoder (EXACT), encoder.fc (EXACT)      ->  encoder.fc, EXACT: says more
    encoder.fc (EXACT), encoder.act (EXACT)  ->  encoder, STRONG: the call around both
    fc (EXACT), fc#0 and fc#1 (INFERRED)     ->  fc, EXACT; the other claim is lost
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache

from modelexport.graph.index import Graph
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import (
    Attribution,
    Claim,
    Confidence,
    Evidence,
    NodeEntry,
    Origin,
    Provenance,
    unattributed,
)

_Owners = frozenset[ModuleCall]
_Claims = Mapping[str, Sequence[Claim]]


def resolve(claims: Iterable[Claim], hierarchy: Hierarchy, reason: str = "no evidence names a module") -> Attribution:
    """One attribution: claims that agree with the answer add their evidence, the others are kept as lost."""
    ranked = sorted({claim for claim in claims if claim.owners}, key=_rank)
    if not ranked:
        return unattributed(reason)
    top = ranked[0].confidence
    best = _most_specific({frozenset(claim.owners) for claim in ranked if claim.confidence == top}, hierarchy)
    if len(best) > 1:
        return _compromise(best, top, ranked, hierarchy)
    owners = next(iter(best))
    narrowed = _narrow_calls(owners, ranked, hierarchy)
    if narrowed is None:
        return _answer(owners, top, ranked, hierarchy)
    # The module is as certain as before; which of its calls it was follows from a less confident claim.
    return _answer(narrowed, min(top, Confidence.STRONG), ranked, hierarchy)


class Agreement(StrEnum):
    SAME = "same"
    LESS = "less"
    OTHER = "other"


def agreement(claim: Claim, attribution: Attribution, hierarchy: Hierarchy) -> Agreement:
    """Whether a claim says the same as the answer, less (a module around it, fewer owners), or something else."""
    said, answer = frozenset(claim.owners), frozenset(attribution.owners)
    if said == answer:
        return Agreement.SAME
    less = _covers(answer, said, hierarchy) or _narrows(answer, said, hierarchy)
    return Agreement.LESS if less else Agreement.OTHER


def disagreements(attribution: Attribution, hierarchy: Hierarchy) -> tuple[Claim, ...]:
    """The lost claims that contradict the answer: those that say something which the answer does not say as well."""
    return tuple(claim for claim in attribution.lost if agreement(claim, attribution, hierarchy) is Agreement.OTHER)


def _most_specific(candidates: set[_Owners], hierarchy: Hierarchy) -> set[_Owners]:
    if len(candidates) == 1:
        return candidates
    vaguer = {owners for owners in candidates if any(_says_more_than(rival, owners, hierarchy) for rival in candidates)}
    return candidates - vaguer or candidates


def _says_more_than(a: _Owners, b: _Owners, hierarchy: Hierarchy) -> bool:
    if _narrows(a, b, hierarchy) or _narrows(b, a, hierarchy):
        return a < b
    return _covers(a, b, hierarchy) and (a > b or not _covers(b, a, hierarchy))


def _covers(a: _Owners, b: _Owners, hierarchy: Hierarchy) -> bool:
    """Whether each owner in `b` is in `a` too, itself or by a call that was made inside of it."""
    reached = {call for owner in a for call in hierarchy.stack(owner)}
    return b <= reached


def _narrows(a: _Owners, b: _Owners, hierarchy: Hierarchy) -> bool:
    """Whether `b` has the calls in `a` and more of the same modules: it says less, as it could not tell them apart."""
    if not (a < b and {owner.path for owner in a} == {owner.path for owner in b}):
        return False
    # A module that calls itself is inside of its own call; then both calls may be meant.
    return not any(b & set(hierarchy.stack(owner)[:-1]) for owner in b)


def _narrow_calls(owners: _Owners, ranked: list[Claim], hierarchy: Hierarchy) -> _Owners | None:
    """Of calls that the answer could not tell apart, those that the most confident claim which could names."""
    narrower = [claim for claim in ranked if _narrows(frozenset(claim.owners), owners, hierarchy)]
    best = {frozenset(claim.owners) for claim in narrower if claim.confidence == narrower[0].confidence}
    return next(iter(best)) if len(best) == 1 else None


def _compromise(best: set[_Owners], top: Confidence, ranked: list[Claim], hierarchy: Hierarchy) -> Attribution:
    """The call around all of the contradicting claims. They are lost, but the answer rests on their evidence."""
    ancestor = hierarchy.common_ancestor(owner for owners in best for owner in owners)
    if ancestor is None:
        return replace(unattributed("claims contradict each other and no call encloses them"), lost=tuple(ranked))
    lower = Confidence(max(top - 1, min(top, Confidence.FALLBACK)))
    answer = _answer(frozenset({ancestor}), lower, ranked, hierarchy)
    contradicting = [claim for claim in ranked if claim.confidence == top and frozenset(claim.owners) in best]
    return replace(answer, evidence=tuple(dict.fromkeys((*answer.evidence, *_all_evidence(contradicting)))))


def _answer(owners: _Owners, confidence: Confidence, ranked: list[Claim], hierarchy: Hierarchy) -> Attribution:
    agreeing = [claim for claim in ranked if frozenset(claim.owners) == owners]
    return Attribution(
        owners=tuple(sorted(owners)),
        ancestor=hierarchy.common_ancestor(owners),
        confidence=confidence,
        evidence=_all_evidence(agreeing),
        lost=tuple(claim for claim in ranked if claim not in agreeing),
    )


def _rank(claim: Claim) -> tuple[object, ...]:
    """Most confident first; the rest only makes the order total."""
    return (-claim.confidence, claim.strategy, sorted(claim.owners), claim.evidence, claim.owners)


def _all_evidence(claims: Iterable[Claim]) -> tuple[Evidence, ...]:
    return tuple(dict.fromkeys(evidence for claim in claims for evidence in claim.evidence))


def build_provenance(
    graph: Graph, hierarchy: Hierarchy, nodes: _Claims, initializers: _Claims, origin: Origin
) -> Provenance:
    """One attribution for every node and initializer of the graph, from all claims on it."""

    @cache
    def answer(claims: tuple[Claim, ...]) -> Attribution:
        # Most nodes of a module share their claims, and then one attribution.
        return resolve(claims, hierarchy, "not connected to any node with a known module")

    answers = {node: answer(tuple(nodes.get(node.key, ()))) for node in graph.nodes}
    entries = {node.key: NodeEntry(node.key, node.name, node.op_type, answers[node]) for node in graph.nodes}
    owners = {name: answer(tuple(initializers.get(name, ()))) for name in graph.initializers}
    return Provenance(hierarchy, entries, owners, origin)


def explain_absent_modules(hierarchy: Hierarchy, owned: set[str], owned_before: set[str] | None) -> dict[str, str]:
    """Executed modules that own nothing in the graph, and why. `owned_before`: owners before the optimizer."""
    absent = [path for path in hierarchy.call_counts if path not in owned]
    return {path: _reason_absent(hierarchy, path, owned, owned_before) for path in absent}


def _reason_absent(hierarchy: Hierarchy, path: str, owned: set[str], owned_before: set[str] | None) -> str:
    if owned_before is not None and path in owned_before:
        return "the operators that it issues itself were removed by the exporter's optimizer, or became constants"
    prefix = f"{path}." if path else ""
    if any(owner.startswith(prefix) for owner in owned if owner != path):
        return "the modules inside of it issue all of its operators"
    if any(tensor.size for tensor in hierarchy.modules[path].parameters):
        return "the operators that it issues itself were removed by the exporter, or became constants"
    if owned_before is None:
        return "no operator of it is in the graph: it issues none when evaluated, or the exporter shared or removed it"
    return "no operator names it: it issues none when evaluated, or runs where the exporter does not look"
