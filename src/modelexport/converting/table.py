"""A table for spreadsheets: one row for each node of every graph. Edges are in it by the names of values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from modelexport.converting.draw import ATTRIBUTE
from modelexport.converting.drawing import Box, Drawing, Kind
from modelexport.converting.literals import fact_text
from modelexport.record.wording import cell

# New columns go behind the others: a reader may count them.
COLUMNS = (
    *("name", "key", "op_type", "domain", "graph", "module", "modules", "class", "tag", "role", "layer", "confidence"),
    *("evidence", "relation", "reason", "inputs", "outputs", "types", "attributes"),
)
# What a fact of the same name says.
_FACTS = frozenset(COLUMNS) - {"key", "graph", "inputs", "outputs", "types", "attributes"}


def table(drawing: Drawing) -> Iterator[str]:
    yield _line(COLUMNS)
    for box in drawing.boxes:
        if box.kind is Kind.OPERATOR:
            yield _line(map(cell, _row(box)))


def _row(box: Box) -> Iterator[str]:
    others = {
        "key": box.id,
        "graph": box.sheet,
        "inputs": "; ".join(port.value for port in box.inputs),
        "outputs": "; ".join(port.value for port in box.outputs),
        "types": "; ".join(f"{port.dtype}{port.shape}" for port in box.outputs),
        "attributes": "; ".join(
            f"{name.removeprefix(ATTRIBUTE)}={fact_text(fact)}"
            for name, fact in box.facts.items()
            if name.startswith(ATTRIBUTE)
        ),
    }
    for column in COLUMNS:
        yield fact_text(box.facts.get(column, "")) if column in _FACTS else others[column]


def _line(cells: Iterator[str] | tuple[str, ...]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
