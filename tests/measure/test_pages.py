"""Tables go to their sections or between their comments, and nothing else of a page changes."""

from __future__ import annotations

import json

import pytest
from measure.pages import Table, Tables, compose_page, fill_blocks, percent, percent_of, replace_sections

A, B = (Table(title, f"of {title}", ("x",), (("1",),)) for title in ("First", "Second"))


def test_sections_that_are_measured_again_take_their_old_place() -> None:
    again = Table("First", "once more", ("x",), (("2",),))
    text = replace_sections(compose_page("Measured", "Head.", [A, B]), [again])
    assert text.index("once more") < text.index("of Second")
    assert "of First" not in text
    assert text.startswith("# Measured")


def test_a_section_that_is_new_comes_last() -> None:
    text = replace_sections(compose_page("Measured", "Head.", [A]), [B])
    assert text.index("of First") < text.index("of Second")
    assert replace_sections(text, [B]) == text


PAGE_TEXT = (
    "# Head\n\n<!-- measured: one -->\nold\n\n| a |\n<!-- end -->\n\ntext\n\n<!-- measured: two -->\n<!-- end -->\n"
)


def test_a_table_replaces_what_stood_in_its_place() -> None:
    page = fill_blocks(PAGE_TEXT, {"one": r"new \1 \g<0>", "two": "second"})
    assert page == (
        "# Head\n\n<!-- measured: one -->\nnew \\1 \\g<0>\n<!-- end -->\n\ntext\n\n"
        "<!-- measured: two -->\nsecond\n<!-- end -->\n"
    )


def test_filling_again_changes_nothing() -> None:
    once = fill_blocks(PAGE_TEXT, {"one": "new", "two": "second"})
    assert fill_blocks(once, {"one": "new", "two": "second"}) == once


@pytest.mark.parametrize("page", ["no place", PAGE_TEXT + PAGE_TEXT])
def test_a_table_without_one_place_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match="one place for the table one"):
        fill_blocks(page, {"one": "new"})


@pytest.mark.parametrize(
    ("count", "total", "text"),
    [(0, 0, "–"), (0, 9, "0"), (9, 9, "100"), (9999, 10_000, "99.9"), (1, 10_000, "0.1"), (1, 3, "33.3")],
)
def test_only_all_is_100_percent(count: int, total: int, text: str) -> None:
    assert percent_of(count, total) == text


def test_notes_are_listed_below_a_table() -> None:
    table = Table("T", "Text.", ("a", "b"), (("1", "2"),), notes=("first", "second"))
    assert table.markdown() == "## T\n\nText.\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n- first\n- second\n"


def test_shares_are_rounded_down() -> None:
    assert [percent(share) for share in (1.0, 0.99999, 0.97, 2 / 3, 0.0)] == ["100.0", "99.9", "97.0", "66.6", "0.0"]


def test_tables_come_back_from_json() -> None:
    tables = Tables({"a": A, "b": Table("T", "", ("x", "y"), (("1", "2"), ("3", "4")), holds=False, notes=("n",))})
    assert Tables.from_json(json.loads(json.dumps(tables.to_json()))) == tables
