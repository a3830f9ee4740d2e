"""Running cases: many in one process, which is forked again when one of them hangs, crashes or ends it.

    supervisor   loads all verbs once, forks
    └── child    runs cases in its own memory, says which one begins and how it ended
        └── a case over the limit: the child is killed, the case is tried once more alone, another child goes on

The rule that every case is held to: exit code 0, 1 or 2, a message with 2, no traceback, within 10 s and 2 GB
(`limits.py`), nothing written but where it was told to.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import select
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from measure.fuzzing import limits
from measure.fuzzing.cases import COMMANDS, PER_FILE, Case, MutatedFile, draw_file, fill_command
from measure.fuzzing.limits import Watch, computing, confine, read_seconds, read_status
from measure.fuzzing.mutate_files import write_files
from measure.fuzzing.seeds import Seed, find_seeds, read_files
from measure.workers import ending_on_signals
from modelexport.cli.main import modelexport, run_guarded

LONGEST_LINE = 500
FILES_PER_CHILD = 40
# Results of a run before it was resumed.
KEPT = "kept.jsonl"
_KEPT = 3
_FRAME = re.compile(r'File "[^"]*modelexport/([^"]+)", line (\d+),? in (\S+)')


@dataclass(frozen=True)
class CaseResult:
    """How a case ended.

    code     None if it brought its process down or had to be cut off
    fault    which part of the rule it broke; empty if none
    where    the innermost place in this package, and the error
    earlier  the fault that it had before the run was resumed
    """

    number: int
    seed: str
    mutation: str
    verb: str
    code: int | None
    seconds: float = 0.0
    megabytes: int = 0
    fault: str = ""
    where: str = ""
    earlier: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Scratch:
    """Folders of one supervisor: seeds of all, and where it puts files, what commands write, and failed cases."""

    seeds: Path
    own: Path

    @property
    def given(self) -> Path:
        return self.own / "given"

    @property
    def made(self) -> Path:
        return self.own / "made"

    @property
    def failed(self) -> Path:
        """Of all supervisors."""
        return self.own.parent / "failed"

    @property
    def stack(self) -> Path:
        """Where a case that takes too long is at."""
        return self.own / "stack.txt"

    def empty(self, *folders: Path) -> None:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)


def run_case(case: Case, scratch: Scratch) -> CaseResult:
    """In this process, on files that are there already."""
    arguments = fill_command(case, scratch.given, scratch.made)
    before = _take_stock(scratch.given)
    _reset_peak()
    began = read_seconds()
    code, said = _call(arguments)
    seconds = read_seconds() - began
    fault, where = _judge(code, said), ""
    if fault:
        scratch.empty(scratch.made)
        where = _locate(_call([*arguments, "--debug"])[1])
    elif seconds > limits.SECONDS:
        fault = "time"
    elif before != _take_stock(scratch.given):
        fault, where = "stray file", "beside its input"
    elif stray := [path.name for path in scratch.made.rglob(".modelexport-*")]:
        fault, where = "stray file", stray[0]
    if any(scratch.made.iterdir()):
        scratch.empty(scratch.made)
    megabytes = read_status("VmHWM")
    if not fault and megabytes > limits.BYTES >> 20:
        fault = "memory"
    return CaseResult(
        case.number, case.seed.name, case.mutation, case.verb, code, round(seconds, 2), megabytes, fault, where
    )


def _call(arguments: list[str]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            with computing():
                code = run_guarded(modelexport, arguments)
        except BaseException:  # noqa: BLE001 - that anything comes out of the edge is what is looked for
            code = 3
            traceback.print_exc()
    return code, said.getvalue()


def _judge(code: int, said: str) -> str:
    if code not in (0, 1, 2):
        return f"exit {code}"
    if "Traceback (most recent" in said:
        return "traceback"
    if code == 2 and not said.strip():
        return "no message"
    if "not enough memory" in said:
        return "memory"  # a machine that has it would have been taken all of it
    return "long line" if any(len(line) > LONGEST_LINE for line in said.splitlines()) else ""


def _locate(said: str) -> str:
    """`graph/index.py:120 KeyError: 'y'`: the innermost frame of this package, and the last line of a traceback."""
    frames = _FRAME.findall(said)
    errors = [line for line in said.splitlines() if re.match(r"[A-Za-z_.]+(Error|Exception|Exit|Interrupt)\b", line)]
    place = "{}:{} {}".format(*frames[-1]) if frames else "?"
    return f"{place} {errors[-1] if errors else ''}"[:200].strip()


def _take_stock(folder: Path) -> list[tuple[str, int, int]]:
    found = []
    for above, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(f"{above}/{name}")
            found.append((f"{above}/{name}", status.st_size, status.st_mtime_ns))
    return sorted(found)


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _serve_cases(
    files: Sequence[MutatedFile], scratch: Scratch, pipe: IO[str], skip: frozenset[int], began: int
) -> None:
    """What a child does: one line when a case begins, one when it ends."""
    for file in files:
        cases = [case for case in file.cases if case.number not in skip]
        if not cases:
            continue
        scratch.empty(scratch.given, scratch.made)
        write_files(file.files, scratch.given)
        for case in cases:
            pipe.write(f"{case.number}\n")
            pipe.flush()
            pipe.write(json.dumps(run_case(case, scratch).to_json()) + "\n")
            pipe.flush()
            if read_status("VmSize") - began > limits.BYTES >> 21:
                return  # what one case has taken would be missing for the next


@dataclass
class Supervisor:
    """Runs files of cases in children, and gives the result of each case."""

    scratch: Scratch

    def run(self, files: Sequence[MutatedFile], *, again: bool = True) -> Iterator[CaseResult]:
        """
        again  whether a case that was cut off or crashed is tried once more, since a shared machine is slow at times
        """
        cases = {case.number: case for file in files for case in file.cases}
        done: set[int] = set()
        while len(done) < len(cases):
            before, lost, cause = len(done), None, ""
            for message in self._watch_child(files, frozenset(done)):
                if isinstance(message, CaseResult):
                    done.add(message.number)
                    yield message
                else:
                    lost, cause = message
            if lost is not None:
                done.add(lost)
                yield self._judge_lost(cases[lost], cause, files, again=again)
            elif len(done) == before:
                raise RuntimeError("a child ended before its first case")

    def _judge_lost(self, case: Case, cause: str, files: Sequence[MutatedFile], *, again: bool) -> CaseResult:
        if again:
            file = next(file for file in files if case in file.cases)
            (result,) = self.run([replace(file, cases=(case,))], again=False)
            return result
        where = _locate(_newest_first(self.scratch.stack.read_text(encoding="utf-8")))
        return CaseResult(case.number, case.seed.name, case.mutation, case.verb, None, limits.SECONDS, 0, cause, where)

    def _watch_child(
        self, files: Sequence[MutatedFile], done: frozenset[int]
    ) -> Iterator[CaseResult | tuple[int, str]]:
        """Results as they come; last, the case that was lost and why, if the child did not end by itself."""
        reading, writing = os.pipe()
        supervisor = os.getpid()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _end_child(files, self.scratch, writing, done, supervisor)
        os.close(writing)
        running: int | None = None
        status: int | None = None
        cause = ""
        watch = Watch(child)
        try:
            with os.fdopen(reading, encoding="utf-8") as pipe:
                for line in _read_lines(pipe, watch):
                    if line is None:
                        cause = "time"
                        watch.end()
                    elif line.startswith("{"):
                        running = None
                        yield CaseResult(**json.loads(line))
                    else:
                        running = int(line)
            _, status = os.waitpid(child, 0)
        finally:
            if status is None:  # the supervisor is ended, and must not leave a case that hangs
                watch.kill()
                os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if running is not None:
            yield running, cause or _name_cause(code)


def _name_cause(code: int) -> str:
    if code == -signal.SIGPROF:
        return "time"
    return signal.Signals(-code).name if code < 0 else f"ended with {code}"


def _end_child(
    files: Sequence[MutatedFile], scratch: Scratch, writing: int, done: frozenset[int], supervisor: int
) -> None:
    """Never returns: what the supervisor has still to do is not the child's to do."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    code = 1
    try:
        with os.fdopen(writing, "w", encoding="utf-8") as pipe, scratch.stack.open("w", encoding="utf-8") as stack:
            _serve_cases(files, scratch, pipe, done, confine(supervisor, stack))
        code = 0
    except BaseException:  # noqa: BLE001 - the supervisor sees the exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def _read_lines(pipe: IO[str], watch: Watch) -> Iterator[str | None]:
    """Lines as they come; None, and no more, if the case takes too long."""
    buffer = ""
    while True:
        ready, _, _ = select.select([pipe], [], [], limits.LOOK)
        if not ready:
            if watch.is_over():
                yield None
                return
            continue
        chunk = os.read(pipe.fileno(), 1 << 16).decode("utf-8")
        if not chunk:
            return
        watch.restart()
        *lines, buffer = (buffer + chunk).split("\n")
        yield from lines


