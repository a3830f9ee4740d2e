"""Seeded faults: what breaks down, what that costs, and that a second run does what is missing and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.fleets import faulty_row, write_fleet

from measure.fleet.runs import cluster, command, known, run_fleet, start
from measure.pages import Table
from modelexport.fleet.bookkeeping import JOURNAL, RESULTS, read_results
from modelexport.record.results.fleet import StepId, StepResult

_HEAD = '[fleet]\nsteps = ["cost"]\ntimeout = "5m"\n'
_FINE = 6
# Long enough to be interrupted in, also on a busy machine.
_WAIT = 6
_PATIENCE = 300.0


@dataclass(frozen=True)
class Told:
    """What a fault did: how the row ended, how many of the others are ok, and what a second run did."""

    fault: str
    row: str
    others: str
    again: str
    holds: bool

    def cells(self) -> tuple[str, ...]:
        return self.fault, self.row, self.others, self.again, "yes" if self.holds else "**no**"


def measure_faults(folder: Path) -> Table:
    shutil.rmtree(folder, ignore_errors=True)
    told = [
        *(measure_row(folder / name, name, *scene) for name, scene in _ROWS.items()),
        measure_signal(folder / "interrupted", "Ctrl-C", signal.SIGINT),
        measure_signal(folder / "terminated", "SIGTERM", signal.SIGTERM),
        measure_signal(folder / "dead", "SIGKILL of the fleet itself", signal.SIGKILL),
        measure_worker(folder / "worker"),
        measure_scheduler(folder / "scheduler"),
    ]
    columns = ("fault", "the row", "other rows", "the next run", "as wanted")
    text = "Each fault is planted in a process of one row, beside rows that are fine; or in what runs them."
    return Table("Faults", text, columns, tuple(item.cells() for item in told), all(item.holds for item in told))


# By name: the fault, what is said of it, more keys of its row, and how the row has to end.
_ROWS: dict[str, tuple[str, str, str, str]] = {
    "exit": ("exit7", "`os._exit(7)`", "", "crashed"),
    "silent": ("exit0", "`os._exit(0)` before anything is written", "", "crashed"),
    "segv": ("signal11", "a crash in C (SIGSEGV)", "", "crashed"),
    "killed": ("signal9", "SIGKILL from outside, every time", "", "lost"),
    "once": ("once", "SIGKILL from outside, once", "", "ok"),
    "eater": ("eat", "takes memory without end", 'memory = "500MB"', "out of memory"),
    "hang": ("hang", "hangs", 'timeout = "5s"', "timed out"),
    "full": ("full", "no room for its files (RLIMIT_FSIZE)", "", "disk full"),
}
# What the machine is to blame for is run again.
_RUN_AGAIN = ("lost", "disk full")


def measure_row(folder: Path, name: str, fault: str, about: str, more: str, wanted: str) -> Told:
    rows = _fine_rows(_FINE) + faulty_row(folder, name, fault, more)
    manifest = write_fleet(folder, _HEAD + rows)
    run = run_fleet(manifest, folder / "out", "--jobs", "2")
    row, fine = run.results[name, "cost"], _count_ok(run.results, name)
    again = run_fleet(manifest, folder / "out", "--jobs", "2")
    ran = again.document["ran"]
    text = f"{row.status}: {row.reason}" if row.reason else str(row.status)
    holds = str(row.status) == wanted and fine == _FINE and ran == (wanted in _RUN_AGAIN)
    holds = holds and run.code == (0 if wanted == "ok" else 1)
    return Told(about, text, f"{fine} of {_FINE} ok", f"ran {ran}, kept {again.document['kept']}", holds)


def measure_signal(folder: Path, about: str, number: signal.Signals) -> Told:
    """Sent when some steps have ended and two are under way."""
    manifest = write_fleet(folder, _HEAD + _waiting_rows(folder, _FINE))
    process = start(command(manifest, folder / "out", "--jobs", "2"), folder / "log.txt")
    _wait_for(lambda: len(journal(folder)) >= 2 and _under_way(folder) >= 1)
    process.send_signal(number)
    code = process.wait(60)
    before = journal(folder)
    left = _steps_running(folder)
    wanted = -number if number is signal.SIGKILL else 128 + number
    return _resumed(about, manifest, folder, before, f"exit code {code}", code == wanted and not left)


def measure_worker(folder: Path) -> Told:
    """One of two workers is killed while it has a step; the other one goes on."""
    manifest = write_fleet(folder, _HEAD + _waiting_rows(folder, _FINE))
    with cluster(folder / "cluster", 2) as (address, _, workers):
        process = start(command(manifest, folder / "out", "--cluster", address), folder / "log.txt")
        _wait_for(lambda: _under_way(folder) >= 2)
        workers[0].kill()
        code = process.wait(_PATIENCE)
    before = known(folder / "out")
    return _resumed("SIGKILL of a Dask worker", manifest, folder, before, f"exit code {code}", code == 0)


def measure_scheduler(folder: Path) -> Told:
    manifest = write_fleet(folder, _HEAD + _waiting_rows(folder, _FINE))
    with cluster(folder / "cluster", 2) as (address, scheduler, _):
        process = start(command(manifest, folder / "out", "--cluster", address), folder / "log.txt")
        _wait_for(lambda: len(journal(folder)) >= 2 and _under_way(folder) >= 1)
        scheduler.kill()
        code = process.wait(_PATIENCE)
    return _resumed("the Dask scheduler dies", manifest, folder, journal(folder), f"exit code {code}", code == 2)


def _resumed(
    about: str, manifest: Path, folder: Path, before: Mapping[StepId, StepResult], ended: str, as_wanted: bool
) -> Told:
    """The next run does the rest: every row has one result, and none that was there is made again."""
    run = run_fleet(manifest, folder / "out", "--jobs", "2")
    ran, kept = run.document["ran"], run.document["kept"]
    lines = Counter(result.id for result in read_results(folder / "out" / RESULTS))
    complete = len(lines) == _FINE and set(lines.values()) == {1} and _count_ok(run.results) == _FINE
    untouched = all(run.results[key] == result for key, result in before.items())
    holds = as_wanted and complete and untouched and ran + kept == _FINE and kept >= len(before)
    others = f"{len(before)} of {_FINE} had ended"
    return Told(about, ended, others, f"ran {ran}, kept {kept}; {_count_ok(run.results)} ok", holds)


def _fine_rows(count: int) -> str:
    return "".join(f'\n[[row]]\nname = "fine{number}"\nfile = "a.onnx"\n' for number in range(count))


def _waiting_rows(folder: Path, count: int) -> str:
    return "".join(faulty_row(folder, f"row{number}", f"wait{_WAIT}") for number in range(count))


def journal(folder: Path) -> dict[StepId, StepResult]:
    """What is known while a run is under way, or after one that ended early."""
    journaled = {result.id: result for result in read_results(folder / "out" / JOURNAL)}
    return {**known(folder / "out"), **journaled}


def _under_way(folder: Path) -> int:
    return len(list((folder / "out" / "rows").glob("*/.modelexport-*.tmp/log.txt")))


def _steps_running(folder: Path) -> list[str]:
    """Processes that work in a folder of this run, a moment after it has ended."""
    time.sleep(0.5)
    working = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd").startswith(str(folder)):  # noqa: PTH115 - a link to nothing has no path
                    working.append(entry.name)
            except OSError:
                continue
    return working


def _count_ok(results: Mapping[StepId, StepResult], without: str = "") -> int:
    return sum(result.status == "ok" for (row, _), result in results.items() if row != without)


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired("the run", _PATIENCE)
        time.sleep(0.05)
