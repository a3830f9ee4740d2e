"""Results as JSON: one file for each task while a measurement runs, and one file for a whole corpus afterwards.

build/measure/lineage/bert-dynamo/int8.json       what one task gave; it is not run again with --resume
build/measure/lineage/bert-dynamo/qdq.running     there while a task runs; after a crash it names the culprit
measure/corpus/results.json                       all results that a page shows, a line each, committed
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

Key = tuple[str, str]
# What the figures of every page depend on.
_TOOLS = ("torch", "transformers", "onnx", "onnxruntime")


class Storable(Protocol):
    """A result that can go through a file."""

    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self: ...


class KeyedResult(Storable, Protocol):
    """A result of one row and exporter."""

    @property
    def key(self) -> Key: ...


@dataclass(frozen=True)
class RowResult:
    """What a measurement gave for one row and exporter; each measurement adds its own fields."""

    name: str
    exporter: str

    @property
    def key(self) -> Key:
        return self.name, self.exporter

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


AnyResult = TypeVar("AnyResult", bound=KeyedResult)


def installed_versions(*more: str, labels: bool = False) -> dict[str, str]:
    """labels  with local labels (`+cpu`), which say how a tool was built and not what it does"""
    versions = {tool: metadata.version(tool) for tool in (*_TOOLS, *more)}
    return versions if labels else {tool: version.partition("+")[0] for tool, version in versions.items()}


def first_line(message: str) -> str:
    return message.strip().partition("\n")[0]


@dataclass(frozen=True)
class TaskFolder:
    """The results of the tasks of one worker, a file each, and which task is running."""

    path: Path

    def result_path(self, task: str) -> Path:
        return self.path / f"{task.replace(':', '-')}.json"

    def running_path(self, task: str) -> Path:
        return self.result_path(task).with_suffix(".running")

    def write(self, task: str, result: Storable) -> None:
        self.result_path(task).write_text(json.dumps(result.to_json()), encoding="utf-8")

    def read(self, task: str) -> Mapping[str, Any]:
        content: Mapping[str, Any] = json.loads(self.result_path(task).read_text(encoding="utf-8"))
        return content

    def unfinished(self, tasks: Iterable[str]) -> list[str]:
        return [task for task in tasks if not self.result_path(task).exists()]

    def mark_running(self, task: str) -> None:
        self.running_path(task).touch()

    def clear_running(self, task: str) -> None:
        self.running_path(task).unlink(missing_ok=True)

    @contextlib.contextmanager
    def running(self, task: str) -> Iterator[None]:
        """An error goes through and leaves no mark: only what ends the process without warning does."""
        self.mark_running(task)
        try:
            yield
        finally:
            self.clear_running(task)

    def running_task(self, tasks: Sequence[str]) -> str | None:
        return next((task for task in tasks if self.running_path(task).exists()), None)

    def seconds_running(self, tasks: Sequence[str]) -> float:
        """How long the running task has been at it; 0 if there is none."""
        task = self.running_task(tasks)
        if task is None:
            return 0.0
        with contextlib.suppress(FileNotFoundError):  # it may end while we look
            return time.time() - self.running_path(task).stat().st_mtime
        return 0.0


@dataclass(frozen=True)
class Results(Generic[AnyResult]):
    """All results behind a page, by row and exporter. `versions` are of the tools that they depend on."""

    versions: Mapping[str, str] = field(default_factory=dict)
    by_key: Mapping[Key, AnyResult] = field(default_factory=dict)

    def updated(self, results: Iterable[AnyResult]) -> Results[AnyResult]:
        """With some results replaced, and the others as they were."""
        return Results(self.versions, {**self.by_key, **{result.key: result for result in results}})

    def only(self, keys: Iterable[Key]) -> Results[AnyResult]:
        """Without the results of rows that are no longer there."""
        return Results(self.versions, {key: self.by_key[key] for key in keys if key in self.by_key})


def write_results(results: Results[AnyResult], path: Path) -> None:
    """Sorted, a line for each result: a diff shows what changed and nothing else."""
    lines = [json.dumps(results.by_key[key].to_json(), ensure_ascii=False) for key in sorted(results.by_key)]
    versions = json.dumps(results.versions)
    path.write_text(
        f'{{"schema": 1,\n "versions": {versions},\n "results": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8"
    )


def read_results(path: Path, kind: type[AnyResult]) -> Results[AnyResult]:
    if not path.exists():
        return Results()
    content = json.loads(path.read_text(encoding="utf-8"))
    results = map(kind.from_json, content["results"])
    return Results(content["versions"], {result.key: result for result in results})
