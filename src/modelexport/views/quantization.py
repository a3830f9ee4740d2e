"""What a quantizer made of a file, for people and for programs.

The keys of `quantization_json` are a promise: they keep to `record/schema/quantization.schema.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelexport.record.provenance import NodeEntry
from modelexport.record.verification import Verification
from modelexport.views.amounts import counted
from modelexport.views.lineage_summary import LineageSummary, lineage_json, lineage_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

QUANTIZATION_SCHEMA = 1


@dataclass(frozen=True)
class QuantizationSummary:
    lineage: LineageSummary
    excluded: tuple[NodeEntry, ...]
    included: tuple[NodeEntry, ...] | None
    notes: tuple[str, ...]
    report: Verification | None


def quantization_lines(summary: QuantizationSummary, *, verbose: bool = False) -> Iterator[RenderableType]:
    from modelexport.views.console import plain

    yield from lineage_lines(summary.lineage, verbose=verbose)
    if summary.excluded:
        yield plain(f"left in float as asked: {counted(len(summary.excluded), 'node')}")
    if summary.included is not None:
        yield plain(f"to be quantized, and nothing else: {counted(len(summary.included), 'node')}")
    for note in summary.notes:
        yield plain(f"note: {note}", "yellow")
    if summary.report is not None:
        from modelexport.views.verification_rows import Shown
        from modelexport.views.verification_tables import verification_tables

        yield plain("")
        yield from verification_tables(summary.report, Shown(by_loss=True, verbose=verbose))


def quantization_json(summary: QuantizationSummary) -> str:
    """The lineage and the report are as `relink` and `verify` write them."""
    from modelexport.views.verification_json import verification_json

    included = summary.included
    document = {
        "schema": QUANTIZATION_SCHEMA,
        "lineage": json.loads(lineage_json(summary.lineage)),
        "excluded": [_node(entry) for entry in summary.excluded],
        "included": None if included is None else [_node(entry) for entry in included],
        "notes": list(summary.notes),
        "report": None if summary.report is None else json.loads(verification_json(summary.report)),
    }
    return json.dumps(document, indent=1) + "\n"


def _node(entry: NodeEntry) -> dict[str, str | None]:
    return {"name": entry.name, "key": entry.key, "op_type": entry.op_type, "module": entry.attribution.module}
