"""Models that generate: every family exported and run by workers, and brought together with what was known.

python -m measure generation                     all families
python -m measure generation llama t5            these, others as they were
python -m measure generation --resume            those that have no result yet
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from measure.catalogue import NotRunnable, Options
from measure.generation.families import Family, read_families
from measure.generation.family_result import TASKS, FamilyResult
from measure.generation.generation_page import PAGE, RESULTS, compose_generation
from measure.generation.networks import KIND, NETWORKS
from measure.pages import list_versions, write_page
from measure.results import Results, installed_versions, read_results, write_results
from measure.workers import BUILD, Breakdown, Job, Measurement, Workers, module_command, print_plainly, track_jobs

FOLDER = BUILD / "generation"


@dataclass(frozen=True)
class Places:
    """Where results are kept and shown."""

    results: Path = RESULTS
    page: Path = PAGE


def run_measure(options: Options) -> int:
    """Returns 1 where something is not as it should be."""
    families, places = read_families(), Places()
    if options.page_only:
        write_page(places.page, compose_generation(families, read_results(places.results, FamilyResult)))
        return 0
    names = options.pick_rows(list_names(families))
    jobs = [Job((name,), TASKS) for name in names]
    if not options.resume:
        for name in names:
            shutil.rmtree(FOLDER / name, ignore_errors=True)
    workers = Workers(make_measurement(families), FOLDER, options.jobs, options.limit)
    return run_families(families, jobs, workers, Console(stderr=True), places)


def list_names(families: Sequence[Family]) -> tuple[str, ...]:
    return (*(family.name for family in families), *NETWORKS)


def make_measurement(families: Sequence[Family]) -> Measurement[FamilyResult]:
    """What brings a worker down is the result of its family."""
    kinds = {family.name: family.kind for family in families}

    def lose(job: Job, task: str, breakdown: Breakdown) -> FamilyResult:
        (name,) = job.subject
        return FamilyResult(name, kinds.get(name, KIND), task, failure=breakdown.cause)

    return Measurement(module_command("measure.generation.export_family"), FamilyResult, lose)


def run_families(
    families: Sequence[Family], jobs: Sequence[Job], workers: Workers[FamilyResult], console: Console, places: Places
) -> int:
    results = keep_others(read_results(places.results, FamilyResult), families, jobs)
    has_faults = False
    for job, made in track_jobs("generation", workers, jobs, console):
        faults = [fault for result in made for fault in result.list_faults()]
        has_faults = has_faults or bool(faults)
        print_plainly(console, f"{job.label}: {'; '.join(faults) or 'ok'}")
        results = results.updated(made)
        # After each of them: a run takes long, and what is known should not be lost.
        write_results(results, places.results)
    write_page(places.page, compose_generation(families, results))
    return int(has_faults)


def keep_others(known: Results[FamilyResult], families: Sequence[Family], jobs: Sequence[Job]) -> Results[FamilyResult]:
    """What stays of the results so far. A page speaks of one set of versions, so a part cannot be run with others."""
    measured = {job.subject[0] for job in jobs}
    kept = known.only((name, task) for name in list_names(families) if name not in measured for task in TASKS)
    versions = installed_versions("onnxruntime-genai")
    if kept.by_key and known.versions != versions:
        raise NotRunnable(f"the results so far are of {list_versions(known.versions)}: run all families")
    return Results(versions, kept.by_key)
