"""What values say about attributions, for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from modelexport.record.verification import AttributionProof, Verdict
from modelexport.views.amounts import calls_text, reasons_text, share_text
from modelexport.views.console import plain, table

_LISTED = 20


def proof_tables(proof: AttributionProof, everything: bool) -> Iterator[RenderableType]:
    yield _counts_line(proof)
    if proof.compute:
        share = share_text(proof.compute_shown / proof.compute)
        yield Text(
            f"  of {proof.compute:,} nodes that compute floats from the inputs, "
            f"{proof.compute_shown:,} are proved or enclosed ({share})",
            "dim",
        )
    if not proof.contradicted:
        return
    listed = proof.contradicted if everything else proof.contradicted[:_LISTED]
    made = table("Contradicted", "node", "operator", "credited to", "values say", "why")
    for node in listed:
        made.add_row(
            plain(node.name or node.key),
            plain(node.op_type, "cyan"),
            plain(calls_text(node.claimed)),
            plain(calls_text(node.issued), "red"),
            plain(node.reason, "dim"),
        )
    yield Text()
    yield made
    if len(proof.contradicted) > len(listed):
        yield Text(f"… and {len(proof.contradicted) - len(listed)} more (--all)", "dim")
    yield Text()


def _counts_line(proof: AttributionProof) -> Text:
    counts = proof.counts
    reasons = f" ({reasons_text(proof.reasons)})" if proof.reasons else ""
    parts = [
        f"attribution: {len(proof.nodes):,} {'node' if len(proof.nodes) == 1 else 'nodes'}",
        f"{counts[Verdict.PROVED]:,} proved by value",
        f"{counts[Verdict.ENCLOSED]:,} enclosed",
        f"{counts[Verdict.NOT_PROVABLE]:,} not provable{reasons}",
    ]
    if counts[Verdict.UNATTRIBUTED]:
        parts.append(f"{counts[Verdict.UNATTRIBUTED]:,} unattributed")
    contradicted = counts[Verdict.CONTRADICTED]
    line = plain(" · ".join(parts)).append(" · ")
    return line.append(f"{contradicted:,} contradicted", "bold red" if contradicted else "green")
