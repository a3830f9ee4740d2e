"""How an attempt to export and verify a row can end, and whether it ended as the row says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

EXPORTERS = ("dynamo", "torchscript")


class Outcome(StrEnum):
    """The end of one attempt.

    OK          exported; the numbers agree; every node is credited, none to a wrong module call
    DIVERGES    exported, but its numbers are not those of PyTorch; the reason names the first module call that is wrong
    UNRUNNABLE  exported, but ONNX Runtime cannot run the file
    RANDOM      exported, but the model itself gives other numbers each time
    REFUSED     torch cannot export it
    DEFECT      a node is credited to a wrong module call or to none, or verify cannot run what can be run;
                nothing that a row may expect
    CRASHED     the worker broke down, or modelexport raised what it should not
    TIMED_OUT   the worker was cut off at its limit
    """

    OK = "ok"
    DIVERGES = "diverges"
    UNRUNNABLE = "unrunnable"
    RANDOM = "random"
    REFUSED = "refused"
    DEFECT = "defect"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Expected:
    """What a row says of one exporter: the outcome, and the stable beginning of its reason where it is not `ok`.

    because  why that is so, for readers
    """

    outcome: Outcome
    reason: str = ""
    because: str = ""


@dataclass(frozen=True)
class Proof:
    """How many nodes each verdict was given to. `compute` are those that make floats from the model's inputs.

    open  why compute nodes are neither proved nor enclosed, and how many of them
    """

    nodes: int = 0
    proved: int = 0
    enclosed: int = 0
    not_provable: int = 0
    contradicted: int = 0
    unattributed: int = 0
    compute: int = 0
    compute_shown: int = 0
    open: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What one attempt gave. `defects` has a line for each node that is contradicted or credited to nobody."""

    name: str
    exporter: str
    outcome: Outcome
    reason: str = ""
    proof: Proof | None = None
    defects: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.exporter


def change(expected: Expected, result: Result) -> str:
    """How a result differs from what its row says; empty where it does not."""
    if result.outcome is not expected.outcome:
        return f"expected {_told(expected.outcome, expected.reason)}, found {_told(result.outcome, result.reason)}"
    # A module call is one or another; a message may go on in another way.
    same = str.__eq__ if result.outcome is Outcome.DIVERGES else str.startswith
    if not same(result.reason, expected.reason):
        return f"{result.outcome} for another reason: expected {expected.reason!r}, found {result.reason!r}"
    return ""


def settled(expected: Expected, result: Result) -> Result:
    """The result with its reason cut to what the row calls stable: the rest of a message may change with every run."""
    return result if change(expected, result) else replace(result, reason=expected.reason)


def _told(outcome: Outcome, reason: str) -> str:
    return f"{outcome} ({reason})" if reason else str(outcome)
