"""The notation of field tables, and that every table fits the class that it is about."""

from __future__ import annotations

import csv
import inspect
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.polynomial import Polynomial
from modelexport.record.provenance import Confidence
from modelexport.show.data.fields import ResultField, computed, csv_text, fields, json_text
from modelexport.show.data.results import COLUMNS, TABLES


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: float | None


@dataclass(frozen=True)
class Outer:
    text: str = ""
    inner: Inner | None = None
    times: tuple[tuple[str, float], ...] = ()
    anything: object = None


INNER: dict[type, tuple[ResultField, ...]] = {Inner: fields("number")}


def document(table: tuple[ResultField, ...], item: Outer) -> object:
    return json.loads(json_text(item, {Outer: table, **INNER}))


def test_a_field_can_have_another_name_than_its_attribute() -> None:
    assert document(fields("words=text"), Outer("a")) == {"words": "a"}


def test_a_path_leads_through_values_and_stops_at_none() -> None:
    assert document(fields("number=inner.number"), Outer(inner=Inner(2.0))) == {"number": 2.0}
    assert document(fields("number=inner.number"), Outer()) == {"number": None}


def test_numbers_are_rounded_in_mappings_too() -> None:
    table = fields("number=inner.number:2", computed("times", lambda outer: dict(outer.times), digits=1))
    assert document(table, Outer(inner=Inner(1 / 3), times=(("a", 0.16),))) == {"number": 0.33, "times": {"a": 0.2}}
    assert document(fields("number=inner.number:2"), Outer()) == {"number": None}


def test_what_is_empty_is_null_or_left_out() -> None:
    assert document(fields("text? inner"), Outer()) == {"text": None, "inner": None}
    assert document(fields("text! inner"), Outer()) == {"inner": None}
    assert document(fields("text! inner"), Outer("a")) == {"text": "a", "inner": None}


def test_what_is_no_notation_is_refused() -> None:
    with pytest.raises(ValueError, match="is no field"):
        fields("a=b=c")


@pytest.mark.parametrize(
    ("value", "written", "cell"),
    [
        (None, None, ""),
        (True, True, "true"),
        (3, 3, "3"),
        (math.inf, None, "inf"),
        (math.nan, None, "nan"),
        (-0.5, -0.5, "-0.5"),
        ("=1+1", "=1+1", "'=1+1"),
        (Colour.RED, "red", "red"),
        (Confidence.EXACT, "exact", "exact"),
        (Path("a.onnx"), "a.onnx", "a.onnx"),
        (ModuleCall("block", 2), "block#2", "block#2"),
        (Polynomial.of(7), 7, "7"),
        ((ModuleCall("a"), ModuleCall("b", 1)), ["a", "b#1"], "a;b#1"),
    ],
)
def test_values_are_rendered_by_their_type(value: object, written: object, cell: str) -> None:
    item = Outer(anything=value)
    assert document(fields("anything"), item) == {"anything": written}
    rows = list(csv.reader(io.StringIO(csv_text(fields("anything"), [item], item))))
    assert rows == [["anything"], [cell]]


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    written = json_text(Outer(text), {Outer: fields("text")})
    assert written.isascii()
    assert json.loads(written) == {"text": text}


def _paths() -> Iterator[tuple[type, str]]:
    for kind, table in TABLES.items():
        yield from ((kind, field.path) for field in table if field.path)


@pytest.mark.parametrize(("kind", "path"), list(_paths()), ids=str)
def test_tables_name_attributes_that_there_are(kind: type, path: str) -> None:
    """They are texts, so that neither a type checker nor a renaming tool sees them."""
    assert is_dataclass(kind)
    attributes = {field.name for field in dataclass_fields(kind)}
    assert path.split(".", maxsplit=1)[0] in attributes | {name for name, _ in inspect.getmembers(kind)}


def test_keys_and_columns_are_unique() -> None:
    tables = [*TABLES.values(), *(columns for kinds in COLUMNS.values() for columns in kinds.values())]
    for table in tables:
        names = [field.name for field in table]
        assert len(names) == len(set(names)), names
