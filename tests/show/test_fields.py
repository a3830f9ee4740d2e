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
from enum import Enum, StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.polynomial import Polynomial
from modelexport.record.provenance import Confidence, Evidence, EvidenceKind
from modelexport.show.data.fields import ResultField, computed, constant, csv_text, fields, json_text
from modelexport.show.data.results import COLUMNS, TABLES

EVERY_KIND = "exact;red;;true;inf;2"


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


RENDERED = (str, int, float, NoneType, Enum, Path, ModuleCall, Polynomial, Evidence)
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


@pytest.mark.parametrize("number", [0, 0.0, False])
@pytest.mark.parametrize("mark", ["?", "!"])
def test_a_number_is_never_empty(number: float, mark: str) -> None:
    """Layer 0 is a layer, and no share is a share."""
    assert document(fields(f"anything{mark}"), Outer(anything=number)) == {"anything": number}


@pytest.mark.parametrize("nothing", [None, "", (), {}])
def test_what_has_no_items_is_empty(nothing: object) -> None:
    assert document(fields("anything?"), Outer(anything=nothing)) == {"anything": None}
    assert document(fields("anything!"), Outer(anything=nothing)) == {}


@pytest.mark.parametrize("unknown", [object(), b"text", {1, 2}, np.int64(3), Outer()], ids=lambda it: type(it).__name__)
def test_a_type_that_no_table_knows_fails_with_the_name_of_the_field(unknown: object) -> None:
    """Its `str` would be an address, or a number as text; a reader of the JSON would find out, and not we."""
    message = f"words: .*{type(unknown).__name__}"
    for value in (unknown, [unknown], {"a": unknown}):
        with pytest.raises(TypeError, match=message):
            json_text(Inner(None), {Inner: (constant("words", value),)})
    for value in (unknown, [unknown]):
        with pytest.raises(TypeError, match=message):
            csv_text((constant("words", value),), [None], None)


def test_a_result_without_a_table_fails() -> None:
    with pytest.raises(TypeError, match="Outer"):
        json_text(Outer(), INNER)


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
        ([Confidence.EXACT, Colour.RED, None, True, math.inf, 2], ["exact", "red", None, True, None, 2], EVERY_KIND),
        (("=1", "=2"), ["=1", "=2"], "'=1;=2"),
        (Evidence(EvidenceKind.VALUE, "htp", "x"), "value:htp (x)", "value:htp (x)"),
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


@pytest.mark.parametrize(("kind", "path"), list(_paths()), ids=str)
def test_every_type_that_a_table_reads_has_a_form(kind: type, path: str) -> None:
    found: list[Any] = [kind]
    for step in path.split("."):
        found = [leaf for each in found if each is not NoneType for leaf in _leaves(_attribute_type(each, step))]
    assert [leaf for leaf in found if leaf not in TABLES and not issubclass(leaf, RENDERED)] == []


def _attribute_type(kind: type, name: str) -> object:
    hints = get_type_hints(kind)
    if name in hints:
        return hints[name]
    attribute = inspect.getattr_static(kind, name)
    return get_type_hints(getattr(attribute, "fget", None) or attribute.func)["return"]  # `func` of a cached property


def _leaves(hint: object) -> Iterator[object]:
    """Classes in a type: those of `tuple[str | None, ...]` are str and NoneType."""
    if get_origin(hint) is Literal:
        yield from map(type, get_args(hint))
    elif isinstance(hint, TypeVar):
        yield from hint.__constraints__  # a type that is only bound may be any of the results that have a table
    elif get_args(hint):
        yield from (leaf for part in get_args(hint) if part is not ... for leaf in _leaves(part))
    else:
        yield hint


def test_keys_and_columns_are_unique() -> None:
    tables = [*TABLES.values(), *(columns for kinds in COLUMNS.values() for columns in kinds.values())]
    for table in tables:
        names = [field.name for field in table]
        assert len(names) == len(set(names)), names
