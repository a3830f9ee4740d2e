"""All models and exporters in processes of their own, started again behind a tool that brought one down."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from measure.corpus.workers import cause, worker_environment
from measure.lineage.attempt import result_path, running_path
from measure.lineage.score import Outcome, Result

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Export:
    """A row of the corpus and an exporter."""

    row: str
    exporter: str


def worker_command(export: Export, folder: Path, chains: Sequence[str]) -> Sequence[str]:
    """The command that runs chains of tools and writes a result of each to `folder`."""
    return sys.executable, "-m", "measure.lineage.attempt", export.row, export.exporter, str(folder), *chains


@dataclass(frozen=True)
class Workers:
    """How chains are run: which ones, where results are kept, how many processes at a time, and by which command."""

    chains: Sequence[str]
    work: Path
    jobs: int = 2
    command: Callable[[Export, Path, Sequence[str]], Sequence[str]] = worker_command

    def run(self, exports: Iterable[Export]) -> Iterator[list[Result]]:
        """The results of each export, as they come in. What lies in `work` already is not run again."""
        with ThreadPoolExecutor(self.jobs) as threads:
            waiting = [threads.submit(self.run_one, export) for export in exports]
            try:
                for ended in as_completed(waiting):
                    yield ended.result()
            finally:
                # After an interrupt nothing new is started.
                threads.shutdown(wait=False, cancel_futures=True)

    def run_one(self, export: Export) -> list[Result]:
        folder = self.work / f"{export.row}-{export.exporter}"
        folder.mkdir(parents=True, exist_ok=True)
        while left := [chain for chain in self.chains if not result_path(folder, chain).exists()]:
            code, said = _run(self.command(export, folder, left), folder)
            if code == 0:
                break
            culprit = next((chain for chain in left if running_path(folder, chain).exists()), None)
            if culprit is None:
                raise RuntimeError(f"{export.row}, {export.exporter}: {said}")
            running_path(folder, culprit).unlink()
            lost = Result(export.row, export.exporter, culprit, Outcome.FAILED, said)
            result_path(folder, culprit).write_text(json.dumps(lost.to_json()), encoding="utf-8")
        return [_read(result_path(folder, chain)) for chain in self.chains]


def _read(path: Path) -> Result:
    return Result.from_json(json.loads(path.read_text(encoding="utf-8")))


def _run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    log = folder / "log.txt"
    with log.open("wb") as output:
        ended = subprocess.run(
            command,
            cwd=_ROOT,
            env=worker_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    took_too_long = ended.returncode == -signal.SIGALRM
    return ended.returncode, "took too long" if took_too_long else cause(ended.returncode, log)
