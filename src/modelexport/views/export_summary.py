"""What an export gave, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.analysis.facts import Tally
from modelexport.record.check import OutputCheck
from modelexport.record.evidence import Confidence
from modelexport.record.provenance import Provenance
from modelexport.views.amounts import bytes_text, counted, share_text

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True)
class ExportSummary:
    """The parts of an export's result that are shown."""

    files: tuple[Path, ...]
    provenance: Provenance
    check: OutputCheck | None
    notes: tuple[str, ...]
    seconds: Mapping[str, float]

    @property
    def tally(self) -> Tally:
        return Tally.of(entry.attribution for entry in self.provenance.nodes.values())


def export_lines(summary: ExportSummary, *, verbose: bool = False) -> Iterator[Text]:
    from modelexport.views.console import plain

    for path in summary.files:
        yield plain(f"wrote {path} ({bytes_text(path.stat().st_size)})")
    yield plain(f"{counted(summary.tally.total, 'node')}: {confidences_text(summary.tally)}")
    if summary.check is not None:
        yield plain(_check(summary.check), "green" if summary.check.ok else "red")
    for note in summary.notes:
        yield plain(f"note: {note}", "yellow")
    if verbose:
        yield plain(", ".join(f"{step} {seconds:.1f} s" for step, seconds in summary.seconds.items()), "dim")


def export_json(summary: ExportSummary) -> str:
    tally, check, origin = summary.tally, summary.check, summary.provenance.origin
    document = {
        "schema": 1,
        "files": [str(path) for path in summary.files],
        "exporter": origin.exporter,
        "strategy": origin.strategy,
        "nodes": tally.total,
        "by_confidence": {level.label: count for level, count in tally.by_confidence.items()},
        "check": None if check is None else _check_document(check),
        "notes": list(summary.notes),
        "seconds": {step: round(seconds, 3) for step, seconds in summary.seconds.items()},
    }
    return json.dumps(document, indent=1) + "\n"


def _check_document(check: OutputCheck) -> dict[str, object]:
    return {
        "ok": check.ok,
        "max_abs_diff": _finite(check.max_abs_diff),
        "max_rel_diff": _finite(check.max_rel_diff),
        "message": check.message,
    }


def _finite(number: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return number if abs(number) < float("inf") else None


def confidences_text(tally: Tally) -> str:
    shown = [level for level in sorted(Confidence, reverse=True) if tally.by_confidence[level]]
    return ", ".join(
        f"{level.label} {tally.by_confidence[level]} ({share_text(tally.share(tally.by_confidence[level]))})"
        for level in shown
    )


def _check(check: OutputCheck) -> str:
    if check.ok:
        return f"outputs equal PyTorch's (largest difference {check.max_abs_diff:.1e})"
    return f"not as PyTorch: {check.message}"
