"""The table of files of others: all of them in their order, reasons below, and when it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from measure.anyfile.anyfile_run import SECTIONS, run_measure
from measure.anyfile.foreign import compose_table, list_reasons
from measure.anyfile.foreign_files import Fetched, ForeignFile, read_manifest
from measure.anyfile.run_verbs import PAGE, PROFILE, READ, VERBS, Findings, VerbResult
from measure.catalogue import NotRunnable, Options
from measure.job import Job
from measure.pages import Table

from measure.anyfile import anyfile_run, foreign

FINDINGS = Findings(
    "node names", 200, 20, 4, known=1, described=2, unknown=17, strong=100, inferred=99, fallback=1, at_root=9
)
FILES = read_manifest()


def results_of(name: str) -> list[VerbResult]:
    codes = {"validate:record": 1}
    return [VerbResult(name, verb, codes.get(verb, 0), findings=FINDINGS if verb == READ else None) for verb in VERBS]


def table_of(*replaced: VerbResult, files: Sequence[ForeignFile] = FILES) -> Table:
    """The table where all is well but for the results given."""
    other = {(result.file, result.verb): result for result in replaced}
    by_file = {file.id: [other.get((r.file, r.verb), r) for r in results_of(file.id)] for file in files}
    return compose_table([Fetched(file, Path(file.id)) for file in files], by_file)


def test_a_row_says_what_was_found() -> None:
    row = table_of().rows[0]
    assert row[:2] == (FILES[0].id, FILES[0].exporter)
    assert row[2:7] == ("200", "node names", "20", "4", "1 / 2 / 17")
    assert row[7:] == ("50.0", "49.5", "4.5", "0.5", f"{len(VERBS)} of {len(VERBS)}", "yes", "yes")


def test_a_refusal_with_a_reason_is_listed_and_holds() -> None:
    name = FILES[1].id
    table = table_of(VerbResult(name, "fold", 2, f"cannot fold {name}.onnx: <Quant>"))
    assert table.holds
    assert table.rows[1][-3:] == (f"{len(VERBS) - 1} of {len(VERBS)}", "yes", "yes")
    assert table.notes == (f"`fold` of {name}: cannot fold the file: &lt;Quant>",)


@pytest.mark.parametrize("verb", [PAGE, PROFILE])
def test_a_file_without_a_page_or_a_profile_does_not_hold(verb: str) -> None:
    name = FILES[1].id
    table = table_of(VerbResult(name, verb, 2, "it is too large"))
    assert not table.holds
    assert table.rows[1][-2:] == (("no", "yes") if verb == PAGE else ("yes", "no"))
    assert f"with a page of each ({len(FILES) - (verb == PAGE)})" in table.text
    assert f"`{verb}` of {name}: it is too large" in table.notes


@pytest.mark.parametrize("reason", ["Fatal error: x:Quant(-1) is not a registered function/op", "9 : NOT_IMPLEMENTED"])
def test_a_profile_that_onnx_runtime_cannot_make_holds_and_is_listed(reason: str) -> None:
    name = FILES[1].id
    table = table_of(VerbResult(name, PROFILE, 2, reason))
    assert table.holds
    assert table.rows[1][-2:] == ("yes", "lacks an operator")
    assert f"a profile ({len(FILES) - 1}), unless ONNX Runtime lacks an operator (1)" in table.text
    assert table.notes == (f"`profile` of {name}: {reason}",)
    assert not table_of(VerbResult(name, PAGE, 2, reason)).holds
    assert not table_of(VerbResult(name, PROFILE, 3, reason)).holds


def test_a_file_without_a_record_that_passes_for_one_with_a_record_does_not_hold() -> None:
    table = table_of(VerbResult(FILES[0].id, "validate:record", 0))
    assert not table.holds
    assert table.notes[0].startswith("DEFECT: `validate`")


def test_files_that_are_missing_are_named() -> None:
    by_file = {file.id: results_of(file.id) for file in FILES[2:]}
    gone = [Fetched(FILES[0], problem="no such package"), Fetched(FILES[1], Path("left"))]
    table = compose_table([*gone, *(Fetched(file, Path(file.id)) for file in FILES[2:])], by_file)
    assert table.holds
    assert f"Missing: {FILES[0].id}, {FILES[1].id}." in table.text
    assert table.notes == (
        f"{FILES[0].id} could not be had: no such package",
        f"{FILES[1].id} could not be had: nothing was run on it",
    )
    assert "No file is missing." in table_of().text


@pytest.mark.parametrize(("code", "reason"), [(3, "KeyError: 'x'"), (None, "killed by SIGSEGV"), (2, "")])
def test_a_defect_does_not_hold(code: int | None, reason: str) -> None:
    table = table_of(VerbResult(FILES[0].id, "fold", code, reason))
    assert not table.holds
    assert table.notes == (f"DEFECT: `fold` of {FILES[0].id}: {reason or 'no reason'}",)


def test_too_few_files_or_exporters_do_not_hold() -> None:
    assert not table_of(files=FILES[:24]).holds
    alike = [replace(file, exporter="tf2onnx, once more") for file in FILES]
    assert not table_of(files=alike).holds


def test_the_order_is_that_of_the_manifest() -> None:
    table = table_of(files=FILES[::-1])
    assert [row[0] for row in table.rows] == [file.id for file in FILES]


def test_a_file_that_cannot_be_had_is_a_row_without_figures() -> None:
    table = compose_table([Fetched(FILES[0], problem="no such package")], {})
    assert table.rows[0][2:] == ("–",) * 10 + ("no", "no")
    assert table.notes == (f"{FILES[0].id} could not be had: no such package",)
    assert not table.holds


def test_files_that_are_refused_alike_share_a_line() -> None:
    refused = [VerbResult(name, "fold", 2, f"{name}.onnx has no modules") for name in ("a", "b")]
    assert list_reasons(refused) == ["`fold` of a, b: the file has no modules"]


def test_results_survive_a_file() -> None:
    for result in (results_of("a")[0], VerbResult("a", "view", None, "took too long", 3.5)):
        assert VerbResult.from_json(result.to_json()) == result


class TestCommand:
    """`python -m measure anyfile`, with sections that take no time."""

    @pytest.fixture
    def page(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        page = tmp_path / "page.md"
        page.write_text("# Any file\n\nhead\n\n## foreign\n\nold\n\n## finding_time\n\nold\n")
        monkeypatch.setattr(anyfile_run, "PAGE", page)
        functions = {section.function: section.name for section in SECTIONS}

        def load(name: str) -> object:
            return lambda options: Table(functions[name], " ".join(options.rows), ("a",), (("b",),))

        monkeypatch.setattr(anyfile_run, "load_function", load)
        return page

    def test_a_section_is_put_in_its_place(self, page: Path) -> None:
        assert run_measure(Options(rows=("foreign",))) == 0
        assert page.read_text().count("old") == 1

    def test_some_files_are_printed_alone(self, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = page.read_text()
        assert run_measure(Options(rows=(FILES[0].id,))) == 0
        assert capsys.readouterr().out.startswith("## foreign")
        assert page.read_text() == before

    def test_an_unknown_row_is_refused(self) -> None:
        with pytest.raises(NotRunnable):
            run_measure(Options(rows=("no-such-file",)))


@pytest.mark.parametrize("resume", [False, True])
def test_results_are_kept_to_be_resumed(resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = FILES[0].id
    kept = tmp_path / name / "analyze.json"
    kept.parent.mkdir()
    kept.touch()
    jobs: list[Job] = []

    def run(chosen: Sequence[Job], *_: object) -> dict[str, list[VerbResult]]:
        jobs.extend(chosen)
        return {name: results_of(name)}

    monkeypatch.setattr(foreign, "FOLDER", tmp_path)
    monkeypatch.setattr(foreign, "run_jobs", run)
    monkeypatch.setattr(foreign, "fetch_files", lambda files, _: [Fetched(file, tmp_path) for file in files])
    foreign.measure_foreign(Options(rows=(name,), resume=resume))
    assert jobs == [Job((name,), tuple(VERBS))]
    assert kept.exists() is resume
