"""Speed: rows of the corpus on one and two local workers and on a Dask cluster of two; the same results each time."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.fleets import faulty_row, write_fleet

from measure.corpus.rows import Row
from measure.fleet.corpus_models import MODULE, callable_name
from measure.fleet.runs import FleetRun, cluster, run_fleet
from measure.pages import Table
from modelexport.fleet.process import Limits, ProcessSpec, run_process
from modelexport.record.results.fleet import StepResult

SPEED_UP, OVERHEAD = 1.7, 0.3
_STEPS = ("export", "verify", "analyze")
# Rows that compute nothing tell what the pool itself gives, also on a machine that does other work.
_WAITING_ROWS, _WAIT = 8, 4
_LAUNCHES = 20
_ALONE = "1 local worker"


def write_manifest(rows: Sequence[Row], path: Path) -> None:
    lines = ["[fleet]", f"steps = {list(_STEPS)}".replace("'", '"'), 'timeout = "30m"']
    for row in rows:
        exporters = [exporter for exporter in row.exporters if exporter in ("dynamo", "torchscript")]
        lines += ["", "[[row]]", f'name = "{row.name}"', f'source = "{MODULE}:{callable_name(row.name)}"']
        lines += [f"exporters = {exporters}".replace("'", '"')]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure_speed(rows: Sequence[Row], folder: Path) -> tuple[Table, Table]:
    manifest = folder / "corpus.toml"
    write_manifest(rows, manifest)
    runs = run_three_ways(manifest, folder / "speed")
    waiting = run_three_ways(_write_waiting(folder / "waiting"), folder / "waiting" / "runs")
    return compose_speed(runs, waiting, _launch_seconds(folder)), compose_growth(list(runs[_ALONE].results.values()))


def run_three_ways(manifest: Path, folder: Path) -> dict[str, FleetRun]:
    shutil.rmtree(folder, ignore_errors=True)
    runs = {
        _ALONE: run_fleet(manifest, folder / "one", "--jobs", "1"),
        "2 local workers": run_fleet(manifest, folder / "two", "--jobs", "2"),
    }
    with cluster(folder / "dask-cluster", 2) as (address, _, _):
        runs["Dask, 2 workers"] = run_fleet(manifest, folder / "dask", "--cluster", address)
    return runs


def _write_waiting(folder: Path) -> Path:
    rows = [faulty_row(folder, f"row{number}", f"wait{_WAIT}") for number in range(_WAITING_ROWS)]
    return write_fleet(folder, '[fleet]\nsteps = ["cost"]\n' + "".join(rows))


def _launch_seconds(folder: Path) -> float:
    """What the launcher adds to a process, median: beside the same process without it."""
    command = (sys.executable, "-I", "-S", "-c", "pass")
    with_launcher = [run_process(ProcessSpec(command, folder), Limits()).seconds for _ in range(_LAUNCHES)]
    without = []
    for _ in range(_LAUNCHES):
        start = time.perf_counter()
        subprocess.run(command, check=True)
        without.append(time.perf_counter() - start)
    return statistics.median(with_launcher) - statistics.median(without)


def compose_speed(runs: Mapping[str, FleetRun], waiting: Mapping[str, FleetRun], launch: float) -> Table:
    first = next(iter(runs.values()))
    same = all(outcomes(run) == outcomes(first) for run in runs.values())
    lines = []
    holds = same
    for kind, computed in runs.items():
        idle = waiting[kind]
        lines.append(
            (
                kind,
                f"{computed.seconds:.0f}",
                f"{first.seconds / computed.seconds:.2f}",
                f"{idle.seconds:.1f}",
                f"{waiting[_ALONE].seconds / idle.seconds:.2f}",
            )
        )
        holds = holds and (kind == _ALONE or first.seconds / computed.seconds >= SPEED_UP)
    spent = sum(result.seconds for result in first.results.values())
    rows = len({row for row, _ in first.results})
    overhead = (first.seconds - spent) / rows + launch * len(first.results) / rows
    equal = "all runs have the same results" if same else "**the runs have different results**"
    kept = "kept" if overhead <= OVERHEAD else "**not kept**"
    figures = "status, reason, nodes, operators, difference from PyTorch"
    notes = (
        f"{rows} rows of the corpus with {len(first.results)} steps ({', '.join(_STEPS)}); {equal}: {figures}.",
        (
            "The overhead of a row is the time of the run on one worker without that of its processes, start and end "
            f"of the run included, and {launch * 1000:.0f} ms of the launcher for each process: {overhead:.2f} s "
            f"(at most {OVERHEAD} s, {kept})."
        ),
        (
            f"The speed-up should be at least {SPEED_UP}. The load of the machine was {os.getloadavg()[2]:.1f} on "
            f"{os.cpu_count()} cores: with other programs beside them, two processes do not get two cores. The "
            f"last columns are {_WAITING_ROWS} rows that wait {_WAIT} s each and compute little."
        ),
    )
    columns = ("workers", "seconds", "speed-up", "seconds, rows that wait", "speed-up, rows that wait")
    return Table("One and two workers", "", columns, tuple(lines), holds and overhead <= OVERHEAD, notes)


def outcomes(run: FleetRun) -> dict[tuple[str, str], object]:
    """What must be the same wherever it runs."""
    return {
        key: (result.status, result.reason, dict(result.figures), dict(result.operators))
        for key, result in run.results.items()
    }


def compose_growth(results: Sequence[StepResult]) -> Table:
    """How time and memory of a step are spread: what the limits of rows have to leave room for."""
    lines = []
    for name in _STEPS:
        steps = [result for result in results if result.step == name and result.cpu_seconds is not None]
        if not steps:
            continue
        seconds = sorted(result.cpu_seconds or 0 for result in steps)
        peaks = sorted((result.peak_bytes or 0) / 1e6 for result in steps)
        spread = (statistics.median(seconds), seconds[math.ceil(0.9 * len(seconds)) - 1], seconds[-1])
        lines.append(
            (
                name,
                str(len(steps)),
                *(f"{value:.1f}" for value in spread),
                f"{statistics.median(peaks):.0f}",
                f"{peaks[-1]:.0f}",
            )
        )
    columns = ("step", "runs", "CPU seconds, median", "90 %", "most", "MB, median", "most MB")
    text = "CPU seconds and not wall time, so that other programs on the machine do not count."
    return Table("Time and memory of a step", text, columns, tuple(lines))
