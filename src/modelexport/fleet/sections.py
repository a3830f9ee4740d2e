"""Sections of a file of models: typed reading of TOML, with errors that say where, what was seen, and what is known.

    section.text("name")              "bert"
    section.duration("timeout")       600.0      of 600, "600s", "10m" or "1.5h"
    section.size("memory")            8 * 10**9  of 8000000000, "8GB" or "7.5GiB"
    section.finish()                  models.toml:12: [[row]] 3: there is no key 'timout'; did you mean 'timeout'?

Every key that was asked for is known, so that the keys that nobody asked for can be told with the nearest that exists.
TOML's own parser gives no lines of keys; they are looked for in the text, which is enough to find the place.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from modelexport.errors import FileUnreadable, FleetInvalid, printable_line, propose_name, shorten, with_article
from modelexport.fleet.process import Limits
from modelexport.record.amounts import BYTES, SECONDS, parse_amount
from modelexport.record.limits import MESSAGE_CHARACTERS
from modelexport.record.regular_files import open_regular

# A table of 100,000 rows has some 20 MB.
_LARGEST = 1 << 26
_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number", dict: "a table", list: "a list"}


def read_text(path: Path) -> str:
    """The text of a file of models or of a table of rows."""
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        reason = error if isinstance(error, OSError) else OSError(str(error))
        raise FileUnreadable.from_os_error(path, reason) from error
    if len(content) > _LARGEST:
        raise FileUnreadable(f"cannot read {path}: it is larger than {_LARGEST >> 20} MB", "Split it.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileUnreadable(f"cannot read {path}: it is no text in UTF-8", "Save it as UTF-8.") from error


def read_toml(path: Path) -> TomlSection:
    """The whole file as one section."""
    text = read_text(path)
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise FleetInvalid(f"{path}: {why}", "The file is no TOML: https://toml.io/en/v1.0.0") from error
    return TomlSection(content, path.name, text)


class TomlSection:
    """A table of TOML, or a row of a table file.

    place  what messages call it: `[steps.int8]`, `[[row]] 3`, `models.csv:17`
    """

    def __init__(
        self, content: Mapping[str, Any], file: str, text: str = "", place: str = "", header: str = ""
    ) -> None:
        self.content, self.file, self.text, self.place, self.header = content, file, text, place, header
        self._asked: dict[str, None] = {}

    def fault(self, key: str, problem: str, hint: str = "") -> FleetInvalid:
        """An error about a key, or about the section as a whole for an empty one."""
        line = find_line(self.text, self.header, key) if self.text else None
        where = f"{self.file}:{line}" if line else self.file
        about = ": ".join(part for part in (where, self.place) if part)
        return FleetInvalid(printable_line(f"{about}: {problem}", MESSAGE_CHARACTERS), hint)

    def wrong(self, key: str, value: object, expected: str) -> FleetInvalid:
        return self.fault(key, f"{key} is {shorten(repr(value), 80)}, and should be {expected}")

    def value(self, key: str, *kinds: type) -> Any:
        """None where the key is not there."""
        self._asked[key] = None
        value = self.content.get(key)
        if value is None:
            return None
        # A truth value is an int to Python, and never meant as one.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(dict.fromkeys(_KINDS.get(kind, with_article(kind.__name__)) for kind in kinds))
            raise self.wrong(key, value, expected)
        return value

    def text_of(self, key: str) -> str:
        value: str | None = self.value(key, str)
        return value or ""

    def choice(self, key: str, known: Iterable[str]) -> str:
        value, names = self.text_of(key), tuple(known)
        if value and value not in names:
            raise self.fault(key, f"{key} is {value!r}", propose_name(value, names))
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, or one text with blanks or commas between them, as tables have it."""
        value = self.value(key, list, str)
        if value is None:
            return None
        items = re.split(r"[\s,]+", value.strip()) if isinstance(value, str) else value
        if not all(isinstance(item, str) and item for item in items):
            raise self.wrong(key, value, "a list of names")
        return tuple(items)

    def count(self, key: str, default: int, least: int = 0) -> int:
        value = self.value(key, int, str)
        if value is None:
            return default
        if not str(value).strip().isdecimal() or int(value) < least:
            raise self.wrong(key, value, f"a whole number of at least {least}")
        return int(value)

    def duration(self, key: str) -> float | None:
        """Seconds."""
        return self._amount(key, SECONDS, 'a time above 0, such as 90, "10m" or "1.5h"')

    def size(self, key: str) -> int | None:
        """Bytes."""
        amount = self._amount(key, BYTES, 'a size above 0, such as "800MB" or "16GiB"')
        return None if amount is None else math.ceil(amount)

    def _amount(self, key: str, units: Mapping[str, float], expected: str) -> float | None:
        value = self.value(key, int, float, str)
        if value is None:
            return None
        amount = parse_amount(str(value), units)
        if amount is None:
            raise self.wrong(key, value, expected)
        return amount

    def flag(self, key: str) -> bool | None:
        value = self.value(key, bool, str)
        if isinstance(value, str):
            if value.lower() not in ("true", "false"):
                raise self.wrong(key, value, "true or false")
            return value.lower() == "true"
        return None if value is None else bool(value)

    def table(self, key: str) -> TomlSection:
        """A table inside of it, empty where there is none."""
        content = self.value(key, dict) or {}
        header = f"{self.header}.{key}" if self.header else key
        place = f"{self.place} {key}" if self.header.partition("#")[2] else f"[{header}]"
        return TomlSection(content, self.file, self.text, place, header)

    def tables(self) -> Iterator[tuple[str, TomlSection]]:
        """The tables in it by name; what is no table is an error."""
        for key in self.content:
            yield key, self.table(key)

    def rows(self, key: str) -> Iterator[TomlSection]:
        """The tables of an array of tables."""
        items = self.value(key, list) or []
        for number, item in enumerate(items, 1):
            if not isinstance(item, dict):
                raise self.wrong(key, item, f"a table: [[{key}]]")
            yield TomlSection(item, self.file, self.text, f"[[{key}]] {number}", f"{key}#{number}")

    def finish(self) -> None:
        """Fail for the first key that nobody knows."""
        for key in self.content:
            if key not in self._asked:
                raise self.fault(key, f"there is no key {key!r}", propose_name(key, self._asked, "It may have"))


