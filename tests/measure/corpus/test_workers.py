"""A worker that hangs or breaks down is a result of its row, and the others go on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from measure.corpus.outcome import Outcome
from measure.corpus.workers import Attempt, Workers, worker_command
from tests.support.corpus_rows import fine, row

CODES = {
    "good": "import sys; print('noise'); open(sys.argv[1], 'w').write(sys.argv[2])",
    "hanging": "import time; time.sleep(60)",
    "crashing": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "raising": "raise TypeError('not this way')",
    "silent": "import sys; sys.exit(3)",
}


def command(attempt: Attempt, target: Path) -> Sequence[str]:
    """What the row is named after, in the place of a real attempt."""
    result = json.dumps(asdict(fine(attempt.row.name, attempt.exporter)))
    return sys.executable, "-S", "-c", CODES[attempt.row.name], str(target), result


def run_one(name: str, limit: float = 30) -> tuple[Outcome, str]:
    result = Workers(1, limit, command).run_one(Attempt(row(name), "dynamo"))
    assert result.key == (name, "dynamo")
    return result.outcome, result.reason


def test_a_result_comes_through_whatever_the_worker_prints() -> None:
    assert Workers(1, 30, command).run_one(Attempt(row("good"), "torchscript")) == fine("good", "torchscript")


def test_a_hanging_worker_is_cut_off_at_its_limit() -> None:
    start = time.monotonic()
    assert run_one("hanging", limit=0.5) == (Outcome.TIMED_OUT, "after 0.5 s")
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("name", "cause"),
    [("crashing", "killed by SIGSEGV"), ("raising", "TypeError: not this way"), ("silent", "exit code 3")],
)
def test_a_worker_that_breaks_down_says_how(name: str, cause: str) -> None:
    assert run_one(name) == (Outcome.CRASHED, cause)


def test_the_others_go_on() -> None:
    attempts = [Attempt(row(name), "dynamo") for name in ("crashing", "good", "raising", "hanging", "silent")]
    found = {result.name: result.outcome for result in Workers(2, 2, command).run(attempts)}
    assert found == {
        "crashing": Outcome.CRASHED,
        "good": Outcome.OK,
        "raising": Outcome.CRASHED,
        "hanging": Outcome.TIMED_OUT,
        "silent": Outcome.CRASHED,
    }


def test_a_real_worker_can_be_started() -> None:
    """It knows no such row, and says so: enough to know that it runs."""
    found = Workers(1, 120, worker_command).run_one(Attempt(row("nobody"), "dynamo"))
    assert found.outcome is Outcome.CRASHED
    assert "nobody" in found.reason
