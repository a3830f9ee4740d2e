"""The limits that the package holds itself to; `python -m measure house` prints the figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from measure.house import Figure, SourceFile, measure_house, read_package


@pytest.mark.parametrize("figure", measure_house(read_package()), ids=lambda figure: figure.name)
def test_the_package_is_within_its_limits(figure: Figure) -> None:
    assert figure.holds, f"{figure.name}: {figure.value:g}, and not {figure.limit}"


def test_lines_of_text_are_not_taken_for_comments_or_docstrings() -> None:
    text = '"""One.\n\nTwo."""\n\nX = "# no comment"  # why\nY = """\nno docstring\n"""\n'
    file = SourceFile(Path("a.py"), text)
    assert (file.docstring_lines(), file.comment_lines(), file.lines) == (3, 1, 8)


@pytest.mark.parametrize(("value", "holds"), [(2, True), (3, True), (3.1, False), (0.9, False)])
def test_a_figure_beyond_its_limit_does_not_hold(value: float, holds: bool) -> None:
    assert Figure("f", value, 1, 3).holds is holds
