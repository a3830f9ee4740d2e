"""Lineage: every tool on models of the corpus by workers; what comes out is relinked and held against the truth."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from rich.console import Console

from measure.catalogue import Options
from measure.corpus.rows import EXPORTERS, read_rows
from measure.job import Breakdown, Job
from measure.lineage.chains import CHAINS, ROWS
from measure.lineage.lineage_page import PAGE, compose_lineage, targets
from measure.lineage.scoring import ToolOutcome, ToolResult
from measure.pages import write_page
from measure.workers import BUILD, Measurement, Workers, module_command, print_plainly

FOLDER = BUILD / "lineage"


def run_measure(options: Options) -> int:
    """Run chains, print what was missed, and write the page; with a part of it, leave the page alone."""
    jobs = choose_jobs(options)
    if not options.resume:
        shutil.rmtree(FOLDER, ignore_errors=True)
    results = _run_jobs(jobs, Workers(tool_runs(), FOLDER, options.jobs, options.limit))
    if not (options.rows or options.tools or options.exporters):
        write_page(PAGE, compose_lineage(results))
    return _report_targets([result for result in results if result.scores])


def tool_runs() -> Measurement[ToolResult]:
    """A tool that brings its worker down costs one result; other errors are those of the measurement."""
    return Measurement(module_command("measure.lineage.run_tools"), ToolResult, _lose)


def _lose(job: Job, chain: str, breakdown: Breakdown) -> ToolResult:
    row, exporter = job.subject
    return ToolResult(row, exporter, chain, ToolOutcome.FAILED, breakdown.cause)


def choose_jobs(options: Options) -> list[Job]:
    """Rows may be any of the corpus; without any, those of the plan."""
    rows = options.pick_rows(tuple(row.name for row in read_rows())) if options.rows else ROWS
    exporters = [exporter for exporter in EXPORTERS if exporter in (options.exporters or EXPORTERS)]
    return [Job((row, exporter), options.tools or CHAINS) for row in rows for exporter in exporters]


def _run_jobs(jobs: Sequence[Job], workers: Workers[ToolResult]) -> list[ToolResult]:
    """In the order of the jobs, whichever came in first."""
    console, by_job = Console(stderr=True), dict[Job, list[ToolResult]]()
    for job, results in workers.run(jobs):
        by_job[job] = results
        print_plainly(console, f"{len(by_job)} of {len(jobs)}: {job.label}")
        for result in results:
            for line in result.wrong:
                print_plainly(console, f"  {result.chain}: {line}")
    return [result for job in jobs for result in by_job[job]]


def _report_targets(made: Sequence[ToolResult]) -> int:
    checked = targets(made) if made else []
    for target in checked:
        sys.stdout.write(f"{'ok' if target.holds else 'MISSED':6} {target.what}: {target.measured} ({target.wanted})\n")
    return 0 if all(target.holds for target in checked) else 1
