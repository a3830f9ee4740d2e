"""A run reports what changed, and writes nothing but what it made."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from measure.catalogue import NotRunnable, Options
from measure.corpus.corpus_run import Places, choose_jobs, run_corpus, verification
from measure.corpus.rows import Expected, Outcome, Result, Row
from measure.job import Job
from measure.results import Results, installed_versions, read_results, write_results
from measure.workers import Workers
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

    def prepared(results: Sequence[Result], jobs: Sequence[Job], rows: Sequence[Row] = ROWS) -> tuple[int, str]:
        texts = {result.key: json.dumps(result.to_json()) for result in results}

        def command(job: Job, folder: Path) -> Sequence[str]:
            code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
            (name, exporter), (task,) = job.subject, job.tasks
            return sys.executable, "-S", "-c", code, str(folder / f"{task}.json"), texts[name, exporter]

        console = Console(file=io.StringIO(), width=300)
        measurement = replace(verification(30), command=command)
        with tempfile.TemporaryDirectory() as folder:
            code = run_corpus(rows, jobs, Workers(measurement, Path(folder), 2, 30), console, places)
        assert isinstance(console.file, io.StringIO)
        return code, console.file.getvalue()

    return prepared


def everything() -> list[Job]:
    return choose_jobs(ROWS, Options())


def test_a_run_that_finds_what_is_stated_is_fine(run: Run, places: Places) -> None:
    code, said = run(AS_STATED, everything())
    assert (code, "4 attempts; 0 not as stated" in said) == (0, True)
    assert read_results(places.results, Result).by_key["two", "torchscript"].reason == REASON
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
    before = read_results(places.results, Result).by_key
    code, _ = run([fine("one", nodes=50, shown=50)], choose_jobs(ROWS, Options(rows=("one",), exporters=("dynamo",))))
    after = read_results(places.results, Result).by_key
    assert code == 0
    assert [key for key in after if after[key] != before[key]] == [("one", "dynamo")]


def test_a_part_reports_only_what_it_ran(run: Run) -> None:
    run([*AS_STATED, fine("two", "torchscript")], everything())
    assert run(AS_STATED, choose_jobs(ROWS, Options(rows=("one",))))[0] == 0


def test_rows_that_are_gone_leave_the_results(run: Run, places: Places) -> None:
    run(AS_STATED, everything())
    run(AS_STATED, choose_jobs(ROWS[1:], Options()), ROWS[1:])
    assert {name for name, _ in read_results(places.results, Result).by_key} == {"two"}


def test_a_part_cannot_be_run_with_other_versions(run: Run, places: Places) -> None:
    run(AS_STATED, everything())
    known = read_results(places.results, Result)
    write_results(Results({**installed_versions(), "torch": "0.1"}, known.by_key), places.results)
    before = places.results.read_bytes()
    with pytest.raises(NotRunnable, match=r"of torch 0\.1, .*: run the whole corpus"):
        run(AS_STATED, choose_jobs(ROWS, Options(rows=("one",))))
    assert places.results.read_bytes() == before
    run(AS_STATED, everything())
    assert read_results(places.results, Result).versions == installed_versions()


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
    options = Options(tuple(names), tuple(exporters), tuple(families))
    assert [" ".join(job.subject) for job in choose_jobs(ROWS, options)] == chosen


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(NotRunnable, match="no such row: three"):
        choose_jobs(ROWS, Options(rows=("one", "three")))
