"""Planted faults: rows of the corpus by workers, and the page that says which faults were found."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from measure.catalogue import Options
from measure.corpus.rows import EXPORTERS, read_rows
from measure.job import Breakdown, Job
from measure.pages import MEASURED, Table, compose_page, list_versions, percent_of, write_page, written_by
from measure.planted.faults import KINDS
from measure.planted.plant_row import FOUND, LEFT_OPEN, TAKEN_AS_RIGHT, FaultOutcome, PlantedRow
from measure.results import installed_versions
from measure.workers import BUILD, Measurement, Workers, module_command, print_plainly

PAGE = MEASURED / "planted-faults.md"
FOLDER = BUILD / "planted"
# A spread over families, both small and deep, with bodies, calls that repeat, fused norms and equal work among them.
ROWS = (
    *("bert", "albert", "roformer", "deberta-v2", "funnel", "gpt2", "llama", "t5", "vit", "swin", "resnet", "detr"),
    *("wav2vec2", "clip", "called-thrice", "branching", "scanned", "step-by-step", "embedding-bag", "folded-norms"),
    *("twin-blocks", "multi-head"),
)
WANTED, ENOUGH = 1000, 0.99
_TEXT = (
    "{written_by}\n\n"
    "The checks that hold this project to its word are worth as much as what they find. {files} files, {rows} models "
    "of the corpus by both exporters, get {faults} wrong attributions, one at a time: in memory, so that one export "
    "and one run serve all faults of a file. Nodes are drawn at random from all, sizes and constants included.\n\n"
    "Whether *values tell* is worked out without `verify` (`measure/planted/telling.py`): the node makes many "
    "different numbers from the inputs, which operators of the PyTorch run made as well (or the first nodes below it "
    "do), and none of the operators between these numbers and what the graph has before the node is one of the wrong "
    "module; or the node is inside of a body that another module runs. Where that is not so, nobody can tell from "
    "values: sizes, constants, masks, copies, and modules that made the same."
)


def run_measure(options: Options) -> int:
    jobs = choose_jobs(options)
    if not options.resume:
        shutil.rmtree(FOLDER, ignore_errors=True)
    workers = Workers(planted_rows(), FOLDER, options.jobs, options.limit)
    console, by_job = Console(stderr=True), dict[Job, list[PlantedRow]]()
    for job, by_job[job] in workers.run(jobs):
        for result in by_job[job]:
            for fault in result.faults:
                if fault.tells and fault.said != FOUND:
                    print_plainly(console, f"{job.label}: {fault.said}: {fault.kind}: {fault.where}")
    results = [result for job in jobs for result in by_job[job]]
    if not (options.rows or options.exporters):
        write_page(PAGE, compose_planted(results))
    return _report(results, is_whole=not (options.rows or options.exporters))


def choose_jobs(options: Options) -> list[Job]:
    rows = options.pick_rows(tuple(row.name for row in read_rows())) if options.rows else ROWS
    exporters = [exporter for exporter in EXPORTERS if exporter in (options.exporters or EXPORTERS)]
    return [Job((row,), tuple(exporters)) for row in rows]


def planted_rows() -> Measurement[PlantedRow]:
    def lose(job: Job, exporter: str, breakdown: Breakdown) -> PlantedRow:
        (name,) = job.subject
        return PlantedRow(name, exporter, refusal=breakdown.cause or "timed out")

    return Measurement(module_command("measure.planted.plant_row"), PlantedRow, lose)


def compose_planted(results: Sequence[PlantedRow]) -> str:
    made = [result for result in results if result.faults]
    faults = [fault for result in made for fault in result.faults]
    head = _TEXT.format(
        written_by=written_by("planted", f"with {list_versions(installed_versions())}"),
        files=len(made),
        rows=len({result.name for result in made}),
        faults=f"{len(faults):,}",
    )
    return compose_page("Planted faults", head, [_kinds(faults), _named(faults), _missed(made), _refused(results)])


def _kinds(faults: Sequence[FaultOutcome]) -> Table:
    lines = [(kind, [fault for fault in faults if fault.kind == kind]) for kind in KINDS]
    telling = [fault for fault in faults if fault.tells]
    return Table(
        "What is found",
        f"At least {ENOUGH:.0%} of the faults that values tell must be found. Of the others, those that are *taken as "
        "right* are proved or enclosed all the same; the rest is not provable.",
        ("fault", "planted", "values tell", "found", "%", "values cannot tell", "found all the same", "taken as right"),
        tuple(_kind_row(kind, group) for kind, group in (*lines, ("**all**", faults))),
        holds=len(faults) >= WANTED and _share_found(telling) >= ENOUGH,
    )


def _kind_row(kind: str, faults: Sequence[FaultOutcome]) -> tuple[str, ...]:
    telling, others = ([fault for fault in faults if fault.tells is tells] for tells in (True, False))
    found, also = (sum(fault.said == FOUND for fault in group) for group in (telling, others))
    wrong = sum(fault.said == TAKEN_AS_RIGHT for fault in others)
    counts = (len(faults), len(telling), found)
    return (
        *(kind, *map("{:,}".format, counts), percent_of(found, len(telling))),
        *(f"{len(others):,} ({percent_of(len(others), len(faults))} %)", f"{also:,}", f"{wrong:,}"),
    )


def _share_found(faults: Sequence[FaultOutcome]) -> float:
    return sum(fault.said == FOUND for fault in faults) / max(len(faults), 1)


def _named(faults: Sequence[FaultOutcome]) -> Table:
    """How `verify` calls what it found."""
    counts = Counter((fault.kind, fault.fault) for fault in faults if fault.said == FOUND)
    names = sorted({name for _, name in counts})
    rows = ((kind, *(f"{counts[kind, name]:,}" for name in names)) for kind in KINDS)
    return Table("How it is called", "Of the faults that were found.", ("fault", *names), tuple(rows))


def _missed(results: Sequence[PlantedRow]) -> Table:
    lines = [
        (f"{result.name}, {result.exporter}", fault.kind, f"`{fault.where}`", fault.said)
        for result in results
        for fault in result.faults
        if fault.tells and fault.said != FOUND
    ]
    return Table(
        "What is missed",
        "Values tell, and `verify` does not find it.",
        ("file", "fault", "where", "said"),
        tuple(lines),
    )


def _refused(results: Sequence[PlantedRow]) -> Table:
    lines = tuple((result.name, result.exporter, result.refusal) for result in results if not result.faults)
    return Table("Rows without a file", "", ("model", "exporter", "why"), lines)


def _report(results: Sequence[PlantedRow], *, is_whole: bool) -> int:
    faults = [fault for result in results for fault in result.faults]
    telling = [fault for fault in faults if fault.tells]
    said = Counter(fault.said for fault in telling)
    share = percent_of(said[FOUND], len(telling))
    sys.stdout.write(
        f"{len(faults):,} faults planted; values tell {len(telling):,} of them, of which {said[FOUND]:,} were found "
        f"({share} %), {said[LEFT_OPEN]} left open, {said[TAKEN_AS_RIGHT]} taken as right\n"
    )
    return 0 if _share_found(telling) >= ENOUGH and (len(faults) >= WANTED or not is_whole) else 1