def find_line(text: str, header: str, key: str) -> int | None:
    """The line of a key below a header such as `steps.int8`, or `row#3` for the third [[row]].

    A key may also be part of an inline table, or of a dotted key: then its own name is looked for below the header, and
    the line of the header is the answer where nothing is like it.
    """
    sections = header.split(".") if header else []
    wanted, counts, below, line_of_header = _header_names(sections), dict[str, int](), not header, 1
    last = (key or (sections[-1] if sections else "")).split(".")[-1]
    names = re.compile(rf"(?:^|[\s.{{,]){re.escape(last)}[\"']?\s*(?:=|\.)") if last else None
    for number, line in enumerate(text.splitlines(), 1):
        if header_match := _HEADER.fullmatch(line):
            name = header_match[1].replace('"', "").replace("'", "")
            counts[name] = counts.get(name, 0) + 1
            current = {name, f"{name}#{counts[name]}"} | {
                f"{outer}#{count}{name.removeprefix(outer)}"
                for outer, count in counts.items()
                if name.startswith(f"{outer}.")
            }
            below = any(start in current for start in wanted)
            line_of_header = number if below else line_of_header
            if f"{header}.{key}".strip(".") in current:
                return number
        elif below and names is not None and names.search(line.partition("#")[0]):
            return number
    return line_of_header if line_of_header > 1 or not header else None


def _header_names(sections: list[str]) -> set[str]:
    """A section `row#3.budget` may have a header of its own, or stand below that of `row#3` or of nothing."""
    return {".".join(sections[:count]) for count in range(1, len(sections) + 1)}


def read_limits(timeout: float | str | None, memory: float | str | None, place: str) -> Limits:
    """Limits as somebody wrote them, outside of a file; `place` is what messages call that."""
    given = {"timeout": timeout, "memory": memory}
    section = TomlSection({key: value for key, value in given.items() if value is not None}, place)
    return Limits(section.duration("timeout"), section.size("memory"))
