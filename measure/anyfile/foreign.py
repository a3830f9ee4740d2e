"""Files of others: every verb on every file of the manifest, and what each file tells of its modules.

Files are fetched here, one registry after the other; verbs run in workers, since a tool may hang or crash.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from rich.console import Console

from measure.anyfile.foreign_files import Fetched, ForeignFile, fetch_files, find_cache, read_manifest
from measure.anyfile.run_verbs import PAGE, PROFILE, READ, VERBS, Findings, VerbResult
from measure.catalogue import Options
from measure.job import Breakdown, Job
from measure.pages import Table, percent_of
from measure.workers import BUILD, Measurement, Workers, module_command, print_plainly

FOLDER = BUILD / "anyfile-foreign"
FEWEST_FILES, FEWEST_EXPORTERS = 25, 6
# What ONNX Runtime says of a file with an operator that it has no code for, which nobody can profile with it.
_NO_OPERATOR = ("is not a registered function/op", "NOT_IMPLEMENTED")
_TITLE = "Files of others"
_TEXT = (
    "{files} files that somebody else exported, by {exporters} exporters, from packages of PyPI and npm "
    "([manifest](../../measure/anyfile/manifest.toml)), and {verbs} commands on each: {names}. `extract`, `select`, "
    "`query` and `quantize --exclude` are given a module from the middle of the file, where there is one; `strip`, "
    "`relink`, `compare`, `verify` and the second `diff`, what ONNX Runtime's optimizer made of the file.\n\n"
    "{done:,} of {runs:,} runs ended with 0 or 1 (`validate --require-record` with 1), {refused:,} with 2 and a "
    "reason, listed below. Anything else is a defect ({defects}), and so is a change beside the input. The limit is "
    "none, on at least {fewest} files by {exporters_wanted} exporters, with a page of each ({pages}) and a profile "
    "({profiles}), unless ONNX Runtime lacks an operator ({lacking}). {missing}\n\n"
    "`classes` are those of modules that do more than hold others: known from the file / described by what their nodes "
    "do / unknown. `strong`, `inferred` and `fallback` are percent of nodes; of `fallback` ones nothing is known. "
    "Those `at the root` are inferred ones that no module inside of the model is known to have."
)
_COLUMNS = (
    *("file", "exporter", "nodes", "modules are read from", "modules", "layers", "classes"),
    *("strong", "inferred", "at the root", "fallback", "verbs", "page", "profile"),
)


def measure_foreign(options: Options) -> Table:
    """All files of the manifest, or those among the rows that were asked for."""
    console = Console(stderr=True)
    files = [file for file in read_manifest() if file.id in options.rows] or list(read_manifest())
    fetched = list(fetch_files(files, find_cache()))
    for missing in (item for item in fetched if item.path is None):
        print_plainly(console, f"{missing.file.id}: {missing.problem}")
    jobs = [Job((item.file.id,), tuple(VERBS)) for item in fetched if item.path is not None]
    if not options.resume:
        for job in jobs:
            shutil.rmtree(FOLDER / "-".join(job.subject), ignore_errors=True)
    return compose_table(fetched, run_jobs(jobs, options, console))


def run_jobs(jobs: Sequence[Job], options: Options, console: Console) -> dict[str, list[VerbResult]]:
    """Results by file; what goes wrong is said while it runs."""
    measurement = Measurement(module_command("measure.anyfile.run_verbs"), VerbResult, _lose)
    workers = Workers(measurement, FOLDER, options.jobs, options.limit)
    by_file: dict[str, list[VerbResult]] = {}
    for job, results in workers.run(jobs):
        by_file[job.label] = results
        for result in results:
            if result.is_defect:
                print_plainly(console, f"{job.label}, {result.verb}: {result.code} {result.reason}")
    return by_file


def _lose(job: Job, task: str, breakdown: Breakdown) -> VerbResult:
    return VerbResult(job.label, task, None, breakdown.cause)


def compose_table(fetched: Sequence[Fetched], by_file: Mapping[str, Sequence[VerbResult]]) -> Table:
    """In the order of the manifest. A file that could not be had is a row without figures."""
    order = {file.id: number for number, file in enumerate(read_manifest())}
    in_order = sorted(fetched, key=lambda item: order.get(item.file.id, len(order)))
    rows = tuple(_compose_row(item.file, by_file.get(item.file.id, ())) for item in in_order)
    results = [result for item in in_order for result in by_file.get(item.file.id, ())]
    exporters = {item.file.exporter.partition(",")[0] for item in in_order if item.file.id in by_file}
    defects = sum(result.is_defect for result in results)
    pages = sum(result.verb == PAGE and result.is_done for result in results)
    profiles = sum(result.verb == PROFILE and result.is_done for result in results)
    lacking = sum(result.verb == PROFILE and lacks_operator(result) for result in results)
    absent = [item for item in in_order if item.file.id not in by_file]
    text = _TEXT.format(
        files=len(by_file),
        exporters=len(exporters),
        verbs=len(VERBS),
        names=", ".join(f"`{name}`" for name in dict.fromkeys(verb.partition(":")[0] for verb in VERBS)),
        done=sum(result.is_done for result in results),
        runs=len(results),
        refused=sum(not result.is_done and not result.is_defect for result in results),
        defects=defects,
        fewest=FEWEST_FILES,
        exporters_wanted=FEWEST_EXPORTERS,
        pages=pages,
        profiles=profiles,
        lacking=lacking,
        missing=f"Missing: {', '.join(item.file.id for item in absent)}." if absent else "No file is missing.",
    )
    is_enough = len(by_file) >= FEWEST_FILES and len(exporters) >= FEWEST_EXPORTERS
    holds = not defects and is_enough and pages == profiles + lacking == len(by_file)
    problems = [f"{item.file.id} could not be had: {item.problem or 'nothing was run on it'}" for item in absent]
    return Table(_TITLE, text, _COLUMNS, rows, holds, (*problems, *list_reasons(results)))


def lacks_operator(result: VerbResult) -> bool:
    """Whether ONNX Runtime refused a file that it has no code for: `onnx.brevitas:Quant(-1) is not a registered …`"""
    return not result.is_done and not result.is_defect and any(words in result.reason for words in _NO_OPERATOR)


def list_reasons(results: Sequence[VerbResult]) -> list[str]:
    """One line for each verb and reason, defects first: `profile` of a, b: ONNX Runtime cannot run …"""
    groups: dict[tuple[bool, str, str], list[str]] = {}
    for result in results:
        if not result.is_done:
            # The same reason names another file each time.
            reason = result.reason.replace(f"{result.file}.onnx", "the file") or "no reason"
            groups.setdefault((not result.is_defect, result.verb, reason), []).append(result.file)
    return [
        f"{'' if is_refusal else 'DEFECT: '}`{verb.partition(':')[0]}` of {', '.join(files)}: {_escape(reason)}"
        for (is_refusal, verb, reason), files in sorted(groups.items())
    ]


def _compose_row(file: ForeignFile, results: Sequence[VerbResult]) -> tuple[str, ...]:
    by_verb = {result.verb: result for result in results}
    findings = by_verb[READ].findings if READ in by_verb else None
    verbs = f"{sum(result.is_done for result in results)} of {len(results)}" if results else "–"
    made = (_say_made(by_verb.get(verb)) for verb in (PAGE, PROFILE))
    return (file.id, file.exporter, *_compose_findings(findings), verbs, *made)


def _say_made(result: VerbResult | None) -> str:
    if result is not None and result.is_done:
        return "yes"
    return "lacks an operator" if result is not None and lacks_operator(result) else "no"


def _compose_findings(findings: Findings | None) -> tuple[str, ...]:
    if findings is None:
        return ("–",) * 9
    levels = (findings.strong, findings.inferred, findings.at_root, findings.fallback)
    return (
        f"{findings.nodes:,}",
        findings.source or "nothing",
        f"{findings.modules:,}",
        f"{findings.layers:,}",
        f"{findings.known} / {findings.described} / {findings.unknown}",
        *(percent_of(count, findings.nodes) for count in levels),
    )


def _escape(message: str) -> str:
    return " ".join(message.split()).replace("<", "&lt;")
