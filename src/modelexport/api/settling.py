"""Calls of one module that names do not tell apart, told apart by values.

A call whose result nobody reads leaves nothing in the graph, and exporters that number calls then number what is left.
"""

from __future__ import annotations

from dataclasses import replace

from modelexport.record.evidence import Attribution, Confidence, EvidenceKind
from modelexport.record.provenance import Provenance


def undecided(provenance: Provenance) -> frozenset[str]:
    """Keys of nodes whose module the exporter names, and whose call is a guess."""
    return frozenset(key for key, entry in provenance.nodes.items() if _is_guess(entry.attribution))


def settled(provenance: Provenance, by_value: Provenance) -> Provenance:
    """The calls that values show, where the module is the same."""
    nodes = dict(provenance.nodes)
    for key in undecided(provenance):
        guess, shown = nodes[key].attribution, by_value.nodes[key].attribution
        same = {owner.path for owner in guess.owners} == {owner.path for owner in shown.owners}
        if same and shown.confidence >= Confidence.STRONG:
            evidence = (*guess.evidence, *shown.evidence)
            answer = replace(guess, owners=shown.owners, ancestor=shown.ancestor, evidence=evidence)
            nodes[key] = replace(nodes[key], attribution=replace(answer, confidence=Confidence.STRONG))
    return replace(provenance, nodes=nodes)


def _is_guess(attribution: Attribution) -> bool:
    named = any(item.kind is EvidenceKind.SCOPE for item in attribution.evidence)
    return named and attribution.confidence is Confidence.INFERRED
