"""Workers: tasks in processes of their own, several at a time, with a limit for each task.

A crash or a hang costs one task and not the run. A worker does the tasks of one job in turn and writes a result of
each; if it breaks down, the running task is lost and another worker goes on behind it:

    worker 1   ort:all ✓   int8 ✗ killed by SIGSEGV
    worker 2                          qdq ✓   fp16 ✓

Processes and pool are those of `modelexport fleet`: a worker that ends takes all that it has started with it, and all
workers end with the measurement.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from measure.results import Storable, TaskFolder
from modelexport.fleet.pool import Pool
from modelexport.fleet.process import Cause, Limits, ProcessSpec, run_process

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "measure"

Result = TypeVar("Result", bound=Storable)


@dataclass(frozen=True)
class Job:
    """What one worker does: tasks, one after the other, with a subject, such as a row of the corpus and an exporter."""

    subject: tuple[str, ...]
    tasks: tuple[str, ...]

    @property
    def label(self) -> str:
        return ", ".join(self.subject)


@dataclass(frozen=True)
class Breakdown:
    """How a worker ended that did not finish: `timed_out` if it was cut off, else the `cause`."""

    cause: str
    timed_out: bool = False


class Interrupted(RuntimeError):
    """The measurement ends before a worker did."""


Command = Callable[[Job, Path, Sequence[str]], Sequence[str]]
Perform = Callable[[Job, TaskFolder], None]


def module_command(module: str) -> Command:
    """The command of workers that run a module whose main program is `serve`."""

    def command(job: Job, folder: Path, tasks: Sequence[str]) -> Sequence[str]:
        return sys.executable, "-W", "ignore", "-m", module, str(folder), ",".join(job.subject), *tasks

    return command


def serve(perform: Perform) -> None:
    """Do what the command line says: `python -m MODULE FOLDER SUBJECT,… TASK…`."""
    folder, subject, *tasks = sys.argv[1:]
    perform(Job(tuple(subject.split(",")), tuple(tasks)), TaskFolder(Path(folder).absolute()))


def run_alone(module: str, *arguments: str, environment: Mapping[str, str]) -> str:
    """What a module prints in a process of its own. Whatever goes wrong is raised."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables, cwd=ROOT).stdout


@dataclass(frozen=True)
class Measurement(Generic[Result]):
    """What workers do.

    command      starts a worker
    kind         of what each task gives
    lost         the result of a task that brought its worker down
    accountable  whether all that happens in a worker is the fault of its first task. If not, only what happens while a
                 task is marked as running is; else the measurement itself is wrong, and that is raised
    timed        whether workers are timed: they get all cores, and what they say goes to the console
    """

    command: Command
    kind: type[Result]
    lost: Callable[[Job, str, Breakdown], Result]
    accountable: bool = False
    timed: bool = False


@dataclass(frozen=True)
class Workers(Generic[Result]):
    """A pool: where results are kept, how many workers run at a time, and for how many seconds a task may run."""

    measurement: Measurement[Result]
    folder: Path
    jobs: int = 2
    limit: float = 300
    stop: threading.Event = field(default_factory=threading.Event, compare=False)

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, list[Result]]]:
        """Results of each job, as they come in. A task that has a result in the folder is not run again."""
        with Pool[Job, list[Result]](self.jobs, self.stop) as pool:
            yield from pool.run(jobs, self.run_job)

    def run_job(self, job: Job) -> list[Result]:
        folder = TaskFolder(self.folder / "-".join(job.subject))
        folder.path.mkdir(parents=True, exist_ok=True)
        for task in job.tasks:  # an interrupted run may have left its mark
            folder.clear_running(task)
        while left := folder.unfinished(job.tasks):
            breakdown = self._run_worker(job, folder, left)
            if breakdown is None:
                break
            culprit = folder.running_task(left)
            if culprit is None:
                raise RuntimeError(f"{job.label}: {breakdown.cause}")
            folder.clear_running(culprit)
            folder.write(culprit, self.measurement.lost(job, culprit, breakdown))
        return [self.measurement.kind.from_json(folder.read(task)) for task in job.tasks]

    def _run_worker(self, job: Job, folder: TaskFolder, tasks: Sequence[str]) -> Breakdown | None:
        """None if it did all of its tasks."""
        command = self.measurement.command(job, folder.path, tasks)
        if self.measurement.accountable:
            folder.mark_running(tasks[0])
        log = folder.path / "log.txt"
        said = None if self.measurement.timed else log
        log.write_bytes(b"")
        spec = ProcessSpec(tuple(command), ROOT, self._environment(), said, said)
        # A tool may hang in C, where only a signal ends it.
        ended = run_process(spec, Limits(), self.stop, lambda: folder.seconds_running(tasks) > self.limit)
        if ended.cause is Cause.TIMED_OUT:
            return Breakdown("took too long", timed_out=True)
        if ended.cause is Cause.STOPPED:
            raise Interrupted(job.label)
        if ended.code == 0:
            folder.clear_running(tasks[0])
            return None
        return Breakdown(find_cause(ended.code, log))

    def _environment(self) -> dict[str, str]:
        """Nothing from the network; one thread for each worker, since there are as many workers as cores."""
        alike = {} if self.measurement.timed else {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        return {**os.environ, **alike}


def track_jobs(
    name: str, workers: Workers[Result], jobs: Sequence[Job], console: Console
) -> Iterator[tuple[Job, list[Result]]]:
    """Results of each job as they come in, with a bar that says how far the run is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(name, total=len(jobs))
        for job, results in workers.run(jobs):
            progress.update(bar, advance=1, description=job.label)
            yield job, results


def print_plainly(console: Console, text: str) -> None:
    """As it is: names of nodes may look like markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def find_cause(code: int, log: Path) -> str:
    """How a worker broke down, from its exit code and what it wrote."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {code}"


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """A `kill` or a closed terminal ends what runs as Ctrl-C does: processes that were started are ended, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in numbers:
            signal.signal(number, _end)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Tools talk a lot."""
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
