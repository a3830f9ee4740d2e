"""Speed: rows of the corpus on one and two local workers and on a Dask cluster of two; the same results each time."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tests.support.fleets import faulty_row, write_fleet

from measure.corpus.rows import Row
from measure.fleet.corpus_models import MODULE, callable_name
from measure.fleet.runs import FleetRun, cluster, environment, known, run_fleet
from measure.pages import Table
from modelexport.fleet.attempt import RESULT
from modelexport.fleet.bookkeeping import Bookkeeping
from modelexport.fleet.coordinator import Coordinator, RunOptions
from modelexport.fleet.manifest import read_plan
from modelexport.record.results.fleet import StepResult

SPEED_UP, OVERHEAD = 1.7, 0.3
_STEPS = ("export", "verify", "analyze")
# So long that what a busy machine adds to the half second that they compute does not count.
_WAITING_ROWS, _WAIT = 6, 20
# Steps that take half a second, most of which is the start of Python.
_SMALL_ROWS, _READING = 12, ("analyze", "cost", "validate")
_ALONE = "1 local worker"
GROWTH = "growth"
# A load above which rows that compute tell more of the other programs than of the fleet.
_QUIET = 0.5
_BUSY = "With other programs beside them, two processes do not get two cores: see rows that wait."


def write_manifest(rows: Sequence[Row], path: Path) -> None:
    lines = ["[fleet]", f"steps = {list(_STEPS)}".replace("'", '"'), 'timeout = "30m"']
    for row in rows:
        exporters = [exporter for exporter in row.exporters if exporter in ("dynamo", "torchscript")]
        lines += ["", "[[row]]", f'name = "{row.name}"', f'source = "{MODULE}:{callable_name(row.name)}"']
        lines += [f"exporters = {exporters}".replace("'", '"')]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure_speed(rows: Sequence[Row], folder: Path) -> Table:
    load, manifest = os.getloadavg()[0], folder / "corpus.toml"
    write_manifest(rows, manifest)
    return compose_speed(run_three_ways(manifest, folder / "speed"), load)


def measure_waiting(folder: Path) -> Table:
    """Rows that compute nothing tell what the pool itself gives, also on a machine that does other work."""
    shutil.rmtree(folder, ignore_errors=True)
    rows = [faulty_row(folder, f"row{number}", f"wait{_WAIT}") for number in range(_WAITING_ROWS)]
    manifest = write_fleet(folder, '[fleet]\nsteps = ["cost"]\n' + "".join(rows))
    return compose_waiting(run_three_ways(manifest, folder / "runs"))


def compose_waiting(runs: Mapping[str, FleetRun]) -> Table:
    lines, gains = _compare(runs)
    text = (
        f"{_WAITING_ROWS} rows that wait {_WAIT} s each and compute little: what workers give, also on a machine with "
        f"other work. The speed-up of two should be at least {SPEED_UP}."
    )
    return Table("Rows that wait", text, _COLUMNS, lines, min(gains) >= SPEED_UP)


_COLUMNS = ("workers", "seconds", "speed-up")


def _compare(runs: Mapping[str, FleetRun]) -> tuple[tuple[tuple[str, ...], ...], list[float]]:
    """Lines of a table, and the speed-ups beside that of one worker."""
    gains = {kind: runs[_ALONE].seconds / run.seconds for kind, run in runs.items()}
    lines = tuple((kind, f"{run.seconds:.0f}", f"{gains[kind]:.2f}") for kind, run in runs.items())
    return lines, [gain for kind, gain in gains.items() if kind != _ALONE]


def measure_growth(rows: Sequence[Row], folder: Path, *, known_only: bool = False) -> Table:
    """One run with all cores. What an earlier one has measured is kept, as the fleet does it.

    known_only  run nothing
    """
    manifest = folder / "growth.toml"
    if not known_only:
        write_manifest(rows, manifest)
        run_fleet(manifest, folder / GROWTH)
    return compose_growth(list(known(folder / GROWTH).values()))


def run_three_ways(manifest: Path, folder: Path) -> dict[str, FleetRun]:
    shutil.rmtree(folder, ignore_errors=True)
    runs = {
        _ALONE: run_fleet(manifest, folder / "one", "--jobs", "1"),
        "2 local workers": run_fleet(manifest, folder / "two", "--jobs", "2"),
    }
    with cluster(folder / "dask-cluster", 2) as (address, _, _):
        runs["Dask, 2 workers"] = run_fleet(manifest, folder / "dask", "--cluster", address)
    return runs


def measure_overhead(folder: Path) -> Table:
    """Rows with steps that compute little, on one worker; and the same command lines one after the other, by hand.

    By hand in the same minute, and by the time of the processor: other programs on the machine slow both down.
    """
    shutil.rmtree(folder, ignore_errors=True)
    rows = "".join(f'\n[[row]]\nname = "row{number}"\nfile = "a.onnx"\n' for number in range(_SMALL_ROWS))
    manifest = write_fleet(folder, f"[fleet]\nsteps = {list(_READING)}\n{rows}".replace("'", '"'))
    run = run_fleet(manifest, folder / "out", "--jobs", "1")
    by_hand = sum(_busy_seconds_of(words, folder) for words in _command_lines(manifest, folder / "out"))
    waiting = _seconds_between(run, folder / "out") * len(_READING)
    return compose_overhead(run.cpu_seconds / _SMALL_ROWS, by_hand / _SMALL_ROWS, waiting)


def _seconds_between(run: FleetRun, output: Path) -> float:
    """From the result of a step to the start of the next one, median; on one worker, nothing runs in between."""
    ended = {key: (output / "rows" / "/".join(key) / RESULT).stat().st_mtime for key in run.results}
    order = sorted(ended, key=ended.__getitem__)
    return statistics.median(ended[key] - run.results[key].seconds - ended[before] for before, key in pairwise(order))


def compose_overhead(busy: float, by_hand: float, waiting: float) -> Table:
    """Each in seconds for a row."""
    overhead = max(0.0, busy - by_hand) + waiting
    text = (
        f"{_SMALL_ROWS} rows of {len(_READING)} steps that compute little ({', '.join(_READING)} of a file of 3 nodes) "
        "on one worker, start and end of the run included; and the same command lines, one after the other by hand. "
        f"By the time of the processor, which other programs do not change much. At most {OVERHEAD} s."
    )
    columns = ("CPU seconds of a row, fleet", "by hand", "seconds between its steps", "overhead of a row")
    cells = tuple(f"{seconds:.2f}" for seconds in (busy, by_hand, waiting, overhead))
    return Table("Overhead of a row", text, columns, (cells,), overhead <= OVERHEAD)


def _command_lines(manifest: Path, output: Path) -> Iterator[tuple[str, ...]]:
    """What the fleet has run, as a user would type it."""
    again = RunOptions(rerun=True)
    for _, _, task, _ in Coordinator(read_plan(manifest), Bookkeeping(output), again, lambda *_: None).plan_tasks():
        assert task is not None
        yield task.command(output / "rows" / task.row)


def _busy_seconds_of(words: Sequence[str], folder: Path) -> float:
    before = os.times()
    subprocess.run(words, check=True, cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def compose_speed(runs: Mapping[str, FleetRun], load: float) -> Table:
    """load  of the machine, before any of the runs"""
    first = runs[_ALONE]
    same = all(outcomes(run) == outcomes(first) for run in runs.values())
    lines, gains = _compare(runs)
    equal = "all runs have the same results" if same else "**the runs have different results**"
    figures = "status, reason, nodes, operators, difference from PyTorch"
    rows = len({row for row, _ in first.results})
    is_busy = load > _QUIET
    notes = (
        f"{rows} rows of the corpus with {len(first.results)} steps ({', '.join(_STEPS)}); {equal}: {figures}.",
        (
            f"The speed-up should be at least {SPEED_UP}. Before the run, the load of the machine was {load:.1f} on "
            f"{os.cpu_count()} cores. {_BUSY if is_busy else ''}".rstrip()
        ),
    )
    return Table("One and two workers", "", _COLUMNS, lines, same and (is_busy or min(gains) >= SPEED_UP), notes)


def outcomes(run: FleetRun) -> dict[tuple[str, str], object]:
    """What must be the same wherever it runs."""
    return {
        key: (result.status, result.reason, dict(result.figures), dict(result.operators))
        for key, result in run.results.items()
    }


def compose_growth(results: Sequence[StepResult]) -> Table:
    """How time and memory of a step are spread, and grow with the model: what limits have to leave room for."""
    nodes = {result.row: result.figures["nodes"] for result in results if "nodes" in result.figures}
    middle = statistics.median(nodes.values()) if nodes else 0
    sizes: dict[str, Callable[[str], bool]] = {
        "all": lambda _: True,
        f"up to {middle:,.0f} nodes": lambda row: nodes.get(row, 0) <= middle,
        "more": lambda row: nodes.get(row, 0) > middle,
    }
    lines = []
    for name in _STEPS:
        steps = [result for result in results if result.step == name and result.cpu_seconds is not None]
        for size, belongs in sizes.items():
            if chosen := [step for step in steps if belongs(step.row)]:
                lines.append((name, size, *_spread(chosen)))
    columns = ("step", "models", "runs", "CPU seconds, median", "90 %", "most", "MB, median", "most MB")
    text = f"{len(nodes)} exports of the corpus. CPU seconds and not wall time: other programs do not count."
    return Table("Time and memory of a step", text, columns, tuple(lines))


def _spread(steps: Sequence[StepResult]) -> tuple[str, ...]:
    seconds = sorted(step.cpu_seconds or 0 for step in steps)
    peaks = sorted((step.peak_bytes or 0) / 1e6 for step in steps)
    ninth = seconds[math.ceil(0.9 * len(seconds)) - 1]
    times = (f"{value:.1f}" for value in (statistics.median(seconds), ninth, seconds[-1]))
    return (str(len(steps)), *times, f"{statistics.median(peaks):.0f}", f"{peaks[-1]:.0f}")
