"""Tables for spreadsheets: one row for each node of an analysis, or for each module call of a verification."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from modelexport.analysis.facts import Analysis, NodeFacts
from modelexport.record.verification import CallNumbers, Difference, Verification
from modelexport.views.printable import cell

# New columns go behind the others: a reader may count them.
COLUMNS = ("name", "key", "op_type", "module", "modules", "tag", "confidence", "evidence", "reason", "role", "layer")
_DIFFERENCE = ("max_abs", "max_rel", "sqnr", "cosine", "unlike", "agrees")
CALL_COLUMNS = (
    *("path", "call", "class", "status", "reason", "lost"),
    *(f"{side}_{name}" for side in ("in", "out") for name in _DIFFERENCE),
    "fused_with",
)


def analysis_csv(analysis: Analysis) -> str:
    return csv_text(COLUMNS, map(_row, analysis.nodes))


def verification_csv(verification: Verification) -> str:
    """Infinity is written `inf`. What was not compared is empty."""
    return csv_text(CALL_COLUMNS, map(_call, verification.calls))


def csv_text(columns: Sequence[str], rows: Iterable[list[str]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def _row(node: NodeFacts) -> list[str]:
    values = (
        node.name,
        node.key,
        node.op_type,
        node.module or "",
        ";".join(node.modules),
        node.tag,
        node.confidence.label,
        "; ".join(node.evidence),
        node.reason,
        node.role,
        "" if node.layer is None else str(node.layer),
    )
    return [cell(value) for value in values]


def _call(item: CallNumbers) -> list[str]:
    texts = cell(item.call.path), str(item.call.index), cell(item.class_name), item.status.value, cell(item.reason)
    fused_with = cell(";".join(map(str, item.fused_with)))
    return [*texts, str(item.lost), *_numbers(item.inputs), *_numbers(item.outputs), fused_with]


def _numbers(found: Difference | None) -> list[str]:
    """Numbers are no formulas, also with a minus sign before them."""
    if found is None:
        return [""] * len(_DIFFERENCE)
    numbers = found.max_abs, found.max_rel, found.sqnr, found.cosine, found.unlike
    return [*map(str, numbers), str(found.agrees).lower()]
