"""Bookkeeping: what is known of every step, kept so that a run that was killed at any moment goes on where it was.

    journal.jsonl    one line for each step that ended, written at once
    results.jsonl    all steps, in the order of the plan; written when a run ends, as a whole
    previous.jsonl   that of the run before, to see what changed
    .lock            held by the process that writes here; gone with it

A line that is torn or damaged is nobody's result: its step is looked for in its own folder, and else run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from modelexport.errors import FileUnwritable, UserError
from modelexport.graph.file.atomic import unwritable, write_atomically
from modelexport.record.regular_files import open_regular
from modelexport.record.results.fleet import StepId, StepResult

JOURNAL, RESULTS, PREVIOUS, LOCK, DIGESTS = "journal.jsonl", "results.jsonl", "previous.jsonl", ".lock", ".digests.json"
# A result has some hundred bytes; an analysis counts its operators.
_LONGEST_LINE = 1 << 20


class Bookkeeping:
    """Of one folder. Results are recorded by one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = _by_id(read_results(folder / RESULTS))
        before = _by_id(read_results(folder / PREVIOUS))
        # A run that ended between two files has its results in the others.
        self.known = {**before, **self.last, **_by_id(read_results(folder / JOURNAL))}
        self.previous = before
        self._journal: BinaryIO | None = None
        self._unwritten: list[StepResult] = []

    def record(self, result: StepResult) -> None:
        """At once: on a full disk, the line waits for the next one."""
        self.known[result.id] = result
        self._unwritten.append(result)
        with suppress(OSError):
            self._write_waiting()

    def _write_waiting(self) -> None:
        if self._journal is None:
            self._journal = (self.folder / JOURNAL).open("ab", buffering=0)
        while self._unwritten:
            line = _line(self._unwritten[0]).encode()
            # From a new line on: what a full disk has cut off must not be the beginning of this one.
            written = self._journal.write(b"\n" + line)
            if written != len(line) + 1:
                raise OSError("it was not written as a whole")
            self._unwritten.pop(0)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def finish(self, results: Iterable[StepResult], *, changed: bool) -> None:
        """Write all results; what was the last run becomes the previous one if anything is new."""
        self.close()
        path = self.folder / RESULTS
        everything = list(results)
        self.known.update(_by_id(everything))
        lines = "".join(f"{_line(result)}\n" for result in everything)
        if changed and path.exists():
            with unwritable(path):
                os.replace(path, self.folder / PREVIOUS)  # noqa: PTH105 - as in the message of the error
            self.previous = self.last
        write_atomically(path, lines)
        (self.folder / JOURNAL).unlink(missing_ok=True)


def read_results(path: Path) -> Iterator[StepResult]:
    """Every line that is a result, the others left out."""
    try:
        file = open_regular(path)
    except OSError:
        return
    with file:
        while line := file.readline(_LONGEST_LINE):
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                yield StepResult.from_json(json.loads(line))


def _by_id(results: Iterable[StepResult]) -> dict[StepId, StepResult]:
    """The last one of each step."""
    return {result.id: result for result in results}


def _line(result: StepResult) -> str:
    return json.dumps(result.to_json(), allow_nan=False)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """The folder, there and for this process alone. Two runs that write to it at once would lose results of both."""
    with unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # there is none on Windows
        yield
        return
    with unwritable(folder / LOCK):
        file = (folder / LOCK).open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another fleet writes to {folder}", "Wait for it, or use another --output.") from error
        except OSError:
            pass  # file systems of networks need not have locks
        yield


def ensure_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise FileUnwritable(f"cannot write to {folder}: it is no folder", "Give another --output.")
