"""The coordinator: which step of which row runs next, and what becomes of it.

    row bert      export ──► verify ──► view
                       └───► int8   ──► profile

A step is ready when the steps whose files it reads have ended. If one of them wrote nothing, it is skipped; if its key
is that of a result that is known, the result is kept and no process is started. Everything else goes to a backend:
threads on this machine, or a cluster (`dask_backend.py`). The loop is one thread, and only it writes results.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from modelexport.fleet.attempt import Abandoned, Task, perform, read_result, step_folder
from modelexport.fleet.bookkeeping import Bookkeeping
from modelexport.fleet.contents import ContentDigests, installed_versions, step_key
from modelexport.fleet.fleet_plan import Plan, Row, Step
from modelexport.fleet.pool import Pool
from modelexport.fleet.verbs import arguments_of, expected_outputs, referred_steps
from modelexport.record.results.fleet import FleetProgress, Listener, StepResult, StepStatus


class Backend(Protocol):
    """Where steps run.

    slots  how many steps it wants to have at a time, running or waiting
    """

    @property
    def slots(self) -> int: ...

    def start(self, task: Task) -> None: ...

    def wait(self) -> Iterator[tuple[Task, StepResult]]:
        """What has ended since; after a while, nothing."""
        ...

    def close(self) -> None:
        """End all that is under way."""
        ...


class LocalBackend:
    """Processes of this machine. Steps whose memory limits would be more than there is wait for each other."""

    def __init__(self, jobs: int) -> None:
        self._pool: Pool[Task, StepResult | None] = Pool(jobs)

    @property
    def slots(self) -> int:
        return self._pool.slots

    def start(self, task: Task) -> None:
        self._pool.submit(task, self._perform)

    def _perform(self, task: Task) -> StepResult | None:
        try:
            return perform(task, self._pool.stop)
        except Abandoned:
            return None

    def wait(self) -> Iterator[tuple[Task, StepResult]]:
        for task, result in self._pool.wait():
            if result is not None:
                yield task, result

    def close(self) -> None:
        self._pool.close()


@dataclass(frozen=True)
class RunOptions:
    """
    only          names of the rows to run; empty for all
    retry_failed  run steps again that failed before, with the same content
    rerun         run everything again
    online        models may be fetched from a hub
    memory        bytes that the memory limits of local steps may add up to; None where nothing is known
    address       where files are shared through; see `shared_files.py`
    environment   variables that decide no result, such as the number of threads; those of a row go over them
    """

    only: tuple[str, ...] = ()
    retry_failed: bool = False
    rerun: bool = False
    online: bool = False
    memory: int | None = None
    address: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class Coordinator:
    """One run of a plan."""

    def __init__(self, plan: Plan, books: Bookkeeping, options: RunOptions, listener: Listener) -> None:
        self._plan, self._books, self._options, self._listener = plan, books, options, listener
        self._digests = ContentDigests(books.folder / ".digests.json")
        self._versions = installed_versions()
        self._results: dict[str, dict[str, StepResult]] = {}
        self._settled: deque[StepResult] = deque()
        self._ready: deque[Task] = deque()
        self._scheduled: set[tuple[str, str]] = set()
        self._memory_in_use: dict[tuple[str, str], int] = {}
        self._rows = {row.name: row for row in plan.rows if not options.only or row.name in options.only}
        self.progress = FleetProgress(sum(len(row.steps) for row in self._rows.values()))

    def plan_tasks(self) -> Iterator[tuple[Row, Step, Task | None, StepResult | None]]:
        """What a run would begin with, step by step: the task, or the result that is kept. Starts nothing."""
        for row in self._rows.values():
            keys: dict[str, str] = {}
            for step in row.steps:
                task = self._task(row, step, keys, keys)
                keys[step.name] = task.key
                kept = self._known(task)
                yield row, step, None if kept else task, kept

    def run(self, backend: Backend) -> None:
        """Until every step has a result. What raises in between leaves all that ended recorded."""
        deque(self.steps(backend), maxlen=0)

    def steps(self, backend: Backend) -> Generator[StepResult]:
        """Run, and give out each result as soon as it is there, those that are kept first."""
        try:
            for row in self._rows.values():
                self._advance(row)
                yield from self._take_settled()
            self._digests.save()
            while self._ready or self.progress.running:
                self._start(backend)
                for task, result in backend.wait():
                    self._end(task, result)
                yield from self._take_settled()
        finally:
            backend.close()
            self._digests.save()

    def _take_settled(self) -> Iterator[StepResult]:
        while self._settled:
            yield self._settled.popleft()

    def results(self) -> Iterator[StepResult]:
        """Of all rows of the plan, in its order; of rows that were not asked for, those that are known."""
        for row in self._plan.rows:
            results = self._results.get(row.name, {})
            for step in row.steps:
                result = results.get(step.name) or self._books.known.get((row.name, step.name))
                if result is not None:
                    yield result

    def _start(self, backend: Backend) -> None:
        """The first that fit: a large row waits until there is memory for it, and small ones go on meanwhile."""
        passed = deque[Task]()
        while self._ready and len(self.progress.running) < backend.slots:
            task = self._ready.popleft()
            if self._fits(task):
                self.progress.running[task.id] = time.monotonic()
                self._memory_in_use[task.id] = task.limits.memory or 0
                self._listener(task.id, None, self.progress)
                backend.start(task)
            else:
                passed.append(task)
        self._ready.extendleft(reversed(passed))

    def _fits(self, task: Task) -> bool:
        available, wanted = self._options.memory, task.limits.memory
        if available is None or wanted is None or not self._memory_in_use:
            return True
        return sum(self._memory_in_use.values()) + wanted <= available

    def _end(self, task: Task, result: StepResult) -> None:
        self.progress.running.pop(task.id, None)
        self._memory_in_use.pop(task.id, None)
        self._books.record(result)
        self.progress.ran += 1
        self._settle(result)
        self._advance(self._rows[task.row])

    def _settle(self, result: StepResult) -> None:
        self._results.setdefault(result.row, {})[result.step] = result
        self._settled.append(result)
        self.progress.failed += result.status is not StepStatus.OK
        self._listener(result.id, result, self.progress)

    def _advance(self, row: Row) -> None:
        """Find out what can be said of the steps of a row that have no result yet."""
        results = self._results.setdefault(row.name, {})
        ready = deque[Task]()
        for step in row.steps:
            if step.name in results or (row.name, step.name) in self._scheduled:
                continue
            needed = [name for name in (step.reads, *referred_steps(step.options)) if name]
            if not all(name in results for name in (*needed, *step.after)):
                continue
            # What it needs has ended, and wrote nothing: the reason is that step, and not this one.
            lost = next((name for name in needed if not results[name].status.has_output), None)
            if lost is not None:
                self.progress.kept += 1
                reason = f"{lost} {results[lost].status}"
                self._settle(StepResult(row.name, step.name, step.verb, StepStatus.SKIPPED, reason))
                continue
            task = self._schedule(row, step, results)
            if task is not None:
                ready.append(task)
        # A row that was begun is finished first: its files are warm, and its result is whole.
        if any(results):
            self._ready.extendleft(reversed(ready))
        else:
            self._ready.extend(ready)

    def _schedule(self, row: Row, step: Step, results: Mapping[str, StepResult]) -> Task | None:
        """The task of a step that has to be run; None if its result is known."""
        written = {name: result.key for name, result in results.items() if result.status.has_output}
        task = self._task(row, step, written, written)
        known = self._known(task)
        if known is None:
            self._scheduled.add(task.id)
            return task
        self.progress.kept += 1
        self._settle(known)
        return None

    def _task(self, row: Row, step: Step, keys: Mapping[str, str], available: Mapping[str, str]) -> Task:
        used = {step.reads, *referred_steps(step.options), *step.after}
        before = {name: key for name, key in keys.items() if name in used}
        online = {} if self._options.online else {"HF_HUB_OFFLINE": "1"}
        return Task(
            row.name,
            step.name,
            step.verb,
            arguments_of(row, step, available),
            str(self._books.folder),
            expected_outputs(row, step),
            step_key(row, step, self._digests, before, self._versions),
            step.limits,
            {**self._options.environment, **online, **row.environment},
            step.resources,
            row.code,
            self._options.address,
            self._plan.retries,
            step.module,
        )

    def _known(self, task: Task) -> StepResult | None:
        """The result of the same work, if there is one that can be kept."""
        if self._options.rerun:
            return None
        # The journal first: reading it once is quicker than a file for each step.
        result = self._books.known.get(task.id)
        folder = step_folder(self._books.folder, *task.id)
        if result is None or result.key != task.key:
            result = read_result(folder, task.key)
        if result is None or result.key != task.key or not self._can_stay(result, task):
            return None
        # Files behind an address are not looked at: for 10,000 rows, that is an hour of requests.
        is_there = bool(self._options.address) or all((folder / name).exists() for name in task.outputs)
        return result if is_there or not result.status.has_output else None

    def _can_stay(self, result: StepResult, task: Task) -> bool:
        if result.status is StepStatus.OK:
            return True
        if self._options.retry_failed or not result.status.is_lasting:
            return False
        # With more time or memory than it had, it may well end in another way.
        limits = (task.limits.timeout, task.limits.memory)
        return not result.status.depends_on_limits or (result.timeout, result.memory) == limits


def free_threads(jobs: int) -> dict[str, str]:
    """Threads of each process, so that all of them together have one for each core; unless somebody has chosen."""
    threads = str(max(1, (os.cpu_count() or 1) // max(1, jobs)))
    return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": threads}


def machine_memory() -> int | None:
    """Bytes of this machine, None where that cannot be told."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
