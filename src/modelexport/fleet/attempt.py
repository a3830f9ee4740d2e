"""Attempts: one step of one row, run as a command line in a folder that becomes the step's when it is done.

    rows/bert/export/                    what is there is complete
        model.onnx  model.hierarchy.json  report.json  log.txt  result.json
    rows/bert/.modelexport-….tmp/        an attempt under way; the name says whose it is

This is the unit of work, wherever it runs: in a thread beside the coordinator, or in a worker of a cluster. Nothing is
shared between steps but files. Two attempts at one step (a worker that was taken for dead, and the one in its place)
write in folders of their own, and the last one to end is the one that stays; both have the same result.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from modelexport.errors import FileUnwritable
from modelexport.fleet.fleet_plan import PROGRAM
from modelexport.fleet.process import Cause, Ended, Limits, ProcessSpec, run_process
from modelexport.fleet.reports import count_operators, describe_finding, judge_step, read_figures, read_report
from modelexport.fleet.shared_files import Share
from modelexport.fleet.verbs import LOG, REPORT, Argument, Produced
from modelexport.graph.file.temporaries import name_temporary, remove_leftovers, remove_temporary
from modelexport.record.results.fleet import StepResult, StepStatus

RESULT = "result.json"
ROWS = "rows"
# Where the processes of a row are given other code than that of this process.
_PYTHON_PATH = "PYTHONPATH"


class Abandoned(Exception):
    """Nobody wants the result any longer: the fleet was interrupted."""


@dataclass(frozen=True)
class Task:
    """
    arguments    of `module`; what earlier steps wrote is `Produced`
    root         the folder of the fleet; of a shared address, a folder of the worker
    address      where files are shared through, if they are not in a folder that all workers see
    outputs      what must be there afterwards
    environment  variables beside those of the worker
    code         a folder for Python modules of the row's model
    retries      how often it is started again if something outside of it has killed it
    """

    row: str
    step: str
    verb: str
    arguments: tuple[Argument, ...]
    root: str
    outputs: tuple[str, ...]
    key: str
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    code: str = ""
    address: str = ""
    retries: int = 1
    module: str = PROGRAM

    @property
    def reads(self) -> tuple[Produced, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, Produced))

    @property
    def id(self) -> tuple[str, str]:
        return self.row, self.step

    def command(self, row_folder: Path) -> tuple[str, ...]:
        """`-P`: no module is imported from the folder that the step writes to."""
        words = (str(row_folder / arg.step / arg.name) if isinstance(arg, Produced) else arg for arg in self.arguments)
        return (sys.executable, "-P", "-m", self.module, *words)

    def result(self, status: StepStatus, reason: str = "") -> StepResult:
        return StepResult(
            self.row,
            self.step,
            self.verb,
            status,
            reason,
            self.key,
            timeout=self.limits.timeout,
            memory=self.limits.memory,
            worker=f"{platform.node()}/{os.getpid()}",
        )


def perform(task: Task, stop: threading.Event) -> StepResult:
    """Run a step. Whatever happens to it is its result; raises Abandoned if it was told to stop."""
    if not task.address:
        return _perform_in(Path(task.root), task, stop)
    share = Share(task.address)
    with tempfile.TemporaryDirectory(prefix="modelexport-fleet-") as scratch:
        root = Path(scratch)
        try:
            for produced in task.reads:
                share.fetch(f"{ROWS}/{task.row}/{produced.step}", step_folder(root, task.row, produced.step))
            result = _perform_in(root, task, stop)
            share.store(step_folder(root, *task.id), f"{ROWS}/{task.row}/{task.step}")
        except OSError as error:
            return task.result(StepStatus.LOST, f"{task.address}: {error.strerror or error}")
        return result


def step_folder(root: Path, row: str, step: str) -> Path:
    return root / ROWS / row / step


def _perform_in(root: Path, task: Task, stop: threading.Event) -> StepResult:
    row_folder = root / ROWS / task.row
    attempt = None
    try:
        row_folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(row_folder)
        attempt = name_temporary(row_folder)
        result = _try_until_done(task, row_folder, attempt, stop)
        # Before it is moved: a folder with a result is complete, whoever finds it.
        (attempt / RESULT).write_text(json.dumps(result.to_json()), encoding="utf-8")
        _move_into_place(attempt, row_folder / task.step)
    except FileUnwritable as error:
        return task.result(StepStatus.DISK_FULL, error.message)
    except OSError as error:
        return task.result(StepStatus.DISK_FULL, f"{error.filename or row_folder}: {error.strerror or error}")
    finally:
        if attempt is not None:
            remove_temporary(attempt)
    return result


def _try_until_done(task: Task, row_folder: Path, attempt: Path, stop: threading.Event) -> StepResult:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    number, was_killed = 0, True
    while was_killed and number <= task.retries:
        number += 1
        shutil.rmtree(attempt, ignore_errors=True)
        attempt.mkdir()
        ended = _run(task, row_folder, attempt, stop)
        if ended.cause is Cause.STOPPED or stop.is_set():
            raise Abandoned
        # Who sends it is not known: the kernel where memory runs out, or somebody who ends the wrong process.
        was_killed = ended.cause is Cause.EXITED and ended.code == -signal.SIGKILL
    result = replace(_judge(task, ended, attempt), attempts=number, started=started)
    if was_killed:
        reason = "killed by SIGKILL from outside, as the system does where memory runs out"
        return replace(result, status=StepStatus.LOST, reason=reason)
    return result


def _run(task: Task, row_folder: Path, attempt: Path, stop: threading.Event) -> Ended:
    # Some commands print their report, others are given the name of a file; see `verbs.py`.
    printed = REPORT in task.outputs and REPORT not in task.arguments
    spec = ProcessSpec(
        task.command(row_folder), attempt, _environment(task), attempt / (REPORT if printed else LOG), attempt / LOG
    )
    return run_process(spec, task.limits, stop)


def _judge(task: Task, ended: Ended, attempt: Path) -> StepResult:
    status, reason = judge_step(ended, task.limits, attempt, task.outputs)
    report = read_report(attempt / REPORT) if status.has_output and REPORT in task.outputs else None
    if status is StepStatus.FOUND:
        reason = describe_finding(task.verb, report or {})
    return replace(
        task.result(status, reason),
        seconds=round(ended.seconds, 3),
        cpu_seconds=None if ended.cpu_seconds is None else round(ended.cpu_seconds, 3),
        peak_bytes=ended.peak_bytes,
        exit_code=ended.code,
        files=_sizes(attempt),
        figures=read_figures(task.verb, report or {}),
        operators=count_operators(report or {}) if task.verb == "analyze" else {},
    )


def _environment(task: Task) -> dict[str, str]:
    """That of the worker, with the row's own. The command is of the same program as this one, installed or not."""
    # An installed package is found anyway, and its folder would hide modules of Python itself.
    own = Path(__file__).parents[2]
    paths = [] if own.name in ("site-packages", "dist-packages") else [str(own)]
    paths += filter(None, (task.code, task.environment.get(_PYTHON_PATH), os.environ.get(_PYTHON_PATH)))
    return {**os.environ, **task.environment, **({_PYTHON_PATH: os.pathsep.join(paths)} if paths else {})}


def _sizes(folder: Path) -> dict[str, int]:
    """Files by name in the folder, logs and this module's own left out."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    names = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    return {name: size for name, size in names.items() if name not in (LOG, RESULT)}


def _move_into_place(attempt: Path, target: Path) -> None:
    """Another attempt at the same step may do this at the same time: then the folder of one of them is kept."""
    aside = name_temporary(target.parent)
    try:
        if target.is_symlink() or target.exists():
            target.rename(aside)
        attempt.rename(target)
    except OSError:
        if not (target / RESULT).is_file():
            raise
    finally:
        remove_temporary(aside)


def read_result(folder: Path, key: str) -> StepResult | None:
    """What a step left in its folder, if it is the one with this key: its coordinator may have ended before it."""
    try:
        content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        result = StepResult.from_json(content)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if result.key == key else None
