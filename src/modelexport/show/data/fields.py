"""Field tables: how a result becomes JSON and CSV.

A table says which attribute of a class is which key of its JSON object, or which column of its CSV file, and in which
order. The tables themselves are in `results.py`; here are their notation and the one writer that follows them.

    NodeTime: fields("key name modules=owners charged_to=module time_us=time:3 reason!")

    {"key": "n3", "name": "", "modules": ["encoder.layer.0#1"], "charged_to": "encoder.layer.0", "time_us": 4.125}

Notation, separated by blanks:

    name            the attribute of that name
    key=attribute   an attribute of another name; dots lead on (`call.path`), and what is None on the way stays None
    name:3          rounded to 3 digits; in a mapping, every number of it
    name?           null where it is empty: no text, no items; a number or truth value never is
    name!           left out where it is empty

Values are rendered by their type, so that all results agree: an enum by its value, a confidence by its label, a path,
a module call and evidence as text, a polynomial of open axes as a number or an expression. Another type is a mistake of
ours, and fails with the name of the field. JSON has no NaN and no infinity
(https://www.rfc-editor.org/rfc/rfc8259#section-6): they become null there, and `nan` and `inf` in CSV.

Text that a spreadsheet would run as a formula (https://owasp.org/www-community/attacks/CSV_Injection) is made harmless
in CSV by `errors.cell`; numbers, also negative ones, are not touched.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from modelexport.errors import cell
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.polynomial import Polynomial
from modelexport.record.provenance import Confidence, Evidence

_NOTATION = re.compile(r"(?P<name>\w+)(=(?P<path>[\w.]+))?(:(?P<digits>\d))?(?P<empty>[?!])?")
_PLAIN = (str, int, bool, type(None))

Json = dict[str, Any]


@dataclass(frozen=True)
class ResultField:
    """One key of an object, or one column.

    read    its value, from the item that the table is about and from the whole result
    path    the attribute that is read; empty for a value that is computed
    digits  numbers are rounded to so many
    empty   `?` null, `!` left out where there is nothing
    fields  the table of the items in it, where the one for their class is not meant
    """

    name: str
    read: Callable[[Any, Any], object]
    path: str = ""
    digits: int | None = None
    empty: str = ""
    fields: Fields | None = None

    def value(self, item: object, result: object) -> object:
        """Rounded here and not in the writer, so that JSON and CSV have the same digits."""
        value = self.read(item, result)
        return value if self.digits is None else _rounded(value, self.digits)


Fields = Sequence[ResultField]
Tables = Mapping[type, Fields]


def fields(*parts: str | ResultField) -> tuple[ResultField, ...]:
    """A table, from texts in the notation above and from fields that are computed."""
    return tuple(
        field for part in parts for field in ([part] if isinstance(part, ResultField) else _parse_fields(part))
    )


def computed(name: str, read: Callable[[Any], object], *, digits: int | None = None) -> ResultField:
    return ResultField(name, lambda item, _: read(item), digits=digits)


def constant(name: str, value: object) -> ResultField:
    """For keys that tell documents apart, such as `schema` and `verb`."""
    return ResultField(name, lambda *_: value)


def _parse_fields(text: str) -> Iterator[ResultField]:
    """A word that is no notation is a mistake in a table, and fails when the module is imported."""
    for word in text.split():
        match = _NOTATION.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is no field")
        path = match["path"] or match["name"]
        digits = None if match["digits"] is None else int(match["digits"])
        yield ResultField(match["name"], _reader(path), path, digits, match["empty"] or "")


def _reader(path: str) -> Callable[[Any, Any], object]:
    """`attrgetter` for one step, because most fields are one; a path stops at None."""
    if "." not in path:
        read = attrgetter(path)
        return lambda item, _: read(item)
    steps = path.split(".")

    def follow(item: Any, _: Any) -> object:
        for step in steps:
            item = None if item is None else getattr(item, step)
        return item

    return follow


def _rounded(value: Any, digits: int) -> object:
    """`round` keeps an int an int, so that counts do not become `3.0`."""
    if isinstance(value, Mapping):
        return {key: round(number, digits) for key, number in value.items()}
    return None if value is None else round(value, digits)


def json_text(result: object, tables: Tables) -> str:
    """Characters beyond ASCII are escaped, so that no terminal or pipe can trip over one."""
    return json.dumps(_Writer(tables, result).value(result, "result"), indent=1, allow_nan=False) + "\n"


def csv_text(columns: Fields, items: Iterable[object], result: object) -> str:
    """One row for each item. What is not known is empty, and no text is a formula; see `errors.cell`."""
    rows = [[_cell(column.value(item, result), column.name) for column in columns] for item in items]
    return csv_lines([[column.name for column in columns], *rows])


def csv_lines(rows: Iterable[Iterable[str]]) -> str:
    """Lines end with a bare newline, as in every other output, and not as RFC 4180 has it."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


@dataclass(frozen=True)
class _Writer:
    tables: Tables
    result: object

    def value(self, value: Any, field: str) -> Any:
        """By exact type first, then by table, then by shape; a named tuple with a table is an object and no list."""
        if type(value) in _PLAIN:  # most values are, and there are many of them
            return value
        if isinstance(value, Mapping):
            return {_scalar(key, field): self.value(inner, field) for key, inner in value.items()}
        table = self.tables.get(type(value))
        if table is not None:
            # The document of a file inside of that of a package is a result of its own.
            is_result = bool(table) and table[0].name == "schema"
            return (replace(self, result=value) if is_result else self).document(value, table)
        if isinstance(value, tuple | list):
            return [self.value(inner, field) for inner in value]
        return _scalar(value, field)

    def document(self, item: object, table: Fields) -> Json:
        document: Json = {}
        for field in table:
            value: Any = field.value(item, self.result)
            if value or not field.empty or isinstance(value, int | float):
                items = None if field.fields is None else [self.document(item, field.fields) for item in value]
                document[field.name] = self.value(value, field.name) if items is None else items
            elif field.empty == "?":
                document[field.name] = None
        return document


def _scalar(value: Any, field: str) -> Any:
    match value:
        case Confidence():
            return value.label
        case Enum():
            return value.value
        case bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else None
        case Polynomial():
            return value.expression if value.value is None else value.value
        case str() | PurePath() | ModuleCall() | Evidence():
            return str(value)
    raise TypeError(f"{field}: a value of type {type(value).__name__} has no form in JSON and CSV")


def _cell(value: Any, field: str, escape: Callable[[str], str] = cell) -> str:
    """Lists are joined by `;`, and are text as a whole. JSON has null for what is not finite; a spreadsheet is told."""
    if isinstance(value, tuple | list):
        return escape(";".join(_cell(inner, field, str) for inner in value))
    scalar = value if isinstance(value, float) else _scalar(value, field)
    if isinstance(scalar, bool):
        return str(scalar).lower()
    if isinstance(scalar, int | float):
        return str(scalar)  # a number is no formula, also with a minus sign before it
    return "" if scalar is None else escape(scalar)
