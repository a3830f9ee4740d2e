"""Sections: tables that are measured one after the other, each in a process of its own, and put on their page.

Times are part of them, so nothing else runs at the same time, and a worker has all cores.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

from measure.catalogue import SECTIONS, Options, load_function
from measure.job import Breakdown, Job, serve
from measure.pages import (
    MEASURED,
    Table,
    Tables,
    compose_blocks,
    compose_page,
    describe_machine,
    fill_blocks,
    replace_sections,
    write_page,
    written_by,
)
from measure.results import TaskFolder
from measure.workers import BUILD, Measurement, Workers, module_command

BENCH_PAGE = MEASURED / "measured.md"
STRATEGIES_PAGE = MEASURED / "strategies.md"
_STRATEGIES = "strategies"
_TASK = "tables"


def run_bench(options: Options) -> int:
    """Measure sections, put them on the page, and print them; 1 where a limit is missed."""
    names = options.pick_rows(tuple(section.name for section in SECTIONS))
    tables = list(_measure([Job((name,), (_TASK,)) for name in names], "bench", resume=options.resume).values())
    if options.rows and BENCH_PAGE.exists():
        write_page(BENCH_PAGE, replace_sections(BENCH_PAGE.read_text(encoding="utf-8"), tables))
    else:
        write_page(BENCH_PAGE, compose_bench(tables))
    sys.stdout.write("\n".join(table.markdown() for table in tables))
    return _report_missed(tables)


def compose_bench(tables: Sequence[Table]) -> str:
    return compose_page("Measured", written_by("bench", f"on {describe_machine()}"), tables)


def run_strategies(options: Options) -> int:
    """Measure strategies and fill the tables of their page; with rows, print the tables and leave the page alone."""
    from tests.support.architectures import NAMES

    names = options.pick_rows(tuple(NAMES))
    job = Job((_STRATEGIES, *(names if options.rows else ())), (_TASK,))
    tables = _measure([job], _STRATEGIES, resume=options.resume)
    if options.rows:
        sys.stdout.write("\n".join(table.markdown() for table in tables.values()))
    else:
        page = STRATEGIES_PAGE.read_text(encoding="utf-8") if STRATEGIES_PAGE.exists() else _blank_strategies(tables)
        write_page(STRATEGIES_PAGE, fill_blocks(page, {name: table.body() for name, table in tables.items()}))
    return _report_missed(list(tables.values()))


def _blank_strategies(tables: Mapping[str, Table]) -> str:
    return compose_blocks("Strategies, measured", written_by(_STRATEGIES, f"on {describe_machine()}"), tables)


def _measure(jobs: Sequence[Job], name: str, *, resume: bool) -> Mapping[str, Table]:
    if not resume:
        shutil.rmtree(BUILD / name, ignore_errors=True)
    measurement = Measurement(module_command("measure.sections"), Tables, _raise_lost, timed=True)
    tables: dict[str, Table] = {}
    for _, results in Workers(measurement, BUILD / name, jobs=1).run(jobs):
        tables.update(results[0].by_name)
    order = [section.name for section in SECTIONS]
    return {name: tables[name] for name in (*(name for name in order if name in tables), *tables)}


def _raise_lost(job: Job, task: str, breakdown: Breakdown) -> Tables:
    raise RuntimeError(f"{job.label}, {task}: {breakdown.cause}")


def _report_missed(tables: Sequence[Table]) -> int:
    missed = [table.title for table in tables if not table.holds]
    if missed:
        sys.stderr.write(f"missed: {', '.join(missed)}\n")
    return 1 if missed else 0


def perform(job: Job, folder: TaskFolder) -> None:
    """The worker: one section, or the strategies on some architectures."""
    name, *rows = job.subject
    if name == _STRATEGIES:
        tables = load_function("measure.strategies.strategy_tables:measure_strategies")(rows)
    else:
        function = next(section.function for section in SECTIONS if section.name == name)
        tables = {name: load_function(function)()}
    folder.write(_TASK, Tables(tables))


if __name__ == "__main__":
    serve(perform)
