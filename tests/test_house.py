"""The limits that the package holds itself to; `python -m measure house` prints the figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from measure.house import PAGE, Figure, SourceFile, measure_house, read_package


@pytest.mark.parametrize("figure", measure_house(read_package()), ids=lambda figure: figure.name)
def test_the_package_is_within_its_limits(figure: Figure) -> None:
    assert figure.holds, f"{figure.name}: {figure.value:g}, and not {figure.limit}"


def test_the_page_has_every_figure_with_its_limit() -> None:
    """Sizes change with nearly every commit, and the page with `make house`: it may lag behind a little."""
    measured = measure_house(read_package())
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    written = [row for row in rows if len(row) == 3][2:]  # without the head of the table
    assert [(name, limit) for name, _, limit in written] == [(figure.name, figure.limit) for figure in measured]
    for figure, (_, number, _) in zip(measured, written, strict=True):
        value = float(number.replace(",", ""))
        assert replace(figure, value=value).holds, figure.name
        assert value == pytest.approx(figure.value, rel=0.05, abs=1), f"{figure.name}: run `make house`"


def test_lines_of_text_are_not_taken_for_comments_or_docstrings() -> None:
    text = '"""One.\n\nTwo."""\n\nX = "# no comment"  # why\nY = """\nno docstring\n"""\n'
    file = SourceFile(Path("a.py"), text)
    assert (file.docstring_lines(), file.comment_lines(), file.lines) == (3, 1, 8)


@pytest.mark.parametrize(("value", "holds"), [(2, True), (3, True), (3.1, False), (0.9, False)])
def test_a_figure_beyond_its_limit_does_not_hold(value: float, holds: bool) -> None:
    assert Figure("f", value, 1, 3).holds is holds
