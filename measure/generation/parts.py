"""Parts of the page that are not about one family: each is a table, with what has to hold of it.

    python -m measure generation faults              one part, and the page again from what is known
    build/measure/generation/faults/part.json        what it gave

A part has a process of its own. What it measures can be looked up there: files of the builder, spoiled packages.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure.catalogue import load_function
from measure.generation.targets import Target
from measure.job import Breakdown, Job, serve
from measure.pages import Table, read_table
from measure.results import Key, TaskFolder
from measure.workers import Measurement, module_command

PART = "part"
# In the order of the page; code is named and not imported, so that a part loads only what it needs.
PARTS: Mapping[str, str] = {
    "builder-files": "measure.generation.builder_files:measure_part",
    "faults": "measure.generation.faults:measure_part",
    "refused": "measure.generation.refused:measure_part",
    "overhead": "measure.generation.overhead:measure_part",
}


@dataclass(frozen=True)
class PartResult:
    name: str
    table: Table
    targets: tuple[Target, ...] = ()

    @property
    def key(self) -> Key:
        return self.name, PART

    def list_faults(self) -> list[str]:
        missed = [f"{target.what}: {target.measured}" for target in self.targets if not target.holds]
        return [*missed, *(self.table.notes if not self.table.holds else ())]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PartResult:
        targets = tuple(Target(**item) for item in content["targets"])
        return cls(content["name"], read_table(content["table"]), targets)


def measure_parts() -> Measurement[PartResult]:
    """A part that breaks down is wrong itself: what models and tools do is caught where they are called."""

    def raise_lost(job: Job, _: str, breakdown: Breakdown) -> PartResult:
        raise RuntimeError(f"{job.label}: {breakdown.cause}")

    return Measurement(module_command("measure.generation.parts"), PartResult, raise_lost)


def perform(job: Job, folder: TaskFolder) -> None:
    ((name,), (task,)) = job.subject, job.tasks
    measure: Callable[[Path], tuple[Table, tuple[Target, ...]]] = load_function(PARTS[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder.write(task, PartResult(name, *measure(folder.path)))


if __name__ == "__main__":
    serve(perform)
