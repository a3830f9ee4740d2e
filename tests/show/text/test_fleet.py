"""A fleet in text, JSON and on its page: everything is there, and no text is obeyed."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fleets import step_result

from modelexport.record.results.fleet import (
    BrokenBudget,
    FleetProgress,
    FleetResult,
    FleetRow,
    PlannedStep,
    StepResult,
    StepStatus,
    describe_trend,
)
from modelexport.show.data.results import to_csv, to_json
from modelexport.show.page.fleet import fleet_page
from modelexport.show.text.console import as_text
from modelexport.show.text.fleet import fleet_lines, plan_lines, watched_fleet

FINE = step_result("export", files={"model.onnx": 2_000_000, "report.json": 9}, figures={"nodes": 120})
BAD = replace(step_result("verify", StepStatus.FOUND), reason="numbers differ, first in layer.0")
VIEW = step_result("view", files={"page.html": 5})


def fleet_of(*rows: FleetRow, previous: tuple[StepResult, ...] = ()) -> FleetResult:
    steps = ("export", "verify", "view")
    known = {step.id: step for step in previous}
    return FleetResult("models", Path("out"), steps, rows, 2, 1, 3.0, previous=known, page=Path("out/fleet.html"))


def row(*steps: StepResult, name: str = "bert", broken: tuple[BrokenBudget, ...] = ()) -> FleetRow:
    return FleetRow(name, "/models/bert", "dynamo", {step.step: step for step in steps}, broken)


def text(result: FleetResult, *, everything: bool = False) -> str:
    return as_text(fleet_lines(result, everything=everything))


def test_a_row_has_its_steps_figures_and_fault() -> None:
    shown = text(fleet_of(row(FINE, BAD), row(FINE, VIEW, name="t5")))
    line = next(line for line in shown.splitlines() if line.startswith("bert"))
    assert line.split() == [*"bert ok 2.0 s found 2.0 s 2.0 MB 120".split(), *f"verify found: {BAD.reason}".split()]  # noqa: SIM905
    assert "2 rows, 1 with faults · steps: 3 ok, 1 found · 2 run, 1 kept · 3.0 s" in shown


def test_broken_budgets_are_listed() -> None:
    broken = BrokenBudget("export", "size", "1.0 MB", "2.0 MB")
    result = fleet_of(row(FINE, broken=(broken,)))
    assert not result.ok
    assert "budget: bert: size of export is 2.0 MB, and may be 1.0 MB" in text(result)


def test_of_many_rows_those_with_faults_are_shown() -> None:
    rows = [row(replace(FINE, row=f"r{number}"), name=f"r{number}") for number in range(100)]
    shown = text(fleet_of(*rows, row(BAD)))
    assert "bert" in shown
    assert "r7 " not in shown
    assert "100 rows not shown" in shown
    assert "r7 " in text(fleet_of(*rows, row(BAD)), everything=True)


@pytest.mark.parametrize(
    ("now", "trend"),
    [
        (FINE, ""),
        (replace(FINE, status=StepStatus.CRASHED), "was ok"),
        (replace(FINE, files={"model.onnx": 2_200_000}), "size +10.0 %"),
        (replace(FINE, files={"model.onnx": 2_000_100}), ""),
        (replace(FINE, figures={"nodes": 118}), "nodes 120 → 118"),
        (replace(FINE, seconds=2.9), ""),
        (replace(FINE, seconds=5.0), "time +150.0 %"),
    ],
)
def test_trends_are_what_is_no_noise(now: StepResult, trend: str) -> None:
    assert describe_trend(FINE, now) == trend
    result = fleet_of(row(now), previous=(FINE,))
    assert trend in text(result)
    assert trend in fleet_page(result)


def test_json_is_what_the_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((resources.files("modelexport.record") / "schema" / "fleet.schema.json").read_text())
    broken = BrokenBudget("profile", "latency", "1 ms", None)
    result = replace(
        fleet_of(row(FINE, BAD, broken=(broken,)), replace(row(), missing=("export",))),
        planned=(PlannedStep("bert", "export", ("modelexport", "export"), ""),),
    )
    document = json.loads(to_json(result))
    jsonschema.validate(document, schema)
    assert document["rows"][0]["steps"][0]["figures"] == {"nodes": 120}
    for step in (FINE, BAD):  # a line of results.jsonl is a step of the same schema
        jsonschema.validate(step.to_json(), {**schema["$defs"]["step"], "$defs": schema["$defs"]})
        assert StepResult.from_json(json.loads(json.dumps(step.to_json()))) == step
    assert to_csv(result).splitlines()[1].startswith("bert,export,export,ok,,")


def test_a_plan_is_shown_as_a_shell_takes_it() -> None:
    planned = (
        PlannedStep("a", "export", ("modelexport", "export", "--model", "my model"), ""),
        PlannedStep("a", "view", ("modelexport", "view"), "ok before"),
    )
    shown = as_text(plan_lines(replace(fleet_of(row()), planned=planned)))
    assert "a · export: modelexport export --model 'my model'" in shown
    assert "a · view: kept, ok before" in shown
    assert "1 row, 1 step to run, 1 kept" in shown


def test_steps_that_were_run_are_told_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = FleetProgress(4, ran=2, kept=1)
    with watched_fleet(quiet=False) as listener:
        assert listener is not None
        listener(("bert", "export"), None, progress)
        listener(("bert", "export"), FINE, progress)
        progress.ran, progress.kept = 3, 0
        listener(("bert", "verify"), replace(BAD, reason="\x1b[31m"), progress)
        listener(("bert", "view"), replace(VIEW, started=""), progress)
        listener(("t5", "export"), replace(FINE, row="t5"), progress)  # kept from an earlier run
    assert capsys.readouterr().err.splitlines() == ["3/4 bert export ok 2.0 s", "3/4 bert verify found: \\x1b[31m"]
    with watched_fleet(quiet=True) as listener:
        assert listener is None


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for key, value in attrs if key == "href" and value and tag == "a"]


def read_page(result: FleetResult) -> Links:
    links = Links()
    links.feed(fleet_page(result))
    return links


def test_the_page_leads_to_models_reports_and_logs() -> None:
    crashed = replace(step_result("verify", StepStatus.CRASHED), reason="killed by SIGSEGV")
    page = read_page(fleet_of(row(FINE, crashed, VIEW)))
    assert set(page.links) == {
        "rows/bert/view/page.html",
        "rows/bert/export/report.json",
        "rows/bert/verify/log.txt",
        "rows/bert/view/log.txt",
    }


@given(st.text(max_size=30))
def test_no_text_is_markup_or_leads_elsewhere(name: str) -> None:
    hostile = f"<script>alert(1)</script><img src=x onerror=y>{name}"
    step = replace(FINE, row=hostile, step=hostile, reason=hostile, status=StepStatus.FAILED)
    result = replace(fleet_of(replace(row(step, name=hostile), source=hostile)), steps=(hostile,), notes=(hostile,))
    page = read_page(result)
    assert not page.tags & {"script", "img"}
    assert all(link.startswith("rows/") and ":" not in link for link in page.links)
    assert "\x1b" not in text(result)
