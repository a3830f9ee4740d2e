"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """One measurement. `holds` is False where a row misses its limit."""

    title: str
    text: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    holds: bool = True

    def markdown(self) -> str:
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"## {self.title}\n\n{self.text}\n\n{body}\n"


def page(tables: Sequence[Table], machine: str) -> str:
    head = f"# Measured\n\nWritten by `make bench`; do not edit. Measured on {machine}.\n"
    return "\n".join([head, *(table.markdown() for table in tables)])
