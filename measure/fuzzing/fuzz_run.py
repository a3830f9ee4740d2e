"""The fuzzing run: `make fuzz SECONDS=600`; without a time, 100,000 cases or more and the page.

    python -m measure fuzz --first 20040000 --cases 200000              this range; ended by a signal after an hour
    python -m measure fuzz --first 20040000 --cases 200000 --resume     the rest of it, and what broke the rule again

Cases are dealt out to as many supervisors as there are cores (`run_cases.py`), or another number with --resume. Those
that break the rule are saved with their command line below build/measure/fuzz/failed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

from rich.console import Console

from measure.catalogue import NotRunnable, Options
from measure.fuzzing.cases import COMMANDS, PER_FILE, draw_file
from measure.fuzzing.fuzz_page import compose_fuzz_page, list_failures, tabulate
from measure.fuzzing.mutate_files import write_files
from measure.fuzzing.run_cases import KEPT, CaseResult, Scratch, Supervisor, read_results
from measure.fuzzing.seeds import find_seeds, make_seeds
from measure.job import ROOT
from measure.pages import MEASURED, write_page
from measure.workers import BUILD, print_plainly

CASES = 100_000
FOLDER = BUILD / "fuzz"
_NO_DEADLINE = 10.0**9


def run_measure(options: Options) -> int:
    """1 if a case broke the rule."""
    if unknown := sorted(set(options.rows) - {*COMMANDS, "profile"}):
        raise NotRunnable(f"no such verb: {', '.join(unknown)}")
    (FOLDER / "seeds").mkdir(parents=True, exist_ok=True)
    make_seeds(FOLDER / "seeds")
    if options.case is not None:
        return show_case(options.case)
    results = run_cases(options)
    console = Console()
    for table in tabulate(results):
        print_plainly(console, table.markdown())
    if len(results) >= CASES and not (options.rows or options.seconds):
        write_page(MEASURED / "fuzzing.md", compose_fuzz_page(results))
    print_plainly(console, list_failures(results))
    return int(any(result.fault for result in results))


def run_cases(options: Options) -> list[CaseResult]:
    last = options.first + (options.cases or (10**9 if options.seconds else CASES))
    if options.resume:
        keep_results()
    else:
        (FOLDER / KEPT).unlink(missing_ok=True)
        shutil.rmtree(FOLDER / "failed", ignore_errors=True)
    for share in FOLDER.glob("share*"):
        shutil.rmtree(share)
    supervisors = [
        subprocess.Popen(_compose_command(share, options, last), cwd=ROOT, stdin=subprocess.DEVNULL)
        for share in range(options.jobs)
    ]
    try:
        codes = [supervisor.wait() for supervisor in supervisors]
    finally:
        for supervisor in supervisors:
            supervisor.terminate()  # and not killed: it has a child, which it ends
        for supervisor in supervisors:
            supervisor.wait()
    if any(codes):
        raise NotRunnable(f"supervisors ended with {codes}")
    return [result for result in read_results(FOLDER) if options.first <= result.number < last]


def keep_results() -> None:
    """Put the results of all shares into one file: the next run may have another number of shares."""
    unfinished = FOLDER / f"{KEPT}.unfinished"
    lines = [json.dumps(result.to_json()) + "\n" for result in read_results(FOLDER)]
    unfinished.write_text("".join(lines), encoding="utf-8")
    unfinished.replace(FOLDER / KEPT)


def _compose_command(share: int, options: Options, last: int) -> list[str]:
    shown = f"{share}/{options.jobs}", str(options.first), str(last), str(options.seconds or _NO_DEADLINE)
    return [sys.executable, "-W", "ignore", "-m", "measure.fuzzing.run_cases", str(FOLDER), *shown, *options.rows]


def show_case(number: int) -> int:
    """Run one case again, with its files kept, and say how it ended."""
    scratch = Scratch(FOLDER / "seeds", FOLDER / f"case-{number}")
    scratch.empty(scratch.own)
    file = draw_file(number // PER_FILE, find_seeds(scratch.seeds), scratch.seeds)
    case = next(case for case in file.cases if case.number == number)
    (result,) = Supervisor(scratch).run([replace(file, cases=(case,))])
    scratch.empty(scratch.given)
    write_files(file.files, scratch.given)
    console = Console()
    print_plainly(console, f"seed {case.seed.name}, mutation {case.mutation}; in {scratch.given}:")
    print_plainly(console, f"modelexport {case.command}")
    print_plainly(console, str(result))
    return int(bool(result.fault))
