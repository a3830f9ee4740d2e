from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.support.small_file import SmallFile

from modelexport.api.read import analyze
from modelexport.errors import cell, printable, printable_lines
from modelexport.show.data.results import to_csv, to_json
from modelexport.show.text.analysis import analysis_tables
from modelexport.show.text.console import as_text, plain

EVIL = "=cmd('[bold]')\x1b[2J\x07\u009b\u202e\n"


@given(st.text())
def test_printable_text_has_only_visible_characters(text: str) -> None:
    assert printable(text).isprintable()
    assert all(line.isprintable() for line in printable_lines(text, 500).split("\n"))


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"]).filter(str.isprintable)))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@given(st.text())
def test_no_cell_is_a_formula(text: str) -> None:
    assert not cell(text).startswith(("=", "+", "-", "@", "\t", "\r"))


def test_names_from_strangers_reach_no_terminal_and_no_spreadsheet(tmp_path: Path) -> None:
    analysis = analyze(replace(SmallFile(), names={"h0": EVIL}).write(tmp_path / "a.onnx"))
    shown = as_text(analysis_tables(analysis, detailed=True))
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "[bold]" in shown
    assert to_json(analysis).isascii()
    rows = list(csv.reader(io.StringIO(to_csv(analysis))))
    assert rows[2][0].startswith("'=cmd('[bold]')\\x1b[2J")


def test_names_of_a_megabyte_are_cut_in_tables_and_whole_in_json(tmp_path: Path) -> None:
    name = "a" * 1_000_000
    analysis = analyze(replace(SmallFile(), names={"h0": name}).write(tmp_path / "a.onnx"))
    assert as_text(analysis_tables(analysis, detailed=True)).count("a") < 10_000
    shown = plain(name).plain
    assert len(shown) <= 2_000
    assert shown.startswith("aaa")
    assert shown.endswith("aaa")
    assert "… 998,0" in shown
    assert name in to_json(analysis)


def test_what_somebody_may_copy_is_not_cut() -> None:
    assert plain("a" * 2_000).plain == "a" * 2_000
