"""Tables of the terminal: the lines of rich, in time that grows with the rows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from random import Random

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from modelexport.show.text.console import as_text, plain, table
from modelexport.show.text.table_layout import PlainTable

_WORDS = (
    "encoder.layer.0", "MatMul", "", "a b  c", "  led by blanks", "x" * 90, "注意力の重み", "w" * 30 + " and more",
    "é" * 70,
)  # fmt: skip


def _rich_table(title: str, columns: Sequence[tuple[str, bool]]) -> Table:
    built = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, is_number in columns:
        justify = "right" if is_number else "left"
        built.add_column(name, justify=justify, no_wrap=is_number, overflow="fold", header_style="dim")  # type: ignore[arg-type]
    return built


def _draw_cell(random: Random, *, is_number: bool) -> Text:
    if is_number:
        return Text(str(random.randrange(10 ** random.randrange(1, 9))))
    cell = Text(random.choice(_WORDS), random.choice(("", "cyan")))
    # What module trees have: a guide and a count in other styles.
    return Text().append("└ ", "dim").append_text(cell).append(" ×6", "bold") if random.random() < 0.4 else cell


def _render(rows: Table, width: int, color_system: str | None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=color_system, highlight=False)  # type: ignore[arg-type]
    # Without the styles, which fill blanks otherwise: where text stands is what is compared.
    texts = (segment.text for segment in console.render(rows, console.options))
    return [line.rstrip() for line in "".join(texts).splitlines()]


@pytest.mark.parametrize("color_system", [None, "standard"])
def test_lines_are_those_of_rich(color_system: str | None) -> None:
    random = Random("tables")
    for _ in range(60):
        columns = [(random.choice(("", "module", "own operators", "max |Δ|")), random.random() < 0.3) for _ in "abcd"]
        title = random.choice(("", "Modules", "Modules that own nothing"))
        ours, theirs = PlainTable(title=title, title_style="bold"), _rich_table(title, columns)
        for name, is_number in columns:
            justify = "right" if is_number else "left"
            ours.add_column(name, justify=justify, no_wrap=is_number, overflow="fold", header_style="dim")  # type: ignore[arg-type]
        for _ in range(random.randrange(4)):
            cells = [_draw_cell(random, is_number=is_number) for _, is_number in columns]
            ours.add_row(*cells)
            theirs.add_row(*cells)
        width = random.choice((60, 80, 120, 200))
        assert _render(ours, width, color_system) == _render(theirs, width, color_system)


def test_cells_keep_their_styles() -> None:
    shown = table("", "module", "class")
    shown.add_row(Text().append("└ ", "dim").append("fc"), plain("Linear", "cyan"))
    console = Console(file=io.StringIO(), width=80, color_system="standard", highlight=False)
    styles = {segment.text.strip(): str(segment.style) for segment in console.render(shown, console.options)}
    assert styles["└"] == "dim"
    assert styles["Linear"] == "cyan"
    assert styles["class"] == "bold dim"


def test_a_cell_is_no_markup() -> None:
    shown = table("", "module")
    shown.add_row("[red]fc[/red]")
    assert "[red]fc[/red]" in as_text([shown])


def test_what_a_row_costs() -> None:
    """Work by counts of calls, because seconds depend on the machine: rich makes many objects of a folded cell."""
    import cProfile
    import pstats

    shown = table("", "module", "class")
    for number in range(1000):
        shown.add_row(plain("m" * 900 + str(number)), plain("Linear"))
    profile = cProfile.Profile()
    text = profile.runcall(as_text, [shown])
    assert text.count("999\n") + text.count("Linear") >= 1000
    assert pstats.Stats(profile).total_calls < 200 * 1000  # type: ignore[attr-defined]


def test_a_row_that_fits_costs_little() -> None:
    """A record of 5 KB can claim to have 125,000 modules."""
    import cProfile
    import pstats

    shown = table("", "module", "class", "nodes", right=("nodes",))
    for number in range(1000):
        shown.add_row(Text("├ ", "dim").append_text(plain(f"m{number}")), plain("Linear"), str(number))
    profile = cProfile.Profile()
    text = profile.runcall(as_text, [shown])
    assert text.splitlines()[-1].split() == ["├", "m999", "Linear", "999"]
    assert pstats.Stats(profile).total_calls < 80 * 1000  # type: ignore[attr-defined]
