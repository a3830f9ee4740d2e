"""A run reports what changed, and writes nothing but what it made."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from measure.corpus.manifest import Row
from measure.corpus.outcome import Expected, Outcome, Result
from measure.corpus.results import Results, installed, read_results, write_results
from measure.corpus.running import NotRunnable, Places, choose, run_corpus
from measure.corpus.workers import Attempt, Workers
from rich.console import Console
from tests.support.corpus_rows import fine, refused, row

REASON = "RuntimeError: there is no such operator"
ROWS = (row("one", "vision"), row("two", torchscript=Expected(Outcome.REFUSED, REASON)))
AS_STATED = [fine("one"), fine("one", "torchscript"), fine("two"), refused("two", REASON + " at 0x7f", "torchscript")]

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "results.json", tmp_path / "page.md")


@pytest.fixture
def run(places: Places) -> Run:
    """A run in which every worker gives the result that is prepared for it."""

    def prepared(results: Sequence[Result], attempts: Sequence[Attempt], rows: Sequence[Row] = ROWS) -> tuple[int, str]:
        texts = {result.key: json.dumps(asdict(result)) for result in results}

        def command(attempt: Attempt, target: Path) -> Sequence[str]:
            code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
            return sys.executable, "-S", "-c", code, str(target), texts[attempt.key]

        console = Console(file=io.StringIO(), width=300)
        code = run_corpus(rows, attempts, Workers(2, 30, command), console, places)
        assert isinstance(console.file, io.StringIO)
        return code, console.file.getvalue()

    return prepared


def everything() -> list[Attempt]:
    return choose(ROWS, (), (), ())


def test_a_run_that_finds_what_is_stated_is_fine(run: Run, places: Places) -> None:
    code, said = run(AS_STATED, everything())
    assert (code, "4 attempts; 0 not as stated" in said) == (0, True)
    assert read_results(places.results).by_attempt["two", "torchscript"].reason == REASON
    assert "changed" not in said


def test_running_again_changes_no_file(run: Run, places: Places) -> None:
    run(AS_STATED, everything())
    before = places.results.read_bytes(), places.page.read_bytes()
    run([*AS_STATED[:3], refused("two", REASON + " at 0x99", "torchscript")][::-1], everything())
    assert (places.results.read_bytes(), places.page.read_bytes()) == before


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (fine("two", "torchscript"), f"two, torchscript: expected refused ({REASON}), found ok"),
        (refused("two", "RuntimeError: [x] else", "torchscript"), "refused for another reason"),
        (refused("one", REASON, "torchscript"), f"one, torchscript: expected ok, found refused ({REASON})"),
        (Result("one", "dynamo", Outcome.CRASHED, "killed by SIGSEGV"), "found crashed (killed by SIGSEGV)"),
    ],
)
def test_a_row_that_changed_is_reported(run: Run, places: Places, other: Result, told: str) -> None:
    code, said = run([*AS_STATED, other], everything())
    assert code == 1
    assert f"changed: {other.name}, {other.exporter}: " in said
    assert told in said
    assert told in places.page.read_text()
    assert f"1 not as stated: {other.name}, {other.exporter}" in said


def test_too_few_shown_nodes_are_reported(run: Run) -> None:
    code, said = run([*AS_STATED, fine("one", nodes=100, shown=96)], everything())
    assert (code, "96.6 % of compute nodes" in said) == (1, True)


def test_a_part_leaves_the_others_as_they_were(run: Run, places: Places) -> None:
    run(AS_STATED, everything())
    before = read_results(places.results).by_attempt
    code, _ = run([fine("one", nodes=50, shown=50)], choose(ROWS, ["one"], ["dynamo"], ()))
    after = read_results(places.results).by_attempt
    assert code == 0
    assert [key for key in after if after[key] != before[key]] == [("one", "dynamo")]


def test_a_part_reports_only_what_it_ran(run: Run) -> None:
    run([*AS_STATED, fine("two", "torchscript")], everything())
    assert run(AS_STATED, choose(ROWS, ["one"], (), ()))[0] == 0


def test_rows_that_are_gone_leave_the_results(run: Run, places: Places) -> None:
    run(AS_STATED, everything())
    run(AS_STATED, choose(ROWS[1:], (), (), ()), ROWS[1:])
    assert {name for name, _ in read_results(places.results).by_attempt} == {"two"}


def test_a_part_cannot_be_run_with_other_versions(run: Run, places: Places) -> None:
    run(AS_STATED, everything())
    known = read_results(places.results)
    write_results(Results({**installed(), "torch": "0.1"}, known.by_attempt), places.results)
    before = places.results.read_bytes()
    with pytest.raises(NotRunnable, match=r"of torch 0\.1, .*: run the whole corpus"):
        run(AS_STATED, choose(ROWS, ["one"], (), ()))
    assert places.results.read_bytes() == before
    run(AS_STATED, everything())
    assert read_results(places.results).versions == installed()


@pytest.mark.parametrize(
    ("names", "exporters", "families", "chosen"),
    [
        ((), (), (), ["one dynamo", "one torchscript", "two dynamo", "two torchscript"]),
        (["two", "one"], ["torchscript"], (), ["one torchscript", "two torchscript"]),
        ((), (), ["vision"], ["one dynamo", "one torchscript"]),
        (["two"], (), ["vision"], []),
    ],
)
def test_attempts_are_chosen(names: list[str], exporters: list[str], families: list[str], chosen: list[str]) -> None:
    assert [" ".join(attempt.key) for attempt in choose(ROWS, names, exporters, families)] == chosen


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(NotRunnable, match="no such row: three"):
        choose(ROWS, ["one", "three"], (), ())
