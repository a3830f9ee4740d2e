"""An analysis as CSV: one row for each node."""

from __future__ import annotations

import csv
import io

from modelexport.analysis.facts import Analysis, NodeFacts
from modelexport.views.printable import cell

# New columns go behind the others: a reader may count them.
COLUMNS = ("name", "key", "op_type", "module", "modules", "tag", "confidence", "evidence", "reason", "role", "layer")


def analysis_csv(analysis: Analysis) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_row, analysis.nodes))
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
