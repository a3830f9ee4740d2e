"""The process of a job: starts workers that do its tasks in turn, until each has a result or has brought one down.

    python -m measure.job '{"command": [...], "folder": "build/measure/lineage/bert-dynamo", "tasks": ["int8", …], …}'

It is the step of a row of a fleet (`workers.py`), and imports nothing that takes long.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from measure.results import TaskFolder
from modelexport.fleet.process import Cause, Limits, ProcessSpec, run_process

ROOT = Path(__file__).parents[1]
# The key of a file that has no result, but what became of the worker that should have made it.
BREAKDOWN = "breakdown"


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

    def to_json(self) -> dict[str, Any]:
        return {BREAKDOWN: asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(**content[BREAKDOWN])


Perform = Callable[[Job, TaskFolder], None]


def serve(perform: Perform) -> None:
    """Do what the command line says: `python -m MODULE FOLDER SUBJECT,… TASK…`."""
    folder, subject, *tasks = sys.argv[1:]
    perform(Job(tuple(subject.split(",")), tuple(tasks)), TaskFolder(Path(folder).absolute()))


@dataclass(frozen=True)
class Supervisor:
    """The step of a job: starts workers until each task has a result, or is known to have brought its worker down."""

    command: Sequence[str]
    folder: str
    tasks: Sequence[str]
    limit: float
    accountable: bool

    def run(self) -> None:
        folder = TaskFolder(Path(self.folder))
        folder.path.mkdir(parents=True, exist_ok=True)
        for task in self.tasks:  # an interrupted run may have left its mark
            folder.clear_running(task)
        while left := folder.unfinished(self.tasks):
            breakdown = self._run_worker(folder, left)
            if breakdown is None:
                break
            culprit = folder.running_task(left)
            if culprit is None:
                raise RuntimeError(breakdown.cause)
            folder.clear_running(culprit)
            folder.write(culprit, breakdown)

    def _run_worker(self, folder: TaskFolder, tasks: Sequence[str]) -> Breakdown | None:
        """None if it did all of its tasks."""
        if self.accountable:
            folder.mark_running(tasks[0])
        log = folder.path / "log.txt"
        spec = ProcessSpec((*self.command, *tasks), ROOT, None, log, log)
        # A tool may hang in C, where only a signal ends it.
        ended = run_process(spec, Limits(), is_over=lambda: folder.seconds_running(tasks) > self.limit)
        if ended.cause is Cause.TIMED_OUT:
            return Breakdown("took too long", timed_out=True)
        if ended.code == 0:
            folder.clear_running(tasks[0])
            return None
        return Breakdown(find_cause(ended.code, log))


def find_cause(code: int, log: Path) -> str:
    """How a worker broke down, from its exit code and what it wrote."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {code}"


if __name__ == "__main__":
    try:
        Supervisor(**json.loads(sys.argv[1])).run()
    except (OSError, RuntimeError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(3)
