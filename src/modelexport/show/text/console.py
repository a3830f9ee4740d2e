"""Text for people: where it goes, how tables look, how numbers are written.

    count_text(22_713_216)     22.7M
    bytes_text(90_868_376)     90.9 MB
    share_text(0.9999)         >99.9 %    100 % is said of everything only
    flops_text(9216·b·s²)      9.2 K·batch·sequence²

Text from a file goes through `plain`: no markup in it is obeyed, no control character reaches the terminal, and a name
of a megabyte is cut. What goes to a file appears complete or not at all.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, JustifyMethod, RenderableType
from rich.text import Text

from modelexport.errors import printable, shorten
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.limits import NAME_CHARACTERS
from modelexport.record.provenance import Confidence
from modelexport.show.text.table_layout import PlainTable

if TYPE_CHECKING:
    from modelexport.record.polynomial import Polynomial


def emit(text: str, path: Path | None = None, *, quiet: bool = False) -> None:
    """To a file atomically, because a report that is cut off looks like a complete one; then its name is told."""
    if path is None:
        sys.stdout.write(text)
        return
    from modelexport.graph.file.atomic import write_atomically

    write_atomically(path, text)
    sys.stderr.write("" if quiet else printable(f"wrote {path}") + "\n")


def ensure_targets(paths: Iterable[Path]) -> None:
    """Fail now if text cannot be written to all of these, each of them a file of its own."""
    from modelexport.graph.file.atomic import ensure_writable

    ensure_writable(*paths)


_SHOWN_OPERATORS = 5  # as many as fit beside a module tree of usual width
_BYTES = ("B", "KB", "MB", "GB", "TB")  # steps of 1000, as disks are sold
_COUNTS = ("", "K", "M", "B", "T")  # as parameters are counted: 7B


def count_text(number: int) -> str:
    return _scaled(number, _COUNTS, "")


def bytes_text(number: int) -> str:
    """As disks and downloads are measured: 1 KB is 1000 bytes."""
    return _scaled(number, _BYTES, " ")


def share_text(share: float) -> str:
    """A percentage that says 100 % only of everything and 0 % only of nothing."""
    percent = 100 * share
    if 99.95 <= percent < 100:
        return ">99.9 %"
    if 0 < percent < 0.05:
        return "<0.1 %"
    return f"{percent:.1f} %"


def operators_text(op_types: Mapping[str, int], limit: int = _SHOWN_OPERATORS) -> str:
    """`MatMul 3, Add, +1 more`: the most frequent first."""
    ordered = sorted(op_types.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} {count}" if count > 1 else name for name, count in ordered[:limit]]
    rest = len(ordered) - limit
    return ", ".join([*shown, f"+{rest} more"] if rest > 0 else shown)


def _scaled(number: int, units: tuple[str, ...], gap: str) -> str:
    """Three digits: `999`, `1.0K`, `22.7M`. Half of the last digit is rounded up before the unit is chosen."""
    value, step = float(number), 0
    while abs(value) >= 999.5 and step < len(units) - 1:
        value, step = value / 1000, step + 1
    digits = f"{value:.0f}" if step == 0 or abs(value) >= 99.95 else f"{value:.1f}"
    return f"{digits}{gap}{units[step]}".rstrip()


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def reasons_text(reasons: Mapping[str, int]) -> str:
    """A single reason needs no number."""
    if len(reasons) == 1:
        return next(iter(reasons))
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason}: {count}" for reason, count in ordered)


def modules_text(modules: Iterable[ModuleCall | str]) -> str:
    """Paths or calls of modules that share something; the path of the model itself is empty."""
    return " + ".join(str(module) or "(model)" for module in modules)


def decibels_text(number: float, digits: int = 0) -> str:
    """Never `-0`: less than half of the last digit is nothing."""
    return _not_finite(number) or f"{round(number, digits) + 0.0:.{digits}f}"


def difference_text(number: float) -> str:
    return _not_finite(number) or (f"{number:.1e}" if number else "0")


def cosine_text(number: float) -> str:
    return _not_finite(number) or f"{number:.6f}"


def _not_finite(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "" if math.isfinite(number) else "∞" if number > 0 else "-∞"


_FLOPS = ("", "K", "M", "G", "T", "P", "E")  # as FLOPs are counted: 7 G
_BYTES_PER_STEP = ("B", "KB", "MB", "GB", "TB", "PB")


def flops_text(size: Polynomial | None, most: int = 0) -> str:
    """`?` for what is not known, which is not 0."""
    return _text(size, _FLOPS, most)


def size_text(size: Polynomial | None, most: int = 0) -> str:
    return _text(size, _BYTES_PER_STEP, most)


def _text(size: Polynomial | None, units: tuple[str, ...], most: int) -> str:
    """`most`: so many terms, the first ones; 0 for all."""
    if size is None:
        return "?"
    if not size:
        return "0"
    from modelexport.record.polynomial import Polynomial

    shown = size.terms[:most] if most else size.terms
    texts = []
    for monomial, factor in shown:
        product, scaled = str(Polynomial(((monomial, 1),))), _scaled(factor, units, " ")
        # `batch`, not `1·batch`; but bytes keep their unit: `1 B·batch`.
        named = product if factor == 1 and not units[0] else f"{scaled}·{product}"
        texts.append(scaled if product == "1" else named)
    more = " + …" if len(shown) < len(size.terms) else ""
    return " + ".join(texts).replace("+ -", "- ") + more


_STYLES = {
    Confidence.EXACT: "green",
    Confidence.STRONG: "green",
    Confidence.INFERRED: "yellow",
    Confidence.FALLBACK: "red",
    Confidence.NONE: "red",
}

# Wide enough for whole tags: what is not a terminal has no width of its own.
_PIPE_WIDTH = 200


def show(parts: Iterable[RenderableType], path: Path | None = None, *, quiet: bool = False) -> None:
    console = Console(highlight=False)
    if path is not None or not console.is_terminal:
        emit(as_text(parts), path, quiet=quiet)
        return
    for part in parts:
        console.print(part)


def as_text(parts: Iterable[RenderableType], width: int = _PIPE_WIDTH) -> str:
    """Without colours, and without the blanks that rich fills lines up with."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None, highlight=False)
    for part in parts:
        console.print(part, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def plain(text: str, style: str = "") -> Text:
    """Text from a file: no markup in it is obeyed, no control character gets through, and no megabytes."""
    return Text(short_text(text), style=style)


def short_text(text: str) -> str:
    """Printable, and not longer than anybody reads."""
    return shorten(printable(shorten(text, NAME_CHARACTERS)), NAME_CHARACTERS)


def file_lines(files: Sequence[Path]) -> Iterator[Text]:
    return (plain(f"wrote {path} ({bytes_text(path.stat().st_size)})") for path in files)


def note_lines(notes: Iterable[str]) -> Iterator[Text]:
    """Yellow, because a note says what the result does not tell by itself."""
    return (plain(f"note: {note}", "yellow") for note in notes)


def seconds_line(seconds: Mapping[str, float]) -> Text:
    return plain(", ".join(f"{step} {time:.1f} s" for step, time in seconds.items()), "dim")


def confidence_text(confidence: Confidence) -> Text:
    return Text(confidence.label, _STYLES[confidence])


def table(title: str, *columns: str, right: Collection[str] = ()) -> PlainTable:
    """A table without lines; the columns named in `right` hold numbers."""
    built = PlainTable(title=title, title_style="bold")
    for column in columns:
        is_number = column in right
        justify: JustifyMethod = "right" if is_number else "left"
        # Folded: a tag that is cut off cannot be copied.
        built.add_column(column, justify=justify, no_wrap=is_number, overflow="fold", header_style="dim")
    return built


# Rows of a tree that anybody scrolls through: a model may have 100,000 modules side by side.
MOST_ROWS = 1000


def add_rest(shown: PlainTable, left: int) -> None:
    """Say how many rows of a table are left out."""
    if left > 0:
        shown.add_row(plain(f"… {left:,} more (all with --format detailed)", "dim"))


_WORDS = {
    # Steps of `Clock.step`; one without a line here is shown by its name.
    "load": "loading the model",
    "inputs": "making inputs",
    "trace": "running the model once",
    "export": "exporting",
    "attribute": "attributing nodes",
    "write": "writing",
    "check": "comparing outputs with PyTorch",
    "parameters": "comparing weights",
    "model": "running the model, every operator recorded",
    "file": "running the file and comparing its values",
    "proof": "proving attributions",
}


@contextmanager
def shown_progress() -> Iterator[Callable[[str], None]]:
    """A function to call with the name of each step; the step and the time since the start are shown."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    # On standard error: standard output may be a file or a pipe.
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda step: progress.update(task, description=printable(_WORDS.get(step, step)))
