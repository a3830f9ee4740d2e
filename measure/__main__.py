"""Measure what the documentation claims: `python -m measure NAME [ROWS...]`.

Exits with 1 where a figure misses its limit or a row is not as stated, with 2 where nothing could be run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from measure.catalogue import MEASURES, SECTIONS, Measure, NotRunnable, Options
from measure.workers import ending_on_signals

_OPTIONS = (
    "exporter", "family", "tool", "jobs", "limit", "resume", "page_only", "seconds", "cases", "first", "case",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _make_parser()
    given = parser.parse_args(arguments)
    if given.list:
        sys.stdout.write(list_measures())
        return 0
    if given.name is None:
        parser.error("which measurement? --list names all")
    measure, rows = _find_measure(given.name, tuple(given.rows))
    if measure is None:
        parser.error(f"no such measurement: {given.name}; --list names all")
    for option in _OPTIONS:
        if getattr(given, option) != parser.get_default(option) and option not in measure.takes:
            parser.error(f"{measure.name} takes no --{option.replace('_', '-')}")
    try:
        with ending_on_signals():
            return measure.load()(_read_options(given, rows))
    except NotRunnable as error:
        sys.stderr.write(f"{error}\n")
        return 2


def list_measures() -> str:
    """Every name with what it measures and writes, and the sections, which are names too."""
    lines = []
    for measure in MEASURES:
        lines += [f"{measure.name:17} {measure.about}", f"{'':17} writes {measure.writes}"]
        lines += [f"{'':17} with {measure.rows}: {measure.partly}"]
        if measure.name == "bench":
            lines += [f"  {section.name:15} {section.about}" for section in SECTIONS]
    return "\n".join(lines) + "\n"


def _find_measure(name: str, rows: tuple[str, ...]) -> tuple[Measure | None, tuple[str, ...]]:
    """The name of a section stands for `bench` and that section."""
    by_name = {measure.name: measure for measure in MEASURES}
    if name in {section.name for section in SECTIONS}:
        return by_name["bench"], (name, *rows)
    return by_name.get(name), rows


def _read_options(given: argparse.Namespace, rows: tuple[str, ...]) -> Options:
    return Options(
        rows=rows,
        exporters=tuple(given.exporter),
        families=tuple(given.family),
        tools=tuple(given.tool),
        jobs=given.jobs,
        limit=given.limit,
        resume=given.resume,
        page_only=given.page_only,
        seconds=given.seconds,
        cases=given.cases,
        first=given.first,
        case=given.case,
    )


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m measure", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to measure")
    parser.add_argument("rows", nargs="*", metavar="ROWS", help="measure these alone; --list says what they are")
    parser.add_argument("--list", action="store_true", help="name everything that can be measured, and stop")
    parser.add_argument("--exporter", action="append", default=[], choices=("dynamo", "torchscript", "transformers"))
    parser.add_argument("--family", action="append", default=[], help="rows of a family of the corpus")
    parser.add_argument("--tool", action="append", default=[], metavar="CHAIN", help="a tool or chain: int8+ort:all")
    parser.add_argument("--jobs", type=int, default=Options.jobs, help="worker processes at a time")
    parser.add_argument(
        "--limit", type=float, default=Options.limit, metavar="SECONDS", help="a task is cut off after this time"
    )
    parser.add_argument("--resume", action="store_true", help="keep the results of a run that was interrupted")
    parser.add_argument("--page-only", action="store_true", help="write the page again from stored results")
    parser.add_argument("--seconds", type=float, default=0, metavar="N", help="stop after this time")
    parser.add_argument("--cases", type=int, default=0, metavar="N", help="run so many cases")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first case")
    parser.add_argument("--case", type=int, metavar="N", help="run one case again, and keep its files")
    return parser


if __name__ == "__main__":
    sys.exit(main())
