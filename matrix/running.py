"""All models and exporters in processes of their own, started again behind a tool that brought one down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from matrix.attempt import result_path, running_path
from matrix.score import Outcome, Result

_ROOT = Path(__file__).parents[1]


def run_all(
    subjects: Sequence[tuple[str, str]], chains: Sequence[str], work: Path, jobs: int
) -> Iterator[list[Result]]:
    """The results of each model and exporter, as they come in. What lies in `work` already is not run again."""
    with ThreadPoolExecutor(jobs) as threads:
        waiting = [threads.submit(run_one, row, exporter, chains, work) for row, exporter in subjects]
        try:
            for ended in as_completed(waiting):
                yield ended.result()
        finally:
            # After an interrupt nothing new is started.
            threads.shutdown(wait=False, cancel_futures=True)


def run_one(row: str, exporter: str, chains: Sequence[str], work: Path) -> list[Result]:
    folder = work / f"{row}-{exporter}"
    folder.mkdir(parents=True, exist_ok=True)
    while left := [chain for chain in chains if not result_path(folder, chain).exists()]:
        code, said = _run([sys.executable, "-m", "matrix.attempt", row, exporter, str(folder), *left], folder)
        if code == 0:
            break
        culprit = next((chain for chain in left if running_path(folder, chain).exists()), None)
        if culprit is None:
            raise RuntimeError(f"{row}, {exporter}: {said}")
        running_path(folder, culprit).unlink()
        lost = Result(row, exporter, culprit, Outcome.FAILED, said)
        result_path(folder, culprit).write_text(json.dumps(lost.to_json()), encoding="utf-8")
    return [_read(result_path(folder, chain)) for chain in chains]


def _read(path: Path) -> Result:
    return Result.from_json(json.loads(path.read_text(encoding="utf-8")))


def _run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """One thread for each worker, since there are as many as cores; and nothing from the network."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    log = folder / "log.txt"
    with log.open("wb") as output:
        ended = subprocess.run(
            command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        return ended.returncode, "took too long" if name == "SIGALRM" else f"killed by {name}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return ended.returncode, lines[-1].strip() if lines else f"exit code {ended.returncode}"
