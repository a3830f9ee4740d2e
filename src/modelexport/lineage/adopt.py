"""Finding a place for modules that an exporter folded away.

TorchScript fuses and folds before anything can be seen, so a module can vanish with all its nodes. The same export with
folding switched off still shows them; following those nodes to where they went tells what the module became part of.
"""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
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
        givers = [claim for claim in sources if any(call.path in orphans for call in claim.owners)]
        if givers:
            claim = claims.get(key)
            if claim is None or claim.confidence is Confidence.INFERRED:
                # What dataflow guessed of a folded constant gives way to what it was computed by.
                claim = sources[0]
            added = [call for giver in givers for call in giver.owners if call.path in orphans]
            changed[key] = Claim(
                owners=tuple(dict.fromkeys((*claim.owners, *added))),
                confidence=min(Confidence.STRONG, *(item.confidence for item in (claim, *givers))),
                evidence=(*claim.evidence, Evidence(EvidenceKind.LINEAGE, tool, link.relation)),
                strategy=claim.strategy,
            )
    return changed
