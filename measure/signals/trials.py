"""Trials: a command that writes is sent a signal at one line of the code that writes, and what it leaves is looked at.

    old files ──► command, signal at line 88 of graph/file/atomic.py ──► old files, new ones, a mixture? leftovers?

A child is forked for each trial, with everything imported. It counts lines by tracing itself, so that a trial can be
repeated. What the command would have left is known from a run without a signal.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import modelexport
from measure.workers import silence
from modelexport.cli.main import main

PACKAGE = Path(modelexport.__file__).parent
# The code that writes: a signal in between is what a trial is about.
WRITING = tuple(
    str(PACKAGE / name)
    for name in (
        "graph/file/atomic.py",
        "graph/file/folder.py",
        "graph/file/temporaries.py",
        "graph/file/writing.py",
        "graph/file/sharing.py",
        "api/writing.py",
        "cli/main.py",
    )
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
LEFTOVER = ".modelexport-*"
_SECONDS = 180
# A line of a file, and the function that it is in.
Line = tuple[str, int, str]
# Functions that move files into their places: between two of their lines is where mixtures come from.
_MOVING = frozenset({"_commit", "_move_into_place", "_merge", "set_aside", "forget_replaced"})
Content = Mapping[str, bytes]


@dataclass(frozen=True)
class Scene:
    """A command and the files around it.

    before   makes the folder: what the command reads, and older files where it writes
    command  run in that folder
    target   what is validated afterwards
    """

    verb: str
    before: Callable[[Path], None]
    command: str
    target: str


@dataclass(frozen=True)
class Trial:
    scene: Scene
    number: signal.Signals
    line: Line
    occurrence: int


@dataclass(frozen=True)
class TrialResult:
    """
    state      of the files that the command writes: `old`, `new`, or `mixed`
    torn       a file that is neither the old nor the new one
    leftovers  temporary files that are there afterwards
    detected   of a mixture: whether `validate` says so
    again      whether the same command, run once more, leaves what it should, and no leftovers
    """

    trial: Trial
    code: int
    state: str
    torn: tuple[str, ...]
    leftovers: tuple[str, ...]
    detected: bool
    again: bool
    traceback: bool

    @property
    def faults(self) -> list[str]:
        is_killed = self.trial.number == signal.SIGKILL
        found = {
            "torn file": bool(self.torn),
            "leftover": bool(self.leftovers) and not is_killed,
            "mixture without a kill": self.state == "mixed" and not is_killed,
            "undetected mixture": self.state == "mixed" and not self.detected,
            "next run": not self.again,
            "traceback": self.traceback,
        }
        return [name for name, is_so in found.items() if is_so]


def read_folder(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".modelexport-" not in str(path))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def find_leftovers(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.rglob(LEFTOVER)))


@dataclass(frozen=True)
class Rehearsal:
    """A scene without a signal: the folder before and after, and how often each line of the writing code ran."""

    scene: Scene
    before: Content
    after: Content
    lines: Mapping[Line, int]

    def plan(self, count: int, number: signal.Signals) -> Iterator[Trial]:
        """Half of them spread over all lines that ran, half over every run of lines that move files."""
        lines = sorted(self.lines)
        once = [(line, 1 + number % self.lines[line]) for line in lines]
        moving = [(line, run + 1) for line in lines if line[2] in _MOVING for run in range(self.lines[line])]
        for places, share in ((once, count // 2), (moving, count - count // 2)):
            for index in range(share):
                yield Trial(self.scene, number, *places[int((index + 0.5) * len(places) / share)])


def rehearse(scene: Scene, folder: Path) -> Rehearsal:
    _prepare(scene, folder)
    before = read_folder(folder)
    counting = folder.with_name("lines.txt")
    code, said = _in_child(scene, folder, lambda counts: _count_lines(counts, counting))
    if code not in (0, 1):
        raise RuntimeError(f"{scene.command} ended with {code}: {said}")
    lines: dict[Line, int] = {}
    for entry in counting.read_text(encoding="utf-8").splitlines():
        name, line, function, times = entry.rsplit(" ", 3)
        lines[name, int(line), function] = int(times)
    return Rehearsal(scene, before, read_folder(folder), lines)


def run_trial(trial: Trial, rehearsal: Rehearsal, folder: Path) -> TrialResult:
    _prepare(trial.scene, folder)
    code, said = _in_child(trial.scene, folder, lambda counts: _send_at(trial, counts))
    present, before, after = read_folder(folder), rehearsal.before, rehearsal.after
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    states = {name: _judge(present.get(name), before.get(name), after.get(name)) for name in names}
    torn = [name for name in present if name not in before and name not in after]
    torn += [name for name, state in states.items() if state == "torn"]
    kinds = {state for state in states.values() if state != "torn"}
    state = "mixed" if len(kinds) > 1 else next(iter(kinds), "old")
    leftovers = find_leftovers(folder)
    detected = state != "mixed" or _validate(trial.scene, folder) != 0
    code_again, _ = _in_child(trial.scene, folder, lambda _: None)
    again = code_again in (0, 1) and not find_leftovers(folder) and _is_like(read_folder(folder), after)
    return TrialResult(trial, code, state, tuple(torn), leftovers, detected, again, "Traceback" in said)


def _judge(present: bytes | None, before: bytes | None, after: bytes | None) -> str:
    if present == after:
        return "new"
    # Away while its data is replaced: nobody can take it for a whole model.
    return "old" if present in (before, None) else "torn"


def _is_like(present: Content, after: Content) -> bool:
    return all(present.get(name) == content for name, content in after.items())


def _prepare(scene: Scene, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scene.before(folder)


def _validate(scene: Scene, folder: Path) -> int:
    with silence():
        try:
            main(["validate", str(folder / scene.target)])
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


Arrange = Callable[[dict[Line, int]], Any]


def _in_child(scene: Scene, folder: Path, arrange: Arrange) -> tuple[int, str]:
    """The exit code of the command, negative if a signal ended it, and what it said on standard error."""
    said = folder.with_name("said.txt")
    child = os.fork()
    if child == 0:
        _run_command(scene, folder, arrange, said)
    deadline = time.time() + _SECONDS
    while time.time() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), said.read_text(encoding="utf-8", errors="replace")
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise RuntimeError(f"{scene.command} did not end")


def _run_command(scene: Scene, folder: Path, arrange: Arrange, said: Path) -> None:
    """Ends the process as the interpreter would, with what is to be done at exit."""
    code = 70
    try:
        os.chdir(folder)
        errors = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(errors, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        counts: dict[Line, int] = {}
        finish = arrange(counts)
        try:
            sys.argv[1:] = shlex.split(scene.command)
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except KeyboardInterrupt:
            code = 130
        atexit._run_exitfuncs()
        sys.settrace(None)
        if finish is not None:
            finish()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _trace(at_line: Callable[[Line], None]) -> None:
    names = {path: path.removeprefix(f"{PACKAGE}/") for path in WRITING}

    def trace_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            at_line((names[frame.f_code.co_filename], frame.f_lineno, frame.f_code.co_name))
        return trace_line

    def trace_call(frame: FrameType, _: str, __: object) -> Any:
        return trace_line if frame.f_code.co_filename in names else None

    sys.settrace(trace_call)


def _count_lines(counts: dict[Line, int], target: Path) -> Callable[[], None]:
    def count(line: Line) -> None:
        counts[line] = counts.get(line, 0) + 1

    def write() -> None:
        target.write_text("".join(f"{' '.join(map(str, line))} {times}\n" for line, times in counts.items()), "utf-8")

    _trace(count)
    return write


def _send_at(trial: Trial, counts: dict[Line, int]) -> None:
    def send(line: Line) -> None:
        counts[line] = counts.get(line, 0) + 1
        if line == trial.line and counts[line] == trial.occurrence:
            os.kill(os.getpid(), trial.number)

    _trace(send)


def run_trials(scenes: Sequence[Scene], folder: Path, each: int) -> Iterator[TrialResult]:
    """
    each  trials of each scene and signal
    """
    for scene in scenes:
        rehearsal = rehearse(scene, folder / "trial")
        for number in SIGNALS:
            for trial in rehearsal.plan(each, number):
                yield run_trial(trial, rehearsal, folder / "trial")
