"""Models that generate: every family and part measured by workers, and brought together with what was known.

python -m measure generation                     all families, all parts
python -m measure generation llama t5 faults     these, others as they were
python -m measure generation --resume            those that have no result yet
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console

from measure.catalogue import NotRunnable, Options
from measure.generation.families import Family, read_families
from measure.generation.family_result import TASKS, FamilyResult
from measure.generation.generation_page import PAGE, PART_RESULTS, RESULTS, compose_generation
from measure.generation.networks import KIND, NETWORKS
from measure.generation.parts import PART, PARTS, PartResult, measure_parts
from measure.job import Breakdown, Job
from measure.pages import list_versions, write_page
from measure.results import KeyedResult, Results, installed_versions, read_results, write_results
from measure.workers import BUILD, Measurement, Workers, module_command, print_plainly

FOLDER = BUILD / "generation"


@dataclass(frozen=True)
class Places:
    """Where results are kept and shown."""

    results: Path = RESULTS
    parts: Path = PART_RESULTS
    page: Path = PAGE


def run_measure(options: Options) -> int:
    """Returns 1 where something is not as it should be."""
    families, places = read_families(), Places()
    known = read_results(places.results, FamilyResult), read_results(places.parts, PartResult)
    if options.page_only:
        write_page(places.page, compose_generation(families, *known))
        return 0
    everything = (*list_names(families), *PARTS)
    names = options.pick_rows(everything)
    if not options.resume:
        for name in names:
            shutil.rmtree(FOLDER / name, ignore_errors=True)
    jobs = [Job((name,), (PART,) if name in PARTS else TASKS) for name in names]
    results, parts = keep_others(known[0], everything, jobs), keep_others(known[1], everything, jobs)
    console = Console(stderr=True)
    workers = Workers(make_measurement(families), FOLDER, options.jobs, options.limit)
    results, is_sound = run_jobs(
        workers, [job for job in jobs if PART not in job.tasks], results, places.results, console
    )
    # One at a time: times are among them, and some start workers of their own.
    alone = Workers(measure_parts(), FOLDER, jobs=1)
    parts, holds = run_jobs(alone, [job for job in jobs if PART in job.tasks], parts, places.parts, console)
    write_page(places.page, compose_generation(families, results, parts))
    return int(not (is_sound and holds))


def list_names(families: Sequence[Family]) -> tuple[str, ...]:
    return (*(family.name for family in families), *NETWORKS)


def make_measurement(families: Sequence[Family]) -> Measurement[FamilyResult]:
    """What brings a worker down is the result of its family."""
    kinds = {family.name: family.kind for family in families}

    def lose(job: Job, task: str, breakdown: Breakdown) -> FamilyResult:
        (name,) = job.subject
        return FamilyResult(name, kinds.get(name, KIND), task, failure=breakdown.cause)

    return Measurement(module_command("measure.generation.export_family"), FamilyResult, lose)


class MeasuredResult(KeyedResult, Protocol):
    def list_faults(self) -> list[str]: ...


Measured = TypeVar("Measured", bound=MeasuredResult)


def run_jobs(
    workers: Workers[Measured], jobs: Sequence[Job], results: Results[Measured], path: Path, console: Console
) -> tuple[Results[Measured], bool]:
    """The results with what was measured now, and whether that is as it should be."""
    is_sound = True
    if not jobs:
        return results, is_sound
    for job, made in workers.run(jobs):
        faults = [fault for result in made for fault in result.list_faults()]
        is_sound = is_sound and not faults
        print_plainly(console, f"{job.label}: {'; '.join(faults) or 'ok'}")
        results = results.updated(made)
        # After each of them: a run takes long, and what is known should not be lost.
        write_results(results, path)
    return results, is_sound


def keep_others(known: Results[Measured], names: Collection[str], jobs: Sequence[Job]) -> Results[Measured]:
    """What stays of the results so far. A page speaks of one set of versions, so a part cannot be run with others."""
    measured = {job.subject[0] for job in jobs}
    kept = known.only(key for key in known.by_key if key[0] in names and key[0] not in measured)
    versions = installed_versions("onnxruntime-genai")
    if kept.by_key and known.versions != versions:
        raise NotRunnable(f"the results so far are of {list_versions(known.versions)}: run everything")
    return Results(versions, kept.by_key)
