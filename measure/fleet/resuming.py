"""Resume: 10,000 rows whose results are there already. Nothing is run, and little is needed to find that out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.support.fleets import write_model

from measure.fleet.runs import run_fleet
from measure.pages import Table
from modelexport.fleet.bookkeeping import Bookkeeping
from modelexport.fleet.coordinator import Coordinator, RunOptions
from modelexport.fleet.manifest import read_plan
from modelexport.record.results.fleet import StepResult, StepStatus

ROWS = 10_000
MEGABYTES, MILLISECONDS = 300, 20


def measure_resume(folder: Path, count: int = ROWS) -> Table:
    """Every row has a model of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    manifest, output = _write_rows(folder, count), folder / "out"
    _write_results(manifest, output)
    lines = []
    # The first time, every model is read; then its size and time are enough.
    for kind in ("models read", "models known"):
        run = run_fleet(manifest, output, "--jobs", "2")
        ran, kept = run.document.get("ran"), run.document.get("kept")
        each, busy = (1000 * seconds / count for seconds in (run.seconds, run.cpu_seconds))
        lines.append(
            (
                kind,
                f"{run.seconds:.1f}",
                f"{each:.2f}",
                f"{busy:.2f}",
                f"{run.peak_bytes / 1e6:.0f}",
                str(ran),
                str(kept),
            )
        )
    holds = all(
        float(each) <= MILLISECONDS and float(peak) <= MEGABYTES and ran == "0" for _, _, each, _, peak, ran, _ in lines
    )
    columns = ("", "seconds", "ms a row", "CPU ms a row", "MB", "steps run", "steps kept")
    text = (
        f"{count:,} rows, each with a model of its own and its result. "
        f"Wanted: at most {MEGABYTES} MB and {MILLISECONDS} ms a row."
    )
    return Table("Resume", text, columns, tuple(lines), holds)


def _write_rows(folder: Path, count: int) -> Path:
    model = write_model(folder / "model.onnx", 3).read_bytes()
    lines = ["name,file"]
    for number in range(count):
        path = folder / "models" / f"m{number // 1000}" / f"m{number}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model)
        lines.append(f"m{number},{path.relative_to(folder)}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    manifest = folder / "models.toml"
    manifest.write_text('[fleet]\nsteps = ["cost"]\n[[row]]\ntable = "rows.csv"\n', encoding="utf-8")
    return manifest


def _write_results(manifest: Path, output: Path) -> None:
    """What a run would have left."""
    output.mkdir(parents=True)
    books = Bookkeeping(output)
    books.finish(_made_results(manifest, books, output), changed=True)


def _made_results(manifest: Path, books: Bookkeeping, output: Path) -> Iterator[StepResult]:
    for _, _, task, _ in Coordinator(read_plan(manifest), books, RunOptions(), lambda *_: None).plan_tasks():
        assert task is not None
        folder = output / "rows" / task.row / task.step
        folder.mkdir(parents=True)
        (folder / "report.json").write_text("{}")
        done = task.result(StepStatus.OK)
        yield replace(
            done, seconds=1.0, files={"report.json": 2}, figures={"nodes": 3}, operators={"Relu": 3}, started="then"
        )
