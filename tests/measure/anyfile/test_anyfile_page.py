"""The page shows what the results say: a missed target does not hold, and what was not measured has no figure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measure.anyfile.anyfile_page import compose_head, compose_tables, targets
from measure.anyfile.anyfile_run import choose_jobs
from measure.anyfile.read_exports import PARAMETERS, PLAIN, TASKS, TOOLS, UNNAMED, ReadResult
from measure.anyfile.scoring import Miss, Score, Verdict
from measure.catalogue import Options
from measure.corpus.rows import read_rows

PERFECT = Score(nodes=1000, right=1000, class_right=1000, class_known=1000)
GOOD = [
    ReadResult("net", exporter, task, score=PERFECT, sources="names")
    for exporter in ("dynamo", "torchscript")
    for task in TASKS
]
WHAT = [target.what for target in targets(GOOD)]


def missed(exporter: str, task: str, **figures: int) -> list[str]:
    """What does not hold if the files of one kind are worse than the others."""
    results = [
        replace(result, score=replace(PERFECT, **figures))
        if (result.exporter, result.task) == (exporter, task)
        else result
        for result in GOOD
        if result.task == task
    ]
    return [target.what for target in targets(results) if not target.holds]


def test_ten_figures_must_hold() -> None:
    assert len(WHAT) == 10
    assert all(target.holds for target in targets(GOOD))


@pytest.mark.parametrize(
    ("exporter", "task", "figures", "what"),
    [
        ("dynamo", PLAIN, {"right": 979}, WHAT[0:1]),
        ("dynamo", PLAIN, {"right": 980, "class_right": 980}, []),
        ("dynamo", PLAIN, {"class_right": 979}, WHAT[1:2]),
        ("dynamo", PLAIN, {"wrong_strong": 1}, WHAT[2:3]),
        ("torchscript", PLAIN, {"right": 949}, WHAT[3:4]),
        ("torchscript", PLAIN, {"right": 950, "wrong_strong": 5, "class_right": 0}, []),
        ("torchscript", PLAIN, {"wrong_strong": 6}, WHAT[4:5]),
        # Two files of a thousand nodes each.
        ("dynamo", TOOLS[0], {"right": 699}, WHAT[5:6]),
        ("dynamo", TOOLS[1], {"right": 700, "fallback": 60, "wrong_strong": 20}, []),
        ("dynamo", TOOLS[1], {"fallback": 61}, WHAT[6:7]),
        ("dynamo", TOOLS[1], {"wrong_strong": 21}, WHAT[7:8]),
        ("dynamo", UNNAMED, {"right": 699, "wrong_strong": 9}, WHAT[8:9]),
        ("dynamo", PARAMETERS, {"right": 699, "wrong_strong": 9}, WHAT[9:10]),
    ],
)
def test_a_figure_that_is_missed(exporter: str, task: str, figures: dict[str, int], what: list[str]) -> None:
    assert missed(exporter, task, **figures) == what


def test_what_was_not_measured_has_no_figure() -> None:
    assert [target.what for target in targets([GOOD[0]])] == WHAT[:3]
    assert targets([ReadResult("net", "dynamo", PLAIN, refusal="no")]) == []


def test_refusals_are_grouped_and_not_counted() -> None:
    refused = [
        ReadResult(row, "dynamo", task, refusal="no | way") for row in ("a", "b") for task in (PLAIN, PARAMETERS)
    ]
    failed = ReadResult("c", "dynamo", "int8", refusal="TypeError: <class>")
    *_, models, refusals = compose_tables([*GOOD, *refused, failed])
    assert refusals.rows == (
        ("(export)", "no \\| way", "a (dynamo), b (dynamo)"),
        ("`int8`", "TypeError: &lt;class>", "c (dynamo)"),
    )
    assert [row[0] for row in models.rows] == ["net", "net"]
    assert compose_head([*GOOD, *refused, failed]) == compose_head(GOOD)


def test_refusals_name_no_folders_and_are_short() -> None:
    said = "Load model from /home/me/build/x-1.0/before.onnx failed: node /a/b/Add " + "and so on " * 50
    *_, refusals = compose_tables([*GOOD, ReadResult("c", "dynamo", "int8", refusal=said)])
    ((_, reason, _),) = refusals.rows
    assert reason.startswith("Load model from before.onnx failed: node Add and so on")
    assert len(reason) < 170


def test_results_survive_a_file() -> None:
    miss = Miss(Verdict.SHALLOW, "strong", "Conv", "node", "block", "block.conv", "scope:names")
    result = replace(GOOD[0], misses=(miss,), seconds=0.5)
    assert ReadResult.from_json(result.to_json()) == result


def test_tools_are_run_on_the_rows_of_the_lineage_or_on_those_asked_for() -> None:
    rows = read_rows()
    names = [row.name for row in rows]
    by_subject = {job.subject: job.tasks for job in choose_jobs(rows, names, Options())}
    assert len(by_subject) == 2 * len(rows)
    assert by_subject["bert", "dynamo"] == TASKS
    assert by_subject["roberta", "dynamo"] == (PLAIN, UNNAMED, PARAMETERS)
    (job,) = choose_jobs(rows, ["roberta"], Options(rows=("roberta",), exporters=("torchscript",)))
    assert (job.subject, job.tasks) == (("roberta", "torchscript"), TASKS)
    assert {job.tasks for job in choose_jobs(rows, names, Options(tools=("int8",)))} == {("int8",)}
