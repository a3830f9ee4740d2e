"""Merging claims. The result does not depend on their order, and an agreeing claim never lowers confidence."""

from __future__ import annotations

from collections.abc import Iterable

from modelexport.record.evidence import Attribution, Claim, Evidence, unattributed
from modelexport.record.hierarchy import Hierarchy


def resolve(claims: Iterable[Claim], hierarchy: Hierarchy, reason: str = "no evidence names a module") -> Attribution:
    """One attribution: the best claim wins, claims that agree add their evidence, the others are kept as lost."""
    ranked = sorted((claim for claim in claims if claim.owners), key=_rank)
    if not ranked:
        return unattributed(reason)
    best = ranked[0]
    agreeing = [claim for claim in ranked if set(claim.owners) == set(best.owners)]
    owners = tuple(sorted(set(best.owners)))
    return Attribution(
        owners=owners,
        ancestor=hierarchy.common_ancestor(owners),
        confidence=max(claim.confidence for claim in agreeing),
        evidence=_all_evidence(agreeing),
        lost=tuple(claim for claim in ranked if claim not in agreeing),
    )


def _rank(claim: Claim) -> tuple[object, ...]:
    """Surest first; the rest only makes the order total."""
    return (-claim.confidence, claim.strategy, sorted(claim.owners), claim.evidence, claim.owners)


def _all_evidence(claims: Iterable[Claim]) -> tuple[Evidence, ...]:
    return tuple(dict.fromkeys(evidence for claim in claims for evidence in claim.evidence))
