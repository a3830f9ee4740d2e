"""Attempts in processes of their own: a crash or a hang costs one row and not the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from measure.corpus.manifest import Row
from measure.corpus.outcome import Outcome, Result
from measure.corpus.results import read_result

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Attempt:
    row: Row
    exporter: str

    @property
    def key(self) -> tuple[str, str]:
        return self.row.name, self.exporter


def worker_command(attempt: Attempt, target: Path) -> Sequence[str]:
    """The command that makes an attempt and writes its result to `target`."""
    return sys.executable, "-m", "measure.corpus.attempt", *attempt.key, str(target)


@dataclass(frozen=True)
class Workers:
    """How attempts are run: how many at a time, for how many seconds at most, and by which command."""

    jobs: int = 2
    limit: float = 300
    command: Callable[[Attempt, Path], Sequence[str]] = worker_command

    def run(self, attempts: Iterable[Attempt]) -> Iterator[Result]:
        """Results as they come in."""
        with ThreadPoolExecutor(self.jobs) as threads:
            waiting = [threads.submit(self.run_one, attempt) for attempt in attempts]
            try:
                for ended in as_completed(waiting):
                    yield ended.result()
            finally:
                # After an interrupt nothing new is started.
                threads.shutdown(wait=False, cancel_futures=True)

    def run_one(self, attempt: Attempt) -> Result:
        with tempfile.TemporaryDirectory() as folder:
            target, log = Path(folder) / "result.json", Path(folder) / "log.txt"
            code = self._exit_code(self.command(attempt, target), log)
            if code == 0:
                return read_result(target)
            if code is None:
                return Result(*attempt.key, Outcome.TIMED_OUT, f"after {self.limit:g} s")
            return Result(*attempt.key, Outcome.CRASHED, cause(code, log))

    def _exit_code(self, command: Sequence[str], log: Path) -> int | None:
        """None if the worker had to be cut off."""
        with log.open("wb") as output:
            worker = subprocess.Popen(
                command, cwd=_ROOT, env=worker_environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                return worker.wait(self.limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                worker.kill()
                worker.wait()


def worker_environment() -> dict[str, str]:
    """One thread for each worker, since there are as many workers as cores, and nothing from the network."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def cause(code: int, log: Path) -> str:
    """How a worker broke down, from its exit code and what it wrote."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {code}"
