"""One command line: every name can be loaded, and what makes no sense is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from measure.catalogue import MEASURES, SECTIONS, Measure, NotRunnable, Options, load_function
from measure.job import Job
from measure.pages import Table, Tables, compose_page
from measure.results import TaskFolder
from measure.workers import Workers

from measure import __main__ as command_line
from measure import sections

MAKEFILE = Path(__file__).parents[2] / "Makefile"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Options]]:
    """What would have been run."""
    calls: list[tuple[str, Options]] = []

    def load(self: Measure) -> Callable[[Options], int]:
        def run(options: Options) -> int:
            calls.append((self.name, options))
            return 0

        return run

    monkeypatch.setattr(Measure, "load", load)
    return calls


def test_the_list_names_everything_and_what_it_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--list"]) == 0
    said = capsys.readouterr().out
    for name in (*(measure.name for measure in MEASURES), *(section.name for section in SECTIONS)):
        assert f"{name} " in said
    assert all(measure.writes in said for measure in MEASURES)


def test_every_measure_has_a_target_of_make_that_says_what_it_writes() -> None:
    targets = [line for line in MAKEFILE.read_text().splitlines() if "##" in line]
    for measure in MEASURES:
        (line,) = [line for line in targets if line.startswith(f"{measure.name}:")]
        assert measure.writes.removeprefix("the tables of ") in line


@pytest.mark.parametrize("name", [measure.run for measure in MEASURES] + [section.function for section in SECTIONS])
def test_what_the_catalogue_names_is_there(name: str) -> None:
    assert callable(load_function(name))


def test_rows_and_options_come_through(asked: list[tuple[str, Options]]) -> None:
    assert command_line.main(["corpus", "bert", "t5", "--exporter", "dynamo", "--jobs", "7", "--limit", "9"]) == 0
    assert asked == [("corpus", Options(rows=("bert", "t5"), exporters=("dynamo",), jobs=7, limit=9))]


def test_a_section_is_a_name_too(asked: list[tuple[str, Options]]) -> None:
    command_line.main(["startup", "flops"])
    assert asked == [("bench", Options(rows=("startup", "flops")))]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "which measurement"),
        (["nothing"], "no such measurement: nothing"),
        (["bench", "--tool", "int8"], "bench takes no --tool"),
        (["lineage", "--page-only"], "lineage takes no --page-only"),
        (["screenshots", "--resume"], "screenshots takes no --resume"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], complaint: str, asked: list[tuple[str, Options]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command_line.main(arguments)
    assert complaint in capsys.readouterr().err
    assert not asked


@pytest.mark.parametrize("name", ["bench", "corpus", "lineage", "strategies"])
def test_a_row_that_nobody_knows_runs_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([name, "nobody"]) == 2
    assert capsys.readouterr().err == "no such row: nobody\n"


def test_rows_are_picked_in_their_own_order() -> None:
    assert Options(rows=("c", "a")).pick_rows(("a", "b", "c")) == ("a", "c")
    assert Options().pick_rows(("a", "b")) == ("a", "b")
    with pytest.raises(NotRunnable, match="no such row: d, e"):
        Options(rows=("e", "a", "d")).pick_rows(("a", "b"))


class TestSections:
    @pytest.fixture(autouse=True)
    def places(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every section says its name; the one of start-up misses its limit."""

        def run(self: Workers[Tables], jobs: Sequence[Job]) -> Iterator[tuple[Job, list[Tables]]]:
            assert self.jobs == 1
            for job in jobs:
                names = sections_of(job)
                made = {name: Table(f"T {name}", "", ("x",), (("1",),), name != "startup") for name in names}
                yield job, [Tables(made)]

        def sections_of(job: Job) -> tuple[str, ...]:
            return ("summary", "layers") if job.subject[0] == "strategies" else job.subject

        monkeypatch.setattr(Workers, "run", run)
        monkeypatch.setattr(sections, "BENCH_PAGE", tmp_path / "docs" / "measured.md")
        monkeypatch.setattr(sections, "STRATEGIES_PAGE", tmp_path / "docs" / "strategies.md")
        monkeypatch.setattr(sections, "BUILD", tmp_path / "build")

    def titles(self) -> list[str]:
        return [line for line in sections.BENCH_PAGE.read_text().splitlines() if line.startswith("#")]

    def test_all_sections_are_a_page_in_the_order_of_the_catalogue(self) -> None:
        assert sections.run_bench(Options()) == 1
        assert self.titles() == ["# Measured", *(f"## T {section.name}" for section in SECTIONS)]
        head = sections.BENCH_PAGE.read_text().splitlines()[2]
        assert head.startswith("Written by `make bench` (`python -m measure bench`) on ")
        assert head.endswith("; do not edit.")

    def test_some_sections_leave_the_others_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        sections.BENCH_PAGE.parent.mkdir()
        old = Table("T flops", "as it was", ("x",), (("old",),))
        sections.BENCH_PAGE.write_text(compose_page("Measured", "Head.", [old, Table("Other", "", ("x",), ())]))
        assert sections.run_bench(Options(rows=("flops", "coverage"))) == 0
        assert self.titles() == ["# Measured", "## T flops", "## Other", "## T coverage"]
        assert "as it was" not in sections.BENCH_PAGE.read_text()
        assert capsys.readouterr().out.startswith("## T coverage")

    def test_a_missed_limit_is_reported(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert sections.run_bench(Options(rows=("startup", "flops"))) == 1
        assert capsys.readouterr().err == "missed: T startup\n"

    def test_tables_of_strategies_go_between_their_comments(self) -> None:
        assert sections.run_strategies(Options()) == 0
        page = sections.STRATEGIES_PAGE.read_text()
        assert page.startswith("# Strategies, measured\n\nWritten by `make strategies`")
        sections.STRATEGIES_PAGE.write_text(page.replace("| 1 |", "| old |") + "\nBy hand.\n")
        assert sections.run_strategies(Options()) == 0
        assert sections.STRATEGIES_PAGE.read_text() == page + "\nBy hand.\n"

    def test_strategies_on_some_models_leave_the_page_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert sections.run_strategies(Options(rows=("bert",))) == 0
        assert "## T summary" in capsys.readouterr().out
        assert not sections.STRATEGIES_PAGE.exists()


def test_a_worker_of_sections_writes_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("T", "", ("x",), (("1",),))
    monkeypatch.setattr(sections, "load_function", lambda _: lambda: table)
    sections.perform(Job(("startup",), ("tables",)), TaskFolder(tmp_path))
    assert Tables.from_json(TaskFolder(tmp_path).read("tables")) == Tables({"startup": table})