def _newest_first(stack: str) -> str:
    """faulthandler lists the innermost frame first, a traceback last."""
    return "\n".join(reversed(stack.splitlines()))


def keep_failed(case: Case, file: MutatedFile, result: CaseResult, scratch: Scratch) -> None:
    """Save the files of a case that failed, and its command line; a few of each kind."""
    kind = re.sub(r"[^A-Za-z0-9]+", "-", f"{result.fault} {result.where}")[:80].strip("-")
    folder = scratch.failed / kind
    if folder.exists() and len(list(folder.iterdir())) >= _KEPT:
        return
    target = folder / f"case-{case.number}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    write_files(file.files, target)
    command = " ".join(fill_command(case, Path(), Path("made")))
    (target / "command.txt").write_text(f"modelexport {command}\n{result}\n", encoding="utf-8")


def warm_up(seeds: Iterable[Seed], scratch: Scratch) -> None:
    """Run every command once on a sound file: children inherit what was imported."""
    warnings.simplefilter("ignore")
    seed = next(seed for seed in seeds if seed.name == "tagged")
    scratch.empty(scratch.given, scratch.made)
    write_files(dict(read_files(scratch.seeds / seed.name)), scratch.given)
    for commands in COMMANDS.values():
        for command in commands:
            _call(fill_command(Case(0, seed, "", command), scratch.given, scratch.made))
    gc.collect()
    gc.freeze()


