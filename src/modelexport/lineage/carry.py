"""Carrying claims along links: a node belongs to the modules that its sources belonged to, and is never surer."""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.lineage import Link, Relation


def carry(claims: Mapping[str, Claim], links: Mapping[str, Link], tool: str) -> dict[str, Claim]:
    """Claims for the graph after, from claims on the graph before."""
    carried: dict[str, Claim] = {}
    for key, link in links.items():
        sources = [claims[source] for source in link.sources if source in claims]
        if sources:
            carried[key] = _carried(sources, link, tool)
    return carried


def _carried(sources: list[Claim], link: Link, tool: str) -> Claim:
    if link.relation is Relation.KEPT:
        return sources[0]
    owners = dict.fromkeys(owner for claim in sources for owner in claim.owners)
    lineage = Evidence(EvidenceKind.LINEAGE, tool, f"{link.relation} from {len(link.sources)}")
    # What a rewrite brought along nobody named, and a source that nobody knows may have been another module's.
    derived = link.relation is Relation.INTRODUCED or len(sources) < len(link.sources)
    confidence = min(*(claim.confidence for claim in sources), Confidence.STRONG if derived else Confidence.EXACT)
    return Claim(tuple(owners), confidence, (*_kinds(sources), lineage), sources[0].strategy)


def _kinds(sources: list[Claim]) -> tuple[Evidence, ...]:
    """One piece of evidence of each kind: a dozen details help nobody."""
    kept = {(evidence.kind, evidence.source): evidence for claim in reversed(sources) for evidence in claim.evidence}
    return tuple(sorted(kept.values()))
