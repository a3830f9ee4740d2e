"""Rows, expanded: from one entry of the file of models to every model that it means.

    source = "models/bert"                one row, named after the folder
    exporters = ["dynamo", "torchscript"] one for each: bert-dynamo, bert-torchscript
    glob = "models/*/config.json"         one for each match, named after where it was matched
    table = "more.csv"                    one for each line; columns are keys of a row, `budget.size` is one in a table

A line of a table and a match of a glob have everything else from their entry.
"""

from __future__ import annotations

import csv
import glob
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from modelexport.errors import UnknownName, propose_name
from modelexport.fleet import budgets
from modelexport.fleet.entries import EntryReader, connect_steps, limited
from modelexport.fleet.fleet_plan import Option, Row, Step, safe_name
from modelexport.fleet.sections import TomlSection, read_text
from modelexport.fleet.verbs import LOADING, VERBS
from modelexport.record.json_reading import parse_json

# Above that, a mistake in a glob is more likely than so many models.
MOST_ROWS = 200_000
_KINDS = ("source", "file", "glob", "table")


@dataclass
class RowMaker:
    """What rows have that say nothing else."""

    reader: EntryReader
    steps: Mapping[str, Step]
    names: tuple[str, ...]
    environment: Mapping[str, str]
    load: Mapping[str, Option]
    budget: TomlSection

    def make(self, entry: TomlSection) -> Iterator[Row]:
        """The rows of one model: one for each exporter."""
        source, file = entry.text_of("source"), entry.text_of("file")
        reader, task, exporters = self.reader, entry.text_of("task"), entry.texts("exporters") or ("",)
        name = entry.text_of("name") or _name_after(source or file)
        if not source and not file:
            raise entry.fault("", "it has no model", f"Give one of {', '.join(_KINDS)}.")
        row = Row(
            name,
            reader.source(entry, source) if source else "",
            str(reader.base / file) if file else "",
            task,
            load={**self.load, **reader.options(entry.table("load"), LOADING)},
            environment={**self.environment, **reader.environment(entry)},
            package=entry.flag("package") or False,
            code=str(reader.base) if ":" in source and reader.trust else "",
        )
        row = self._with_steps(row, entry)
        entry.finish()
        for exporter in exporters:
            own = f"{name}-{exporter}" if len(exporters) > 1 else name
            yield replace(row, name=safe_name(own), exporter=exporter)

    def _with_steps(self, row: Row, entry: TomlSection) -> Row:
        asked = entry.texts("steps")
        names = asked or tuple(name for name in self.names if self._applies(name, row))
        options = dict(entry.table("options").tables())
        for name in names:
            if name not in self.steps:
                raise entry.fault("steps", f"there is no step {name!r}", propose_name(name, self.steps))
        own = budgets.merge(budgets.parse(self.budget, names), budgets.parse(entry.table("budget"), names))
        names = (*dict.fromkeys(names), *budgets.further_steps(own, names))
        steps = []
        for name in names:
            step = limited(self.steps[name], entry)
            if name in options:
                step = replace(step, options={**step.options, **self.reader.options(options.pop(name))})
            steps.append(step)
        if options:
            raise entry.fault("options", f"there is no step {next(iter(options))!r} in this row", f"It has {names}.")
        connected = tuple(connect_steps(steps, entry, has_file=bool(row.file)))
        targets = any("target" in step.options for step in connected)
        return replace(row, steps=connected, budgets=budgets.place(own, connected), package=row.package or targets)

    def _applies(self, name: str, row: Row) -> bool:
        """Of the steps that all rows have by default: whether this one can have it."""
        step = self.steps.get(name)
        if step is None or not row.file:
            return True
        return VERBS[step.verb].takes == "file" and (bool(row.source) or step.verb not in ("verify", "strategies"))


def expand_rows(document: TomlSection, base: Path, maker: RowMaker) -> Iterator[Row]:
    count = 0
    for entry in document.rows("row"):
        for single in _expand(entry, base):
            for row in maker.make(single):
                count += 1
                if count > MOST_ROWS:
                    raise document.fault("row", f"there are more than {MOST_ROWS:,} rows", "Split the file.")
                yield row


def _expand(entry: TomlSection, base: Path) -> Iterator[TomlSection]:
    kinds = [kind for kind in _KINDS if kind in entry.content]
    if "glob" in kinds and "table" in kinds:
        raise entry.fault("glob", "it has a glob and a table", "Make two rows of it.")
    if "glob" in kinds:
        yield from _expand_glob(entry, base)
    elif "table" in kinds:
        yield from _expand_table(entry, base)
    else:
        yield entry


