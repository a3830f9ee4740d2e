"""Tables as Markdown."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Table:
    """One measurement. `holds` is False where a row misses its limit; `notes` are listed below the table."""

    title: str
    text: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    holds: bool = True
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        return f"## {self.title}\n\n{self.body()}\n"

    def body(self) -> str:
        """The text, the table and the notes, without the title."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join(part for part in (self.text, table, notes) if part)


def page(tables: Sequence[Table]) -> str:
    head = f"# Measured\n\nWritten by `make bench`; do not edit. Measured on {machine()}.\n"
    return "\n".join([head, *(table.markdown() for table in tables)])


def with_sections(text: str, tables: Sequence[Table]) -> str:
    """A page with some of its sections measured again; a section that it does not have yet comes last."""
    head, *sections = re.split(r"(?m)^(?=## )", text)
    kept = {section.splitlines()[0]: section.strip() for section in sections}
    kept.update({f"## {table.title}": table.markdown().strip() for table in tables})
    return "\n\n".join([head.strip(), *kept.values()]) + "\n"


def machine() -> str:
    """What the figures depend on."""
    tools = ("torch", "transformers", "onnx", "onnxruntime")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in tools)
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
