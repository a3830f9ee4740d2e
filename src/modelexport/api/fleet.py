"""`fleet`: many models, each step of each in a process of its own.

    result = mx.fleet("models.toml", jobs=2)
    for row in result.faulty:
        print(row.name, row.fault)

The story: read the plan, hold every command line against the commands themselves, run what is not known yet, and write
results and page. All that is found wrong with the file is found before anything runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modelexport.errors import FleetInvalid, UnknownName, UserError
from modelexport.fleet.bookkeeping import RESULTS, Bookkeeping, ensure_folder, locked_folder
from modelexport.fleet.budgets import check_budgets
from modelexport.fleet.coordinator import (
    Backend,
    Coordinator,
    LocalBackend,
    RunOptions,
    free_threads,
    machine_memory,
)
from modelexport.fleet.fleet_plan import Option, Plan, Row
from modelexport.fleet.manifest import read_plan
from modelexport.fleet.process import Limits
from modelexport.fleet.sections import read_limits
from modelexport.fleet.shared_files import Share
from modelexport.fleet.verbs import Produced, arguments_of
from modelexport.graph.file.atomic import write_atomically
from modelexport.record.results.fleet import (
    FleetProgress,
    FleetResult,
    FleetRow,
    Listener,
    PlannedStep,
    StepId,
    StepResult,
)

PAGE = "fleet.html"
_SUFFIX = "-fleet"


@dataclass(frozen=True)
class FleetOptions:
    """How a plan is run; see `modelexport fleet --help`.

    output   the folder for everything; beside the file of models if it is not given
    jobs     processes at a time; as many as there are cores if it is 0
    timeout  of each step, such as "10m"; goes over those of the file, and so does `memory`, such as "8GB"
    cluster  an address of a scheduler, or local, ssh, slurm, kubernetes; empty for processes of this machine
    address  an fsspec address for files, where workers do not see the folder
    trust    the file may ask for code to be run
    """

    output: Path | None = None
    jobs: int = 0
    timeout: float | str | None = None
    memory: float | str | None = None
    cluster: str = ""
    address: str = ""
    only: tuple[str, ...] = ()
    retry_failed: bool = False
    rerun: bool = False
    online: bool = False
    trust: bool = False
    dry_run: bool = False


def fleet(
    models: str | Path,
    options: FleetOptions | None = None,
    *,
    listener: Listener | None = None,
    page: Callable[[FleetResult], str] | None = None,
) -> FleetResult:
    """Run what a file of models asks for.

    listener  told of every step that begins or ends
    page      makes the HTML page of a result; that of `modelexport.show.page.fleet` if it is not given
    """
    given, path = options or FleetOptions(), Path(models)
    limits = read_limits(given.timeout, given.memory, "options")
    plan = _with_limits(read_plan(path, trust=given.trust), limits)
    _check_rows(plan, given.only)
    _check_commands(plan, path)
    output = given.output or Path(plan.output or path.parent / f"{path.stem}{_SUFFIX}")
    ensure_folder(output)
    if given.dry_run:
        return _plan_only(plan, given, output)
    with locked_folder(output):
        return _run(plan, given, output.absolute(), (listener or _say_nothing, page or _default_page))


def _run(
    plan: Plan, given: FleetOptions, output: Path, told: tuple[Listener, Callable[[FleetResult], str]]
) -> FleetResult:
    start, (listener, page) = time.monotonic(), told
    jobs = given.jobs or plan.jobs or os.cpu_count() or 1
    share = Share(given.address) if given.address else None
    if share is not None:
        _fetch_results(share, output)
    books = Bookkeeping(output)
    coordinator = Coordinator(plan, books, _run_options(given, jobs), listener)
    notes: tuple[str, ...] = ()
    try:
        backend, notes = _make_backend(plan, given, jobs)
        coordinator.run(backend)
    finally:
        # Steps that were skipped are no part of the journal, so that results are written as a whole.
        # After Ctrl-C as well: what ended is in the table, and the next run goes on from there.
        ran = coordinator.progress.ran
        books.finish(coordinator.results(), changed=bool(ran))
    result = _summarize(plan, output, books, coordinator.progress)
    result = replace(result, seconds=time.monotonic() - start, notes=notes, page=output / PAGE, asked=given.only)
    write_atomically(output / PAGE, page(result))
    if share is not None:
        share.write(RESULTS, (output / RESULTS).read_bytes())
        share.write(PAGE, (output / PAGE).read_bytes())
    return result


def _make_backend(plan: Plan, given: FleetOptions, jobs: int) -> tuple[Backend, tuple[str, ...]]:
    if not given.cluster:
        return LocalBackend(jobs), ()
    from modelexport.fleet.dask_backend import connect

    settings = plan.cluster
    if given.jobs:
        settings = replace(settings, workers=given.jobs)
    backend = connect(given.cluster, settings)
    return backend, tuple(backend.notes())


def _run_options(given: FleetOptions, jobs: int) -> RunOptions:
    """What this machine has is shared by local processes; workers of a cluster have machines of their own."""
    memory, threads = (None, {}) if given.cluster else (machine_memory(), free_threads(jobs))
    return RunOptions(given.only, given.retry_failed, given.rerun, given.online, memory, given.address, threads)


def _plan_only(plan: Plan, given: FleetOptions, output: Path) -> FleetResult:
    """What a run would begin with. The folder is read, and nothing is written."""
    books = Bookkeeping(output.absolute())
    coordinator = Coordinator(plan, books, _run_options(given, 1), _say_nothing)
    planned = []
    for row, step, task, kept in coordinator.plan_tasks():
        words = arguments_of(row, step, {other.name for other in row.steps})
        command = (
            "modelexport",
            *(f"{word.step}/{word.name}" if isinstance(word, Produced) else word for word in words),
        )
        reason = "" if task is not None or kept is None else f"{kept.status} before"
        planned.append(PlannedStep(row.name, step.name, command, reason))
    return replace(_summarize(plan, output, books, coordinator.progress), planned=tuple(planned))


def _summarize(plan: Plan, output: Path, books: Bookkeeping, progress: FleetProgress) -> FleetResult:
    """Every row of the plan with what is known of it, run this time or not."""
    rows = tuple(_summarize_row(row, books.known) for row in plan.rows)
    return FleetResult(plan.name, output, plan.step_names, rows, progress.ran, progress.kept, previous=books.previous)


def _summarize_row(row: Row, known: Mapping[tuple[str, str], StepResult]) -> FleetRow:
    results = {step.name: known[row.name, step.name] for step in row.steps if (row.name, step.name) in known}
    missing = tuple(step.name for step in row.steps if step.name not in results)
    broken = () if missing else tuple(check_budgets(row, results))
    return FleetRow(row.name, row.source or row.file, row.exporter, results, broken, missing)


def _fetch_results(share: Share, output: Path) -> None:
    """On another machine than last time: the results of the address, if there are none here."""
    if not (output / RESULTS).exists():
        try:
            content = share.read(RESULTS)
        except OSError as error:
            raise UserError(f"cannot use {share.address}: {error}", "Check the address and its permissions.") from error
        if content is not None:
            write_atomically(output / RESULTS, content)


def _with_limits(plan: Plan, limits: Limits) -> Plan:
    if limits == Limits():
        return plan
    rows = []
    for row in plan.rows:
        steps = [
            replace(step, limits=Limits(limits.timeout or step.limits.timeout, limits.memory or step.limits.memory))
            for step in row.steps
        ]
        rows.append(replace(row, steps=tuple(steps)))
    return replace(plan, rows=tuple(rows))


def _check_rows(plan: Plan, only: Sequence[str]) -> None:
    names = [row.name for row in plan.rows]
    for name in only:
        if name not in names:
            raise UnknownName("row", name, names)


def _check_commands(plan: Plan, path: Path) -> None:
    """Every option, held against the command that would get it: once for each combination, not for each row."""
    from modelexport.cli.main import check_arguments

    checked = set[tuple[object, ...]]()
    for row in plan.rows:
        for step in row.steps:
            options: Mapping[str, Option] = {**row.load, **step.options}
            # 10,000 rows have a handful of combinations.
            signature = (step.verb, tuple(sorted(options.items())), row.exporter, bool(row.source))
            if signature not in checked:
                checked.add(signature)
                words = [str(word.name if isinstance(word, Produced) else word) for word in _words(row, step.name)]
                try:
                    check_arguments(words)
                except UserError as error:
                    raise FleetInvalid(f"{path}: {row.name}: {step.name}: {error.message}", error.hint) from error


def _words(row: Row, name: str) -> Iterator[str | Produced]:
    step = row.step(name)
    assert step is not None
    yield from arguments_of(row, step, ())


def _say_nothing(_: StepId, __: StepResult | None, ___: FleetProgress) -> None:
    return None


def _default_page(result: FleetResult) -> str:
    from modelexport.show.page.fleet import fleet_page

    return fleet_page(result)