def _expand_glob(entry: TomlSection, base: Path) -> Iterator[TomlSection]:
    """A `config.json` means the folder that it is in, and an ONNX file is one that is there already."""
    pattern = entry.text_of("glob")
    # Not `Path.glob`, which fails for a pattern that is absolute.
    matches = sorted(islice(glob.iglob(pattern, root_dir=base, recursive=True), MOST_ROWS + 1))  # noqa: PTH207
    if not matches:
        raise entry.fault("glob", f"nothing matches {pattern!r}", f"It was looked for in {base}.")
    fixed = _fixed_part(pattern)
    for match in matches:
        path = Path(match)
        target = path.parent if path.name == "config.json" else path
        key = "file" if target.suffix == ".onnx" else "source"
        name = target.relative_to(fixed) if fixed and target.is_relative_to(fixed) else target
        # A folder of one model that the pattern names to its end has nothing left but its own name.
        label = str(name.with_suffix("") if key == "file" else name).replace("\\", "/")
        values = {
            "name": label if label != "." else target.name,
            key: f"./{target}" if not path.is_absolute() else str(target),
        }
        yield _with_values(entry, values, entry.place)


def _fixed_part(pattern: str) -> str:
    """The folders before the first one with a sign that means something."""
    parts = Path(pattern).parts
    fixed = parts[: next((i for i, part in enumerate(parts) if glob.has_magic(part)), 0)]
    return str(Path(*fixed)) if fixed else ""


def _expand_table(entry: TomlSection, base: Path) -> Iterator[TomlSection]:
    name = entry.text_of("table")
    path = base / name
    text = read_text(path)
    match path.suffix:
        case ".csv":
            lines = _csv_rows(entry, text, name)
        case ".jsonl" | ".ndjson":
            lines = _json_rows(entry, text, name)
        case suffix:
            raise UnknownName("kind of table", suffix, [".csv", ".jsonl"])
    for number, values in lines:
        yield _with_values(entry, values, f"{name}:{number}")


def _csv_rows(entry: TomlSection, text: str, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The first line names the columns; an empty cell says nothing."""
    reader = csv.reader(io.StringIO(text))
    try:
        columns = [column.strip() for column in next(reader, [])]
        for cells in reader:
            if len(cells) > len(columns):
                raise entry.fault(
                    "table", f"{name}:{reader.line_num} has {len(cells)} cells for {len(columns)} columns"
                )
            pairs = zip(columns, cells, strict=False)
            if values := {column: cell.strip() for column, cell in pairs if column and cell.strip()}:
                yield reader.line_num, _nested(values)
    except csv.Error as error:
        raise entry.fault("table", f"{name}:{reader.line_num}: {error}") from error


def _json_rows(entry: TomlSection, text: str, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                values = parse_json(line)
            except ValueError as error:
                raise entry.fault("table", f"{name}:{number}: {error}") from error
            if not isinstance(values, dict):
                raise entry.fault("table", f"{name}:{number} is no object")
            yield number, values


def _nested(values: Mapping[str, str]) -> dict[str, Any]:
    """`budget.size` is the key `size` of a table `budget`."""
    nested: dict[str, Any] = {}
    for column, value in values.items():
        *tables, key = column.split(".")
        inside = nested
        for table in tables:
            inner = inside.setdefault(table, {})
            inside = inner if isinstance(inner, dict) else {}
        inside[key] = value
    return nested


def _with_values(entry: TomlSection, values: Mapping[str, Any], place: str) -> TomlSection:
    """A row of its own, with the keys of the entry where it says nothing itself; tables are merged one level deep."""
    content = {key: value for key, value in entry.content.items() if key not in ("glob", "table")}
    for key, value in values.items():
        around = content.get(key)
        content[key] = {**around, **value} if isinstance(around, dict) and isinstance(value, dict) else value
    return TomlSection(content, entry.file, entry.text, place, entry.header)


def _name_after(source: str) -> str:
    """`models/bert` is bert, `org/name` is org/name, `nets.py:build` is build."""
    if "/" not in source and "\\" not in source and ":" not in source:
        return Path(source).stem if source.endswith(".onnx") else source
    path = Path(source)
    if ":" in source:
        return source.rpartition(":")[2]
    if source.startswith((".", "/", "~")) or len(path.parts) != 2:
        return path.parent.name if path.name == "config.json" else path.stem if path.suffix == ".onnx" else path.name
    return source
