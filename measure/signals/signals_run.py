"""The run over all scenes and signals, and its page: `make signals`."""

from __future__ import annotations

import shutil
import signal
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence

import torch
from rich.console import Console

from measure.catalogue import NotRunnable, Options
from measure.pages import MEASURED, Table, compose_page, describe_machine, write_page, written_by
from measure.signals.scenes import list_scenes
from measure.signals.trials import SIGNALS, TrialResult, run_trials
from measure.workers import BUILD, print_plainly

# Of each scene and signal: more than 500 over all.
EACH = 16
FOLDER = BUILD / "signals"
_HEAD = """
A command that writes is interrupted (SIGINT), ended (SIGTERM) or killed (SIGKILL) at a line of the code that writes
files. Where it writes are files of another version already. Half of the trials are spread over all lines, half over
those that move files into their places. Afterwards every file is held against the one before and the one that a run
without a signal leaves. A mixture of both, which only a kill can leave, must be told by `validate`; the same command,
run once more, must leave what it should and remove what a killed one has left.

Each row is a command; `attach` is run with weights inside and outside of the model, `strip` on a file without a record
and on a package."""
_COLUMNS = (
    "verb",
    "signal",
    "trials",
    "old files",
    "new files",
    "mixed",
    "torn",
    "left over",
    "not told",
    "next run fails",
)


def run_measure(options: Options) -> int:
    """1 if a trial left what it must not."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    warnings.simplefilter("ignore")
    # A forked child has none of its parent's threads, and would wait for torch's forever.
    torch.set_num_threads(1)
    scenes = list_scenes(FOLDER / "store")
    if unknown := sorted(set(options.rows) - {scene.verb for scene in scenes}):
        raise NotRunnable(f"no such verb: {', '.join(unknown)}")
    wanted = [scene for scene in scenes if not options.rows or scene.verb in options.rows]
    began = time.time()
    console = Console()
    results: list[TrialResult] = []
    for scene in wanted:
        results += run_trials([scene], FOLDER, EACH)
        print_plainly(console, f"{scene.command}: {len(results)} trials, {time.time() - began:.0f} s")
    table = tabulate(results)
    print_plainly(console, table.markdown())
    for result in results:
        if result.faults:
            print_plainly(console, f"{result.trial.scene.command}: {result.faults} {result}")
    print_plainly(console, f"{len(results)} trials in {time.time() - began:.0f} s")
    if not options.rows:
        head = written_by("signals", f"on {describe_machine()}") + "\n" + _HEAD
        write_page(MEASURED / "signals.md", compose_page("Signals", head, [table]))
    return int(any(result.faults for result in results))


def tabulate(results: Sequence[TrialResult]) -> Table:
    groups = defaultdict(list)
    for result in results:
        groups[result.trial.scene.verb, result.trial.number].append(result)
    rows = [_count(verb, number.name, found) for (verb, number), found in sorted(groups.items())]
    totals = [_count("**all**", number.name, [r for r in results if r.trial.number == number]) for number in SIGNALS]
    holds = not any(result.faults for result in results)
    return Table(f"{len(results)} trials", "", _COLUMNS, (*rows, *totals), holds)


def _count(verb: str, name: str, results: Sequence[TrialResult]) -> tuple[str, ...]:
    states = Counter(result.state for result in results)
    is_kill = name == signal.SIGKILL.name
    counts = (
        len(results),
        states["old"],
        states["new"],
        states["mixed"],
        sum(bool(result.torn) for result in results),
        sum(bool(result.leftovers) for result in results),
        sum(not result.detected for result in results),
        sum(not result.again for result in results),
    )
    texts = [str(count) for count in counts]
    texts[5] += ", until the next run" if is_kill and counts[5] else ""
    return verb, name, *texts
