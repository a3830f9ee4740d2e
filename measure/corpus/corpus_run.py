"""The corpus: every row exported and verified by workers, and brought together with what was known."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from measure.catalogue import NotRunnable, Options
from measure.corpus.corpus_page import PAGE, RESULTS, Sum, compose_corpus, entries_of, find_missed
from measure.corpus.rows import FAMILIES, Outcome, Result, Row, cut_reason, describe_change, read_rows
from measure.job import Breakdown, Job
from measure.pages import list_versions, percent, write_page
from measure.results import Results, installed_versions, read_results, write_results
from measure.workers import BUILD, Measurement, Workers, module_command, print_plainly

_TASK = "verify"


@dataclass(frozen=True)
class Places:
    """Where results are kept and shown."""

    results: Path = RESULTS
    page: Path = PAGE


def run_measure(options: Options) -> int:
    rows, console, places = read_rows(), Console(stderr=True), Places()
    if options.page_only:
        write_page(places.page, compose_corpus(rows, read_results(places.results, Result)))
        return 0
    jobs = choose_jobs(rows, options)
    if not options.resume:
        shutil.rmtree(BUILD / "corpus", ignore_errors=True)
    workers = Workers(verification(options.limit), BUILD / "corpus", options.jobs, options.limit)
    return run_corpus(rows, jobs, workers, console, places)


def verification(limit: float) -> Measurement[Result]:
    """Whatever happens to a worker is the outcome of its row."""

    def lose(job: Job, _: str, breakdown: Breakdown) -> Result:
        name, exporter = job.subject
        if breakdown.timed_out:
            return Result(name, exporter, Outcome.TIMED_OUT, f"after {limit:g} s")
        return Result(name, exporter, Outcome.CRASHED, breakdown.cause)

    return Measurement(module_command("measure.corpus.verify_row"), Result, lose, accountable=True)


def choose_jobs(rows: Sequence[Row], options: Options) -> list[Job]:
    """The attempts that were asked for, in the order of the manifest."""
    if unknown := sorted(set(options.families) - set(FAMILIES)):
        raise NotRunnable(f"no such family: {', '.join(unknown)}; families are {', '.join(FAMILIES)}")
    names = options.pick_rows(tuple(row.name for row in rows))
    picked = [row for row in rows if row.name in names and row.family in (options.families or {row.family})]
    attempts = [(row.name, exporter) for row in picked for exporter in row.exporters]
    return [Job(key, (_TASK,)) for key in attempts if key[1] in (options.exporters or {key[1]})]


def run_corpus(
    rows: Sequence[Row], jobs: Sequence[Job], workers: Workers[Result], console: Console, places: Places
) -> int:
    """Make the attempts, write results and page; 1 if a row is not as it says, or too few nodes are shown."""
    known = _keep_others(read_results(places.results, Result), rows, jobs)
    made = _run_jobs(rows, jobs, workers, console)
    results = known.updated(made)
    write_results(results, places.results)
    write_page(places.page, compose_corpus(rows, results))
    return _report(rows, results, made, console)


def _keep_others(known: Results[Result], rows: Sequence[Row], jobs: Sequence[Job]) -> Results[Result]:
    """What stays of the results so far. A page speaks of one set of versions, so a part cannot be run with others."""
    everything = {(row.name, exporter) for row in rows for exporter in row.exporters}
    kept = known.only(everything - {(job.subject[0], job.subject[1]) for job in jobs})
    versions = installed_versions()
    if kept.by_key and known.versions != versions:
        raise NotRunnable(f"the results so far are of {list_versions(known.versions)}: run the whole corpus")
    return Results(versions, kept.by_key)


def _run_jobs(rows: Sequence[Row], jobs: Sequence[Job], workers: Workers[Result], console: Console) -> list[Result]:
    expected = {(row.name, exporter): row.expected[exporter] for row in rows for exporter in row.exporters}
    made = []
    for job, (result,) in workers.run(jobs):
        made.append(cut_reason(expected[result.key], result))
        if changed := describe_change(expected[result.key], result):
            # At once: a run takes long, and whoever waits may want to look into it.
            print_plainly(console, f"changed: {job.label}: {changed}")
    return made


def _report(rows: Sequence[Row], results: Results[Result], made: Sequence[Result], console: Console) -> int:
    keys = {result.key for result in made}
    entries = entries_of(rows, results)
    changed = [entry.label for entry in entries if entry.change and entry.result.key in keys]
    share, missed = Sum(entries).sound.share, find_missed(entries)
    labels = f": {'; '.join(changed)}" if changed else ""
    print_plainly(console, f"{len(keys)} attempts; {len(changed)} not as stated{labels}")
    print_plainly(
        console, f"{percent(share)} % of compute nodes are proved or enclosed, over all results with right numbers"
    )
    for shortfall in missed:
        print_plainly(console, shortfall)
    return 1 if changed or missed else 0
