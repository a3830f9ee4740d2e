"""Running attempts, and bringing what they gave together with what was known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from measure.corpus.manifest import Row
from measure.corpus.outcome import EXPORTERS, Result, change, settled
from measure.corpus.page import PAGE, TARGET, Sum, entries_of, page, percent
from measure.corpus.results import RESULTS, Results, installed, read_results, write_results
from measure.corpus.workers import Attempt, Workers


class NotRunnable(Exception):
    """What was asked for cannot be run; nothing was written."""


@dataclass(frozen=True)
class Places:
    """Where results are kept and shown."""

    results: Path = RESULTS
    page: Path = PAGE


def choose(
    rows: Sequence[Row], names: Iterable[str], exporters: Iterable[str], families: Iterable[str]
) -> list[Attempt]:
    """The attempts that were asked for, in the order of the manifest; what is empty does not restrict."""
    names, exporters, families = set(names), set(exporters), set(families)
    if unknown := sorted(names - {row.name for row in rows}):
        raise NotRunnable(f"no such row: {', '.join(unknown)}")
    picked = [row for row in rows if row.family in (families or {row.family}) and row.name in (names or {row.name})]
    return [Attempt(row, exporter) for row in picked for exporter in EXPORTERS if exporter in (exporters or EXPORTERS)]


def run_corpus(
    rows: Sequence[Row], attempts: Sequence[Attempt], workers: Workers, console: Console, places: Places
) -> int:
    """Make the attempts, write results and page; 1 if a row is not as it says, or too few nodes are shown."""
    known = _kept(read_results(places.results), rows, attempts)
    found = _run(attempts, workers, console)
    results = known.updated(found)
    write_results(results, places.results)
    places.page.write_text(page(rows, results), encoding="utf-8")
    return _report(rows, results, found, console)


def _kept(known: Results, rows: Sequence[Row], attempts: Sequence[Attempt]) -> Results:
    """What stays of the results so far. A page speaks of one set of versions, so a part cannot be run with others."""
    everything = {(row.name, exporter) for row in rows for exporter in EXPORTERS}
    kept = known.only(everything - {attempt.key for attempt in attempts})
    if kept.by_attempt and known.versions != installed():
        other = ", ".join(f"{tool} {version}" for tool, version in known.versions.items())
        raise NotRunnable(f"the results so far are of {other}: run the whole corpus")
    return Results(installed(), kept.by_attempt)


def _run(attempts: Sequence[Attempt], workers: Workers, console: Console) -> list[Result]:
    expected = {attempt.key: attempt.row.expected[attempt.exporter] for attempt in attempts}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("corpus", total=len(attempts))
        for result in workers.run(attempts):
            results.append(settled(expected[result.key], result))
            progress.update(task, advance=1, description=f"{result.name}, {result.exporter}")
            if changed := change(expected[result.key], result):
                # At once: a run takes long, and whoever waits may want to look into it.
                _say(progress.console, f"changed: {result.name}, {result.exporter}: {changed}")
    return results


def _report(rows: Sequence[Row], results: Results, found: Sequence[Result], console: Console) -> int:
    made = {result.key for result in found}
    entries = entries_of(rows, results)
    changed = [entry.label for entry in entries if entry.change and entry.result.key in made]
    share = Sum(entries).sound.share
    _say(console, f"{len(made)} attempts; {len(changed)} not as stated{': ' if changed else ''}{'; '.join(changed)}")
    _say(console, f"{percent(share)} % of compute nodes are proved or enclosed, over all results with right numbers")
    return 1 if changed or share < TARGET else 0


def _say(console: Console, text: str) -> None:
    """As it is: names of nodes may look like markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
