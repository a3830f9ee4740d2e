"""Tables and text on a terminal, in a pipe or in a file."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.record.evidence import Confidence
from modelexport.views.output import emit
from modelexport.views.printable import printable

_STYLES = {
    Confidence.EXACT: "green",
    Confidence.STRONG: "green",
    Confidence.INFERRED: "yellow",
    Confidence.FALLBACK: "red",
    Confidence.NONE: "red",
}

# Wide enough for whole tags: what is not a terminal has no width of its own.
_PIPE_WIDTH = 200


def show(parts: Iterable[RenderableType], path: Path | None = None) -> None:
    """Write tables and text to a file, or to standard output."""
    console = Console(highlight=False)
    if path is not None or not console.is_terminal:
        emit(as_text(parts), path)
        return
    for part in parts:
        console.print(part)


def as_text(parts: Iterable[RenderableType], width: int = _PIPE_WIDTH) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None, highlight=False)
    for part in parts:
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def plain(text: str, style: str = "") -> Text:
    """Text from a file: no markup in it is obeyed, no control character gets through."""
    return Text(printable(text), style=style)


def confidence_text(confidence: Confidence) -> Text:
    return Text(confidence.label, _STYLES[confidence])


def table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    """A table without lines; the columns named in `right` hold numbers."""
    numbers = set(right)
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in numbers else "left",
            no_wrap=column in numbers,
            overflow="fold",
            header_style="dim",
        )
    return made
