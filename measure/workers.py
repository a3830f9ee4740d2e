"""Workers: tasks in processes of their own, several at a time, with a limit for each task.

A crash or a hang costs one task and not the run. A worker does the tasks of one job in turn and writes a result of
each; if it breaks down, the running task is lost and another worker goes on behind it:

    worker 1   ort:all ✓   int8 ✗ killed by SIGSEGV
    worker 2                          qdq ✓   fp16 ✓

Jobs are rows of a fleet (`modelexport fleet`), each with one step (`job.py`), which starts the workers of its job.

    build/measure/lineage/bert-dynamo/      what its workers write: a result of each task, files, log.txt
    build/measure/lineage/rows/bert-dynamo/ what the fleet knows of it; results.jsonl has all jobs
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from measure.job import BREAKDOWN, ROOT, Breakdown, Job, Supervisor
from measure.results import Storable, TaskFolder
from modelexport.fleet.bookkeeping import Bookkeeping, locked_folder
from modelexport.fleet.coordinator import Coordinator, LocalBackend, RunOptions
from modelexport.fleet.fleet_plan import Plan, Row, Step, safe_name
from modelexport.record.results.fleet import StepStatus
from modelexport.show.text.fleet import watched_fleet

BUILD = ROOT / "build" / "measure"

_STEP, _MODULE = "measure", "measure.job"

Result = TypeVar("Result", bound=Storable)

# The command line of a worker, to which the tasks are added that are left.
Command = Callable[[Job, Path], Sequence[str]]


def module_command(module: str) -> Command:
    """The command of workers that run a module whose main program is `serve`."""

    def command(job: Job, folder: Path) -> Sequence[str]:
        return sys.executable, "-W", "ignore", "-m", module, str(folder), ",".join(job.subject)

    return command


def run_alone(module: str, *arguments: str, environment: Mapping[str, str]) -> str:
    """What a module prints in a process of its own. Whatever goes wrong is raised."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables, cwd=ROOT).stdout


def peak_memory() -> int:
    """Linux passes the peak of the parent on in `getrusage`; /proc has that of this process alone."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@dataclass(frozen=True)
class Measurement(Generic[Result]):
    """What workers do.

    command      starts a worker
    kind         of what each task gives
    lost         the result of a task that brought its worker down
    accountable  whether all that happens in a worker is the fault of its first task. If not, only what happens while a
                 task is marked as running is; else the measurement itself is wrong, and that is raised
    timed        whether workers are timed: then each of them gets all cores
    """

    command: Command
    kind: type[Result]
    lost: Callable[[Job, str, Breakdown], Result]
    accountable: bool = False
    timed: bool = False


@dataclass(frozen=True)
class Workers(Generic[Result]):
    """Where results are kept, how many workers run at a time, and for how many seconds a task may run."""

    measurement: Measurement[Result]
    folder: Path
    jobs: int = 2
    limit: float = 300

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, list[Result]]]:
        """Results of each job, as they come in. A task that has a result in the folder is not run again."""
        by_row = {safe_name("-".join(job.subject)): job for job in jobs}
        left = []
        for name, job in by_row.items():
            if TaskFolder(self._folder_of(job)).unfinished(job.tasks):
                left.append(name)
            else:
                yield job, self._read_results(job)
        if not left:
            return
        with locked_folder(self.folder), watched_fleet(quiet=False) as listener:
            books = Bookkeeping(self.folder)
            # Files of tasks say what is there already, as --resume wants it: also with other code.
            options = RunOptions(
                tuple(left), rerun=True, online=self.measurement.timed, environment=self._environment()
            )
            rows = tuple(Row(name, steps=(self._step(job),), code=str(ROOT)) for name, job in by_row.items())
            coordinator = Coordinator(Plan(self.folder.name, rows), books, options, listener or (lambda *_: None))
            try:
                for result in coordinator.steps(LocalBackend(self.jobs)):
                    job = by_row[result.row]
                    if result.status is not StepStatus.OK:
                        raise RuntimeError(f"{job.label}: {result.reason or result.status}")
                    yield job, self._read_results(job)
            finally:
                books.finish(coordinator.results(), changed=bool(coordinator.progress.ran))

    def run_job(self, job: Job) -> list[Result]:
        ((_, results),) = self.run([job])
        return results

    def _folder_of(self, job: Job) -> Path:
        return self.folder.absolute() / "-".join(job.subject)

    def _step(self, job: Job) -> Step:
        command = tuple(self.measurement.command(job, self._folder_of(job)))
        supervisor = Supervisor(command, str(self._folder_of(job)), job.tasks, self.limit, self.measurement.accountable)
        return Step(_STEP, _STEP, module=_MODULE, words=(json.dumps(asdict(supervisor)),))

    def _read_results(self, job: Job) -> list[Result]:
        folder = TaskFolder(self._folder_of(job))
        return [self._read_result(job, task, folder.read(task)) for task in job.tasks]

    def _read_result(self, job: Job, task: str, content: Mapping[str, Any]) -> Result:
        if BREAKDOWN in content:
            return self.measurement.lost(job, task, Breakdown.from_json(content))
        return self.measurement.kind.from_json(content)

    def _environment(self) -> dict[str, str]:
        """One thread for each worker, since there are as many workers as cores."""
        return {} if self.measurement.timed else {"OMP_NUM_THREADS": "1"}


def print_plainly(console: Console, text: str) -> None:
    """As it is: names of nodes may look like markup."""
    if console.stderr:
        sys.stderr.write(f"{text}\n")  # by this way it is above the bar of a run, and not in it
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)


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
