"""Runs of `modelexport fleet` as a user has them: a process of its own, on this machine or on a Dask cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.job import ROOT
from modelexport.fleet.bookkeeping import RESULTS, read_results
from modelexport.fleet.process import Limits, ProcessSpec, run_process
from modelexport.record.results.fleet import StepResult

_LIMIT = 6 * 3600.0
# Seconds until a cluster is there, on a machine with other work.
_START = 120


@dataclass(frozen=True)
class FleetRun:
    """What a run printed and left, how long it took, and the most memory that all of its processes had."""

    code: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    document: Mapping[str, Any]
    results: Mapping[tuple[str, str], StepResult]


def command(models: Path, output: Path, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "modelexport", "fleet", str(models), "-o", str(output), "--trust", *more)


def environment() -> dict[str, str]:
    """A thread for each process: models of the corpus are small, and times are compared."""
    paths = (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def run_fleet(models: Path, output: Path, *more: str) -> FleetRun:
    printed, log = output.with_suffix(".json"), output.with_suffix(".log")
    output.parent.mkdir(parents=True, exist_ok=True)
    spec = ProcessSpec(command(models, output, "--format", "json", *more), ROOT, environment(), printed, log)
    ended = run_process(spec, Limits(_LIMIT))
    document = json.loads(printed.read_text() or "{}") if printed.exists() else {}
    cpu = ended.cpu_seconds or 0.0
    return FleetRun(ended.code, ended.seconds, cpu, ended.peak_bytes or 0, document, known(output))


def known(output: Path) -> Mapping[tuple[str, str], StepResult]:
    return {result.id: result for result in read_results(output / RESULTS)}


def start(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As shells start what runs in the background; a child would inherit it, and Ctrl-C is one of the faults.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("wb") as output:
        return subprocess.Popen(list(words), cwd=ROOT, env=environment(), stdout=output, stderr=output)


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[tuple[str, subprocess.Popen[bytes], list[subprocess.Popen[bytes]]]]:
    """A scheduler and its workers, each a process that can be killed. They are ended by their numbers alone."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    scheduler_words = [
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
        "--scheduler-file",
        str(file),
    ]
    processes = [start([sys.executable, "-m", "dask", *scheduler_words], folder / "scheduler.log")]
    try:
        while not file.exists() or '"address"' not in file.read_text():
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        words = [sys.executable, "-m", "dask", "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
        for number in range(workers):
            more = ["--local-directory", str(folder / f"worker{number}")]
            processes.append(start([*words, *more], folder / f"worker{number}.log"))
        _wait_for_workers(address, workers)
        yield address, processes[0], processes[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def _wait_for_workers(address: str, count: int) -> None:
    """A cluster is there before it is used; how long its own processes take to start is no matter of the fleet."""
    from distributed import Client

    with Client(address, timeout=_START, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        client.wait_for_workers(count, _START)
