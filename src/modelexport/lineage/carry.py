"""Carrying claims along links: a node belongs to the modules that its sources belonged to, and is never surer."""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.record.evidence import Claim, Evidence, EvidenceKind
from modelexport.record.lineage import Link, Relation


def carry(claims: Mapping[str, Claim], links: Mapping[str, Link], tool: str) -> dict[str, Claim]:
    """Claims for the graph after, from claims on the graph before."""
    carried: dict[str, Claim] = {}
    for key, link in links.items():
        sources = [claims[source] for source in link.sources if source in claims]
        if sources:
            carried[key] = _carried(sources, link.relation, tool)
    return carried


def _carried(sources: list[Claim], relation: Relation, tool: str) -> Claim:
    if relation is Relation.KEPT:
        return sources[0]
    owners = dict.fromkeys(owner for claim in sources for owner in claim.owners)
    evidence = dict.fromkeys(evidence for claim in sources for evidence in claim.evidence)
    lineage = Evidence(EvidenceKind.LINEAGE, tool, relation.value)
    confidence = min(claim.confidence for claim in sources)
    return Claim(tuple(owners), confidence, (*evidence, lineage), sources[0].strategy)
