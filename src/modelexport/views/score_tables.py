"""All strategies side by side, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from modelexport.analysis.scores import Dispute, Score, Scores
from modelexport.record.evidence import Claim, Confidence
from modelexport.views.amounts import counted, share_text
from modelexport.views.console import plain, table

SCORES_SCHEMA = 1
_SECOND_DIGITS = 3
_LEVELS = (Confidence.EXACT, Confidence.STRONG, Confidence.INFERRED)


def score_tables(scores: Scores) -> Iterator[RenderableType]:
    total = len(scores.provenance.nodes)
    yield plain(f"{scores.path}: {counted(total, 'node')}")
    levels = [level.label for level in _LEVELS]
    agreement = ["same", "less", "other"]
    shown = table("", "strategy", "nodes", "share", *levels, *agreement, "seconds", right=_numbers(levels, agreement))
    shown.title = None
    for score in scores.scores:
        shown.add_row(*_cells(score, total))
    yield shown
    yield Text("same, less, other: what the merged answer says, less than it, something else", "dim")
    yield Text(f"seconds are for judging; recording took {scores.recording:.1f} s for all of them together", "dim")
    yield from _disputes(scores)
    for note in scores.notes:
        yield plain(f"note: {note}", "yellow")


def scores_json(scores: Scores) -> str:
    document = {
        "schema": SCORES_SCHEMA,
        "file": scores.path,
        "nodes": len(scores.provenance.nodes),
        "recording_seconds": round(scores.recording, _SECOND_DIGITS),
        "strategies": [_score_document(score) for score in scores.scores],
        "disputes": [_dispute_document(dispute) for dispute in scores.disputes],
        "notes": list(scores.notes),
    }
    return json.dumps(document, indent=1) + "\n"


def _numbers(*columns: list[str]) -> list[str]:
    return ["nodes", "share", "seconds", *(name for names in columns for name in names)]


def _cells(score: Score, total: int) -> list[str]:
    counts = [score.by_confidence.get(level, 0) for level in _LEVELS]
    numbers = [*counts, score.same, score.less, score.other]
    share = share_text(score.attributed / total if total else 0.0)
    return [score.strategy, str(score.attributed), share, *map(str, numbers), f"{score.seconds:.2f}"]


def _disputes(scores: Scores) -> Iterator[RenderableType]:
    if not scores.disputes:
        yield Text("no strategy contradicts another", "green")
        return
    yield Text(f"\n{counted(len(scores.disputes), 'node')} on which strategies contradict each other", "bold")
    for dispute in scores.disputes:
        yield from _dispute(dispute)


def _dispute(dispute: Dispute) -> Iterator[RenderableType]:
    entry = dispute.entry
    answer = " + ".join(_path(path) for path in entry.attribution.modules)
    yield plain(f"{entry.name or entry.key} ({entry.op_type}): {answer}, {entry.attribution.confidence.label}")
    for claim in dispute.claims:
        yield plain(f"  {claim.strategy}: {_owners(claim)}, {claim.confidence.label} ({_why(claim)})", "dim")


def _owners(claim: Claim) -> str:
    return " + ".join(_path(str(owner)) for owner in claim.owners)


def _path(path: str) -> str:
    return path or "(model)"


def _why(claim: Claim) -> str:
    return "; ".join(map(str, claim.evidence))


def _score_document(score: Score) -> dict[str, Any]:
    return {
        "strategy": score.strategy,
        "attributed": score.attributed,
        "by_confidence": {level.label: score.by_confidence.get(level, 0) for level in reversed(Confidence) if level},
        "same": score.same,
        "less": score.less,
        "other": score.other,
        "seconds": round(score.seconds, _SECOND_DIGITS),
    }


def _dispute_document(dispute: Dispute) -> dict[str, Any]:
    entry = dispute.entry
    return {
        "name": entry.name,
        "key": entry.key,
        "op_type": entry.op_type,
        "modules": list(entry.attribution.modules),
        "confidence": entry.attribution.confidence.label,
        "claims": [
            {
                "strategy": claim.strategy,
                "modules": [str(owner) for owner in claim.owners],
                "confidence": claim.confidence.label,
                "evidence": [str(item) for item in claim.evidence],
            }
            for claim in dispute.claims
        ],
    }