def run_share(scratch: Scratch, cases: range, share: tuple[int, int], deadline: float, verbs: Sequence[str]) -> None:
    """What one supervisor does: cases of these numbers, until the deadline; results go to a file, a line each.

    share  which of how many: (1, 2) has every second file, from the second on
    """
    seeds = find_seeds(scratch.seeds)
    warm_up(seeds, scratch)
    supervisor = Supervisor(scratch)
    done = {result.number for result in read_results(scratch.own.parent) if not result.fault}
    batch: list[MutatedFile] = []
    with (scratch.own / "results.jsonl").open("w", encoding="utf-8") as output:
        for number in range(cases.start // PER_FILE + share[0], -(-cases.stop // PER_FILE), share[1]):
            if time.time() > deadline:
                break
            left = {*range(number * PER_FILE, (number + 1) * PER_FILE)} - done
            if not left:
                continue
            file = draw_file(number, seeds, scratch.seeds)
            wanted = (case for case in file.cases if case.number in left and case.number in cases)
            batch.append(replace(file, cases=tuple(case for case in wanted if not verbs or case.verb in verbs)))
            if len(batch) == FILES_PER_CHILD:
                _run_batch(supervisor, batch, output)
                batch = []
        _run_batch(supervisor, batch, output)


def _run_batch(supervisor: Supervisor, batch: Sequence[MutatedFile], output: IO[str]) -> None:
    files = {case.number: (case, file) for file in batch for case in file.cases}
    for result in supervisor.run(batch):
        if result.fault:
            keep_failed(*files[result.number], result, supervisor.scratch)
        output.write(json.dumps(result.to_json()) + "\n")
        output.flush()


def read_results(folder: Path) -> list[CaseResult]:
    """By number: those that were kept when the run was resumed, and those of all shares. The newer counts."""
    by_number: dict[int, CaseResult] = {}
    for path in (folder / KEPT, *sorted(folder.glob("share*/results.jsonl"))):
        # A run that was killed may have left half of a line.
        for line in path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else ():
            result = CaseResult(**json.loads(line))
            before = by_number.get(result.number, result)
            earlier = "" if before == result else before.fault or before.earlier
            by_number[result.number] = replace(result, earlier=earlier or result.earlier)
    return [by_number[number] for number in sorted(by_number)]


def main(folder: str, share: str, first: str, last: str, *more: str) -> None:
    """`python -m measure.fuzzing.run_cases FOLDER SHARE/SHARES FIRST LAST SECONDS VERB…`; numbers are of cases."""
    number, shares = map(int, share.split("/"))
    seconds, *verbs = more
    scratch = Scratch(Path(folder) / "seeds", Path(folder) / f"share{number}")
    scratch.empty(scratch.own)
    with ending_on_signals():
        run_share(scratch, range(int(first), int(last)), (number, shares), time.time() + float(seconds), verbs)


if __name__ == "__main__":
    main(*sys.argv[1:])
