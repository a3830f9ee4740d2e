"""Text of `fleet`: the table of a result, the plan of a dry run, and what is told while it runs.

    row            export   verify   int8      size      nodes  what
    bert-dynamo    ok 6 s   ok 4 s   ok 5 s    338.7 KB    120
    t5             failed   skipped  skipped                    export failed: dynamo exporter: …

Above some rows, only those that went wrong are shown; JSON, CSV and the page have all of them.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.errors import printable_line, quote_argument
from modelexport.record.limits import MESSAGE_CHARACTERS
from modelexport.record.results.fleet import (
    FleetProgress,
    FleetResult,
    FleetRow,
    Listener,
    StepId,
    StepResult,
    StepStatus,
)
from modelexport.show.text.console import bytes_text, counted, note_lines, plain, short_text, table

# More rows than anybody reads on a terminal.
_MOST_ROWS = 60
_STYLES = {StepStatus.OK: "green", StepStatus.SKIPPED: "dim"}


def fleet_lines(result: FleetResult, *, everything: bool = False) -> Iterator[RenderableType]:
    asked = result.asked_rows
    shown = asked if everything or len(asked) <= _MOST_ROWS else result.faulty
    if shown:
        yield _table(result, shown)
    if len(shown) < len(asked):
        yield plain(f"{counted(len(asked) - len(shown), 'row')} not shown: nothing is wrong with them (--all)", "dim")
    yield from (plain(f"budget: {row.name}: {broken}", "red") for row in shown for broken in row.broken)
    yield plain(summary_text(result))
    if result.page is not None:
        yield plain(f"wrote {result.page}")


def summary_text(result: FleetResult) -> str:
    """`3 rows: 2 ok, 1 with faults · 7 steps ok, 1 failed, 1 skipped · 6 run, 3 kept · 41.2 s`."""
    rows, faulty = result.asked_rows, len(result.faulty)
    counts = Counter(str(step.status) for row in rows for step in row.results)
    missing = sum(len(row.missing) for row in rows)
    steps = [f"{count} {status}" for status, count in sorted(counts.items(), key=lambda item: -item[1])]
    steps += [f"{missing} not run"] if missing else []
    head = f"{counted(len(rows), 'row')}, {f'{faulty} with faults' if faulty else 'all ok'}"
    done = f"{result.ran} run, {result.kept} kept"
    return " · ".join((head, f"steps: {', '.join(steps)}", done, f"{result.seconds:.1f} s"))


def _table(result: FleetResult, rows: tuple[FleetRow, ...]) -> Table:
    built = table(
        "", "row", *map(short_text, result.steps), "size", "nodes", "since last run", "what", right=("size", "nodes")
    )
    for row in rows:
        cells = [_step_text(row.steps.get(name)) for name in result.steps]
        built.add_row(
            plain(row.name), *cells, *_figures(row), plain(_trends(result, row), "cyan"), plain(row.fault, "red")
        )
    return built


def _step_text(step: StepResult | None) -> Text:
    if step is None:
        return Text("")
    seconds = f" {step.seconds:.1f} s" if step.status.has_output and step.seconds else ""
    return Text(f"{step.status}{seconds}", _STYLES.get(step.status, "red"))


def _figures(row: FleetRow) -> tuple[Text, Text]:
    """Size and nodes of the first model that the row has."""
    size = next((step.model_bytes for step in row.results if step.model_bytes), 0)
    nodes = next((step.figures["nodes"] for step in row.results if "nodes" in step.figures), None)
    return plain(bytes_text(size) if size else ""), plain("" if nodes is None else f"{nodes:,}")


def _trends(result: FleetResult, row: FleetRow) -> str:
    changes = ((step.step, result.trend(step)) for step in row.steps.values())
    return "; ".join(f"{name}: {change}" for name, change in changes if change)


def plan_lines(result: FleetResult) -> Iterator[RenderableType]:
    """Command lines as a shell takes them; those that are kept come with the reason."""
    for planned in result.planned:
        command = " ".join(quote_argument(word) for word in planned.command)
        about = f"{planned.row} · {planned.step}"
        yield plain(f"{about}: kept, {planned.kept}", "dim") if planned.kept else plain(f"{about}: {command}")
    kept = sum(bool(planned.kept) for planned in result.planned)
    yield plain(
        f"{counted(len(result.rows), 'row')}, {counted(len(result.planned) - kept, 'step')} to run, {kept} kept"
    )
    yield from note_lines(result.notes)


@contextmanager
def watched_fleet(*, quiet: bool) -> Iterator[Listener | None]:
    """What a run is told to: a bar on a terminal, else a line for each step that was run; on standard error."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        yield from _bar()
    else:
        yield _step_lines()


def _step_lines() -> Listener:
    """Of steps that are run: thousands of results may be kept before the first of them."""
    told = 0

    def listen(_: StepId, result: StepResult | None, progress: FleetProgress) -> None:
        nonlocal told
        if result is not None and progress.ran > told:
            told = progress.ran
            _print_step(result, progress)

    return listen


def _print_step(result: StepResult, progress: FleetProgress) -> None:
    reason = f": {result.reason}" if result.reason else f" {result.seconds:.1f} s"
    line = f"{progress.done}/{progress.total} {result.row} {result.step} {result.status}{reason}"
    sys.stderr.write(printable_line(line, MESSAGE_CHARACTERS) + "\n")
    sys.stderr.flush()


def _bar() -> Iterator[Listener]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as shown:
        bar = shown.add_task("", total=None)

        def listen(_: StepId, result: StepResult | None, progress: FleetProgress) -> None:
            shown.update(bar, completed=progress.done, total=progress.total, description=_describe(progress))
            if result is not None and result.started and result.status is not StepStatus.OK:
                line = f"{result.row} {result.step} {result.status}: {result.reason}"
                shown.console.print(plain(line, "red"))

        yield listen


def _describe(progress: FleetProgress) -> str:
    """What has been running longest, because that is what is waited for."""
    failed = f"{progress.failed} with faults · " if progress.failed else ""
    if not progress.running:
        return failed.removesuffix(" · ")
    (row, step), since = min(progress.running.items(), key=lambda item: item[1])
    others = len(progress.running) - 1
    more = f" and {others} more" if others else ""
    return printable_line(f"{failed}{row} {step} {time.monotonic() - since:.0f} s{more}", MESSAGE_CHARACTERS)
