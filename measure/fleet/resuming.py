"""Resume: rows whose results are there already. Nothing is run, and little is needed to find that out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.fleets import write_model

from measure.fleet.runs import FleetRun, run_fleet
from measure.pages import Table
from modelexport.fleet.bookkeeping import Bookkeeping
from modelexport.fleet.coordinator import Coordinator, RunOptions
from modelexport.fleet.manifest import read_plan
from modelexport.record.results.fleet import StepResult, StepStatus

# What is wanted is wanted of the last; the others tell how time and memory grow.
COUNTS, ROWS = (1_000, 10_000), 10_000
MEGABYTES, MILLISECONDS = 300, 20


@dataclass(frozen=True)
class Resumed:
    """What a run needed to find out that it has nothing to do."""

    rows: int
    kind: str
    run: FleetRun

    @property
    def each(self) -> float:
        """Milliseconds of a row."""
        return 1000 * self.run.seconds / self.rows

    @property
    def megabytes(self) -> float:
        return self.run.peak_bytes / 1e6

    @property
    def holds(self) -> bool:
        has_room = self.rows > ROWS or self.megabytes <= MEGABYTES
        return has_room and self.each <= MILLISECONDS and self.run.document.get("ran") == 0

    def cells(self) -> tuple[str, ...]:
        busy = 1000 * self.run.cpu_seconds / self.rows
        ran, kept = (f"{self.run.document[key]:,}" for key in ("ran", "kept"))
        figures = (f"{self.run.seconds:.1f}", f"{self.each:.2f}", f"{busy:.2f}", f"{self.megabytes:.0f}")
        return (f"{self.rows:,}", self.kind, *figures, ran, kept)


def measure_resume(folder: Path, counts: Sequence[int] = COUNTS) -> Table:
    """Every row has a model of its own."""
    resumed = [run for count in counts for run in _resume(folder, count)]
    columns = ("rows", "", "seconds", "ms a row", "CPU ms a row", "MB", "steps run", "steps kept")
    text = (
        "Each row has a model of its own and its result. "
        f"Wanted of {ROWS:,} rows: at most {MEGABYTES} MB and {MILLISECONDS} ms a row."
    )
    return Table("Resume", text, columns, tuple(run.cells() for run in resumed), all(run.holds for run in resumed))


def _resume(folder: Path, count: int) -> Iterator[Resumed]:
    shutil.rmtree(folder, ignore_errors=True)
    manifest, output = _write_rows(folder, count), folder / "out"
    _write_results(manifest, output)
    # The first time, every model is read; then its size and time are enough.
    for kind in ("models read", "models known"):
        yield Resumed(count, kind, run_fleet(manifest, output, "--jobs", "2"))
    shutil.rmtree(folder, ignore_errors=True)


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
