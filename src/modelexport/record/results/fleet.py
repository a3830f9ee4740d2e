"""Results of `fleet`: what became of each step of each row, which budgets were kept, and what changed since.

    results.jsonl     one line for each row and step, in the order of the plan
    {"row": "bert-dynamo", "step": "export", "status": "ok", "seconds": 6.4, "figures": {"nodes": 120}, …}

A step that failed is a result and no error: the other rows go on, and the command ends with exit code 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

# What a figure of a report can be: a count, a size, a time in seconds, or whether something holds.
Figure = float | int | bool


class StepStatus(StrEnum):
    """How a step ended.

    OK             exit code 0, and all that it should write is there
    FOUND          exit code 1: it did its work and found something wrong
    FAILED         exit code 2 or 3: the command says what is wrong
    CRASHED        it ended without a result: killed by a signal, or another exit code
    TIMED_OUT      cut off at its time limit
    OUT_OF_MEMORY  cut off at its memory limit, or it says so itself
    DISK_FULL      there was no room for what it writes
    LOST           the machines that it ran on went away, again and again
    SKIPPED        a step whose file it needs did not write one
    """

    OK = "ok"
    FOUND = "found"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "disk full"
    LOST = "lost"
    SKIPPED = "skipped"

    @property
    def has_output(self) -> bool:
        """Whether other steps can use what it wrote."""
        return self in (StepStatus.OK, StepStatus.FOUND)

    @property
    def is_lasting(self) -> bool:
        """Whether it would end like this again: what the machine was to blame for is run again without being asked."""
        return self not in (StepStatus.DISK_FULL, StepStatus.LOST, StepStatus.SKIPPED)

    @property
    def depends_on_limits(self) -> bool:
        return self in (StepStatus.TIMED_OUT, StepStatus.OUT_OF_MEMORY)


StepId = tuple[str, str]


@dataclass(frozen=True, slots=True)
class StepResult:
    """
    key         digest of all that decides what comes out: content of the model, versions, options, steps before it
    seconds     wall time; `cpu_seconds` and `peak_bytes` are those of all processes of the step, None where unknown
    timeout     the limits that it ran under, None where there was none
    files       what it wrote, in bytes
    figures     numbers of its report that budgets and tables are about
    operators   how often each operator occurs, of `analyze`
    attempts    how often it was started; `worker` is the machine and process that ran it last
    """

    row: str
    step: str
    verb: str
    status: StepStatus
    reason: str = ""
    key: str = ""
    seconds: float = 0.0
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    exit_code: int | None = None
    timeout: float | None = None
    memory: int | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    operators: Mapping[str, int] = field(default_factory=dict)
    attempts: int = 1
    worker: str = ""
    started: str = ""

    @property
    def id(self) -> StepId:
        return self.row, self.step

    @property
    def model_bytes(self) -> int:
        """Of the ONNX files that it wrote, with their data: what goes to a device, without reports and records."""
        return sum(size for name, size in self.files.items() if ".onnx" in name)

    def to_json(self) -> dict[str, Any]:
        # Not `asdict`, which copies every value and takes ten times as long: fleets have 100,000 of them.
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, content: Any) -> StepResult:
        """Raises ValueError, KeyError or TypeError for what is no such line; keys of later versions are left out."""
        if not isinstance(content, dict):
            raise TypeError("it is no object")
        known = {name: value for name, value in content.items() if name in cls.__slots__}
        result = cls(**{**known, "status": StepStatus(known["status"])})
        texts = (result.row, result.step, result.verb, result.key, result.reason)
        tables = (result.files, result.figures, result.operators)
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(part, dict) for part in tables):
            raise TypeError("a text or a table of it is none")
        return result


@dataclass(frozen=True, slots=True)
class BrokenBudget:
    """`size` of the file of `export` may be 100 MB, and is 120 MB. `seen` is None where it is unknown."""

    step: str
    figure: str
    allowed: str
    seen: str | None

    def __str__(self) -> str:
        seen = "unknown" if self.seen is None else self.seen
        return f"{self.figure} of {self.step} is {seen}, and may be {self.allowed}"


@dataclass(frozen=True)
class FleetRow:
    """One row: where its model comes from, its steps so far, and the budgets that it breaks.

    missing  steps of the plan that have no result: not run yet
    """

    name: str
    source: str
    exporter: str
    steps: Mapping[str, StepResult]
    broken: tuple[BrokenBudget, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[StepResult, ...]:
        return tuple(self.steps.values())

    @property
    def ok(self) -> bool:
        return (
            not self.broken and not self.missing and all(step.status is StepStatus.OK for step in self.steps.values())
        )

    @property
    def fault(self) -> str:
        """What to look at first: the step that went wrong by itself, else the first budget."""
        wrong = [step for step in self.steps.values() if step.status is not StepStatus.OK]
        for step in sorted(wrong, key=lambda step: step.status is StepStatus.SKIPPED):
            return f"{step.step} {step.status}: {step.reason}" if step.reason else f"{step.step} {step.status}"
        if self.broken:
            return str(self.broken[0])
        return f"{', '.join(self.missing)} not run" if self.missing else ""


@dataclass(frozen=True)
class PlannedStep:
    """A step that `--dry-run` shows: what would be run, or why not."""

    row: str
    step: str
    command: tuple[str, ...]
    kept: str


@dataclass(frozen=True)
class FleetResult:
    """
    folder    where everything is
    steps     names of all steps, in the order of their columns
    ran       how many steps were run this time, and how many `kept` from before
    previous  results of the run before this one, to see what changed
    planned   of --dry-run: what would be run
    page      the HTML page, None if none was written
    asked     the rows that this run was about; empty for all of them. Only they decide whether it is `ok`
    """

    name: str
    folder: Path
    steps: tuple[str, ...]
    rows: tuple[FleetRow, ...]
    ran: int = 0
    kept: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    previous: Mapping[StepId, StepResult] = field(default_factory=dict)
    planned: tuple[PlannedStep, ...] = ()
    page: Path | None = None
    asked: tuple[str, ...] = ()

    @property
    def asked_rows(self) -> tuple[FleetRow, ...]:
        return tuple(row for row in self.rows if not self.asked or row.name in self.asked)

    @property
    def ok(self) -> bool:
        return not self.faulty

    @property
    def faulty(self) -> tuple[FleetRow, ...]:
        return tuple(row for row in self.asked_rows if not row.ok)

    @property
    def results(self) -> tuple[StepResult, ...]:
        """Of all rows, in the order of the plan."""
        return tuple(step for row in self.rows for step in row.results)

    def trend(self, step: StepResult) -> str:
        """What changed since the run before: `was failed`, `time +40 %`; empty if nothing that matters did."""
        before = self.previous.get(step.id)
        return "" if before is None else describe_trend(before, step)


@dataclass
class FleetProgress:
    """How far a run is. `running` has when each step began, by a clock that only goes on."""

    total: int
    ran: int = 0
    kept: int = 0
    failed: int = 0
    running: dict[StepId, float] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return self.ran + self.kept


# Told when a step begins (without a result) and when it ends, with how far the run is.
Listener = Callable[[StepId, StepResult | None, FleetProgress], None]

# Times of the same work differ by some per cent from run to run; below this, they say nothing.
_NOTABLE_TIME, _NOTABLE_SECONDS = 0.25, 1.0
# The record in a file has the versions and times of its export.
_NOTABLE_SIZE = 0.001


def describe_trend(before: StepResult, now: StepResult) -> str:
    """Status first, because figures of steps that ended differently cannot be compared."""
    if before.status is not now.status:
        return f"was {before.status}"
    changes = []
    if abs(now.model_bytes - before.model_bytes) > _NOTABLE_SIZE * before.model_bytes:
        changes.append(f"size {_percent(before.model_bytes, now.model_bytes)}")
    was, nodes = before.figures.get("nodes"), now.figures.get("nodes")
    if was is not None and nodes is not None and was != nodes:
        changes.append(f"nodes {was:,} → {nodes:,}")
    longer = now.seconds - before.seconds
    if abs(longer) > max(_NOTABLE_SECONDS, _NOTABLE_TIME * before.seconds):
        changes.append(f"time {_percent(before.seconds, now.seconds)}")
    return ", ".join(changes)


def _percent(before: float, now: float) -> str:
    return f"{100 * (now - before) / before:+.1f} %" if before else "from 0"
