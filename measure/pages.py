"""Markdown pages: tables, the line that says what wrote a page, and how a part of a page is measured again.

A section is a table with its text, under its title on a page that is measured as a whole:

    ## Start-up                    replace_sections puts another table here
    text, table, notes             and leaves the sections before and after it

or between comments on a page with text written by hand around its tables:

    <!-- measured: usage -->       fill_blocks replaces what is between the comments
    text, table, notes
    <!-- end -->
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure.results import installed_versions

MEASURED = Path(__file__).parents[1] / "docs" / "measured"


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


@dataclass(frozen=True)
class Tables:
    """What one measurement gives, by the names that its tables have on the page."""

    by_name: Mapping[str, Table]

    def to_json(self) -> dict[str, Any]:
        return {name: asdict(table) for name, table in self.by_name.items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Tables:
        return cls({name: read_table(table) for name, table in content.items()})


def read_table(content: Mapping[str, Any]) -> Table:
    """JSON has lists where a table has tuples."""
    return Table(
        title=content["title"],
        text=content["text"],
        columns=tuple(content["columns"]),
        rows=tuple(map(tuple, content["rows"])),
        holds=content["holds"],
        notes=tuple(content["notes"]),
    )


def compose_page(title: str, head: str, tables: Iterable[Table], *more: str) -> str:
    """A page that is measured as a whole: its title, what stands above the first section, and its sections."""
    return "\n".join([f"# {title}", "", f"{head}\n", *(table.markdown() for table in tables), *more])


def compose_blocks(title: str, head: str, tables: Mapping[str, Table]) -> str:
    """A page with a place for each table, for text to be written around them."""
    blocks = (f"## {table.title}\n\n<!-- measured: {name} -->\n<!-- end -->\n" for name, table in tables.items())
    return "\n".join([f"# {title}", "", f"{head}\n", *blocks])


def replace_sections(page: str, tables: Sequence[Table]) -> str:
    """A page with some of its sections measured again; a section that it does not have yet comes last."""
    head, *sections = re.split(r"(?m)^(?=## )", page)
    by_title = {section.splitlines()[0]: section.strip() for section in sections}
    by_title.update({f"## {table.title}": table.markdown().strip() for table in tables})
    return "\n\n".join([head.strip(), *by_title.values()]) + "\n"


def fill_blocks(page: str, blocks: Mapping[str, str]) -> str:
    """The page with each block put between its comments; a page without a place for one is an error."""
    for name, block in blocks.items():
        comments = re.compile(rf"(<!-- measured: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if len(comments.findall(page)) != 1:
            raise ValueError(f"the page needs one place for the table {name}")
        # A function, because a node's name may hold what `re` takes for a reference.
        page = comments.sub(lambda match, block=block: f"{match[1]}{block}\n{match[2]}", page)  # type: ignore[misc]
    return page


def write_page(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def written_by(name: str, circumstances: str) -> str:
    """The first line of every measured page. `circumstances` are what its figures depend on."""
    return f"Written by `make {name}` (`python -m measure {name}`) {circumstances}; do not edit."


def list_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{tool} {version}" for tool, version in versions.items())


def describe_machine() -> str:
    """What times depend on."""
    versions = list_versions(installed_versions(labels=True))
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def percent(share: float) -> str:
    """Rounded down: only all is 100."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f}"


def percent_of(count: int, total: int) -> str:
    """Rounded so that only all is 100 and only nothing is 0."""
    if not total:
        return "–"
    if count in (0, total):
        return "0" if not count else "100"
    return f"{min(max(100 * count / total, 0.1), 99.9):.1f}"
