"""Any file: exports of the corpus without their record, read by workers and held against it; and other sections.

python -m measure anyfile                  everything, and the page
python -m measure anyfile bert --tool int8 this alone; prints
python -m measure anyfile structure        one of SECTIONS, and its place on the page
python -m measure anyfile nudenet          a file of others, by every verb; prints
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from rich.console import Console

from measure.anyfile.anyfile_page import PAGE, compose_head, compose_tables, targets
from measure.anyfile.exports import keep_current
from measure.anyfile.foreign_files import read_manifest
from measure.anyfile.read_exports import EXPORTS, TASKS, TOOLS, ReadResult
from measure.catalogue import NotRunnable, Options, Section, load_function
from measure.corpus.rows import EXPORTERS, Row, read_rows
from measure.job import Breakdown, Job
from measure.lineage.chains import ROWS as TOOL_ROWS
from measure.pages import Table, compose_page, replace_sections, write_page
from measure.workers import BUILD, Measurement, Workers, module_command, print_plainly

FOLDER = BUILD / "anyfile"

_FOREIGN = "foreign"
# Other tables of the page, in its order. Each function takes the options and returns its table; `holds` says whether
# its figures are what they should be.
SECTIONS: tuple[Section, ...] = (
    Section(_FOREIGN, "every verb on files of others", "measure.anyfile.foreign:measure_foreign"),
    Section("structure", "layers of networks without names", "measure.anyfile.structure:measure_structure"),
    Section("finding_time", "time to find a hierarchy", "measure.anyfile.finding_time:measure_finding_time"),
)


def run_measure(options: Options) -> int:
    """Read all files, and write the page; with a part of it, print. Returns 1 where a target is missed."""
    rows, files = read_rows(), [file.id for file in read_manifest()]
    names = options.pick_rows((*(row.name for row in rows), *(section.name for section in SECTIONS), *files))
    if options.tools and (unknown := sorted(set(options.tools) - set(TASKS))):
        raise NotRunnable(f"no such task: {', '.join(unknown)}; tasks are {', '.join(TASKS)}")
    jobs = choose_jobs(rows, names, options)
    is_partial = bool(options.rows or options.tools or options.exporters)
    if not options.resume:
        for job in jobs:
            shutil.rmtree(FOLDER / "-".join(job.subject), ignore_errors=True)
    results = _read_files(jobs, options) if jobs else []
    # A section that is asked for by some of its files is measured in part, and has no place on the page.
    in_part = {_FOREIGN} if set(files) & set(options.rows) else set[str]()
    sections = [] if is_partial and not options.rows else [item for item in SECTIONS if item.name in {*names, *in_part}]
    tables = {section.name: load_function(section.function)(options) for section in sections}
    if not is_partial:
        write_page(PAGE, compose_page("Any file", compose_head(results), [*compose_tables(results), *tables.values()]))
    elif PAGE.exists() and (whole := [table for name, table in tables.items() if name not in in_part]):
        write_page(PAGE, replace_sections(PAGE.read_text(encoding="utf-8"), whole))
    return _report(results, list(tables.values()))


def choose_jobs(rows: Sequence[Row], names: Sequence[str], options: Options) -> list[Job]:
    """Tools are run on the rows of the lineage, unless rows or tools are asked for."""
    exporters = [exporter for exporter in EXPORTERS if exporter in (options.exporters or EXPORTERS)]
    jobs = []
    for row in rows:
        if row.name in names:
            wanted = options.tools or (TASKS if options.rows or row.name in TOOL_ROWS else _without_tools())
            jobs += [Job((row.name, exporter), tuple(wanted)) for exporter in exporters]
    return jobs


def _without_tools() -> tuple[str, ...]:
    return tuple(task for task in TASKS if task not in TOOLS)


def _read_files(jobs: Sequence[Job], options: Options) -> list[ReadResult]:
    """In the order of the jobs, whichever came in first."""
    keep_current(EXPORTS)
    measurement = Measurement(module_command("measure.anyfile.read_exports"), ReadResult, _lose)
    workers = Workers(measurement, FOLDER, options.jobs, options.limit)
    console, by_job = Console(stderr=True), dict[Job, list[ReadResult]]()
    for job, results in workers.run(jobs):
        by_job[job] = results
        for result in results:
            if result.score.wrong_strong:
                print_plainly(console, f"{job.label}, {result.task}: {result.score.wrong_strong} wrong at strong")
    return [result for job in jobs for result in by_job[job]]


def _lose(job: Job, task: str, breakdown: Breakdown) -> ReadResult:
    row, exporter = job.subject
    return ReadResult(row, exporter, task, refusal=breakdown.cause)


def _report(results: Sequence[ReadResult], measured: Sequence[Table]) -> int:
    checked = targets(results)
    for target in checked:
        sys.stdout.write(f"{'ok' if target.holds else 'MISSED':6} {target.what}: {target.measured} ({target.wanted})\n")
    for table in measured:
        sys.stdout.write(f"{table.markdown()}\n")
    return 0 if all(target.holds for target in checked) and all(table.holds for table in measured) else 1
