"""Tables of many rows: the layout that rich gives a table without lines, in a fraction of its time.

rich measures, pads, folds and crops every cell as a renderable of its own, which takes 0.5 ms for a row. A file of
40 KB can have 20,000 modules, and a large model has as many nodes: `analyze --format detailed` took 18 s for them.

    node                op       module          column widths   the widest cell of each column
    encoder.layer.0.at  MatMul   encoder.layer   too wide        the widest columns are cut to the next widest, until
    tention                      .0.attention                    the table fits; what is longer is folded

Cells that fit, or are one long word of ASCII, are laid out here; `Text.wrap` does the rest, so that lines are those of
rich. `tests/show/text/test_table_layout.py` holds them against `rich.table.Table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style, StyleType
from rich.table import Column, Table
from rich.text import Text

_GAP = 2  # blanks between columns
_NEW_LINE = Segment.line()
Cell = Text | str
CellLines = list[list[Segment]]


class PlainTable(Table):
    """Rows of text without lines between them. A cell that is no `Text` is taken as it is: no markup is obeyed."""

    def __init__(self, title: str = "", title_style: str = "") -> None:
        super().__init__(title=title, title_style=title_style)
        self._cells: list[tuple[Cell, ...]] = []

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """Cells that are missing at the end are blank. Kept here: rich asks of each what it is, for each column."""
        if style is not None or end_section:
            raise ValueError("rows have neither lines nor styles of their own")
        texts = tuple(cell if isinstance(cell, (Text, str)) else str(cell or "") for cell in cells)
        self._cells.append(texts + ("",) * (len(self.columns) - len(texts)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        header, *rows = self._collect_rows(console)
        widths = self._fit_columns([header, *rows], options.max_width)
        if self.title:
            title = Text(str(self.title), self.title_style or "")
            yield from console.render(title, options.update(width=max(1, sum(widths)), justify="left"))
        lay_out = partial(_lay_out_cell, console)
        gaps = self._gaps
        join = _join_styled if console.color_system else _join_plain
        join_fitting = _join_none if console.color_system else partial(_join_fitting, rights=self._rights)
        for row in (header, *rows):
            if line := join_fitting(row, widths, gaps):
                yield Segment(line)
                continue
            cells = list(map(lay_out, map(_as_text, row), self.columns, widths, gaps))
            # The last lines of headers stand above the first row.
            yield from join(_align_cells(cells, widths, from_below=row is header))

    @property
    def _gaps(self) -> list[int]:
        """Behind each column but the last."""
        return [*([_GAP] * (len(self.columns) - 1)), 0]

    @property
    def _rights(self) -> list[bool]:
        return [column.justify == "right" for column in self.columns]

    def _collect_rows(self, console: Console) -> list[tuple[Cell, ...]]:
        """The header first."""
        style = console.get_style(self.header_style or "")
        headers = [Text(str(column.header), style + console.get_style(column.header_style)) for column in self.columns]
        return [tuple(headers), *self._cells]

    def _fit_columns(self, rows: Sequence[Sequence[Cell]], most: int) -> list[int]:
        """Widths with the gaps: of the widest cells, or together as wide as `most`."""
        measured = (max(map(_measure, cells)) for cells in zip(*rows, strict=True))
        widths = [min(width + gap, most) or 1 for width, gap in zip(measured, self._gaps, strict=True)]
        foldable = [index for index, column in enumerate(self.columns) if not column.no_wrap]
        while sum(widths) > most and any(widths[index] for index in foldable):
            widest = max(widths[index] for index in foldable)
            next_widest = max((widths[index] for index in foldable if widths[index] < widest), default=0)
            _narrow(widths, [index for index in foldable if widths[index] == widest], most, widest - next_widest)
        if sum(widths) > most:
            _narrow(widths, range(len(widths)), most, most)
        return widths


def _as_text(cell: Cell) -> Text:
    return Text(cell) if isinstance(cell, str) else cell


def _as_plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.plain


def _measure(cell: Cell) -> int:
    plain = _as_plain(cell)
    return max(map(_count_cells, plain.splitlines()), default=0) if "\n" in plain else _count_cells(plain)


def _count_cells(plain: str) -> int:
    return len(plain) if plain.isascii() else cell_len(plain)


def _narrow(widths: list[int], columns: Sequence[int], most: int, step: int) -> None:
    """Take what is too much from these columns in equal parts, from each at most `step`."""
    excess = sum(widths) - most
    for count, index in zip(range(len(columns), 0, -1), columns, strict=True):
        taken = min(step, widths[index], round(excess / count))
        widths[index] -= taken
        excess -= taken


def _lay_out_cell(console: Console, text: Text, column: Column, width: int, gap: int) -> CellLines:
    """The lines of a cell, each as wide as its column."""
    plain, room = text.plain, max(0, width - gap)
    is_simple = plain.isascii() and plain.isprintable()
    if is_simple and not text.spans and (len(plain) <= room or (room and not column.no_wrap and " " not in plain)):
        style = console.get_style(text.style)
        starts = range(0, max(1, len(plain)), max(1, room))
        return [[_pad(plain[start : start + room], column, room, width, style)] for start in starts]
    if is_simple and len(plain) <= room and column.justify == "left":
        return [[*text.render(console), Segment(" " * (width - len(plain)))]]
    # Where a neighbour has taken all of the room, rich cannot wrap; what is made is cut off below.
    lines = text.wrap(console, max(1, room), justify=column.justify, overflow=column.overflow, no_wrap=column.no_wrap)
    return [Segment.adjust_line_length(list(line.render(console)), width) for line in lines]


def _pad(plain: str, column: Column, room: int, width: int, style: Style) -> Segment:
    line = plain.rstrip().rjust(room) if column.justify == "right" else plain
    return Segment(line.ljust(width), style)


def _align_cells(cells: Sequence[CellLines], widths: Sequence[int], *, from_below: bool) -> Sequence[CellLines]:
    """Blank lines where another cell of the row has more lines."""
    height = max(map(len, cells))
    for lines, width in zip(cells, widths, strict=True):
        if missing := height - len(lines):
            at = 0 if from_below else len(lines)
            lines[at:at] = [[Segment(" " * width)]] * missing
    return cells


def _join_fitting(
    row: Sequence[Cell], widths: Sequence[int], gaps: Sequence[int], rights: Sequence[bool]
) -> str | None:
    """The line of a row where nobody sees styles; None if something in it has to be folded.

    Most rows are such, and there may be 100,000 of them: segments would be two thirds of their time.
    """
    cells = []
    for cell, width, gap, is_right in zip(row, widths, gaps, rights, strict=True):
        plain = _as_plain(cell).rstrip() if is_right else _as_plain(cell)
        missing = width - gap - _count_cells(plain)
        if missing < 0 or not plain.isprintable():
            return None
        cells.append(f"{' ' * missing}{plain}{' ' * gap}" if is_right else f"{plain}{' ' * (missing + gap)}")
    return "".join((*cells, "\n"))


def _join_none(*_: object) -> None:
    """Styles are seen: each piece of a cell is a segment."""


def _join_styled(cells: Sequence[CellLines]) -> Iterator[Segment]:
    for line in zip(*cells, strict=True):
        yield from chain.from_iterable(line)
        yield _NEW_LINE


def _join_plain(cells: Sequence[CellLines]) -> Iterator[Segment]:
    """One segment for a row, where nobody sees styles."""
    lines = ("".join(segment.text for segment in chain.from_iterable(line)) for line in zip(*cells, strict=True))
    yield Segment("".join(f"{line}\n" for line in lines))
