"""Finding a place for modules that an exporter folded away.

TorchScript fuses and folds before anything can be seen, so a module can vanish with all its nodes. The same export with
folding switched off still shows them; following those nodes to where they went tells what the module became part of.
"""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.lineage import Link


def adopt(
    claims: Mapping[str, Claim],
    links: Mapping[str, Link],
    before: Mapping[str, Claim],
    orphans: set[str],
    tool: str,
) -> dict[str, Claim]:
    """Claims of nodes (or initializers) that orphaned modules have become part of, with those added as owners."""
    changed: dict[str, Claim] = {}
    for key, link in links.items():
        sources = [before[source] for source in link.sources if source in before]
        added = [call for claim in sources for call in claim.owners if call.path in orphans]
        if added:
            changed[key] = _with_owners(
                claims.get(key), added, sources, Evidence(EvidenceKind.LINEAGE, tool, link.relation)
            )
    return changed


def _with_owners(claim: Claim | None, added: list[ModuleCall], sources: list[Claim], lineage: Evidence) -> Claim:
    if claim is None or claim.confidence is Confidence.INFERRED:
        # What dataflow guessed of a folded constant gives way to what it was computed by.
        claim = sources[0]
    owners = tuple(dict.fromkeys((*claim.owners, *added)))
    return Claim(owners, min(claim.confidence, Confidence.STRONG), (*claim.evidence, lineage), claim.strategy)
