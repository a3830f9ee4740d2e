"""Which steps are run, kept and skipped: with a backend that only writes down what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.fleets import write_fleet

from modelexport.errors import UserError
from modelexport.fleet.attempt import Task
from modelexport.fleet.bookkeeping import JOURNAL, PREVIOUS, RESULTS, Bookkeeping, locked_folder, read_results
from modelexport.fleet.coordinator import Coordinator, LocalBackend, RunOptions
from modelexport.fleet.fleet_plan import Plan, Row, Step
from modelexport.fleet.manifest import read_plan
from modelexport.record.results.fleet import StepResult, StepStatus

Judge = Callable[[Task], StepStatus]
TEXT = """
[fleet]
steps = ["export", "verify", "int8", "profile"]
[steps.int8]
verb = "quantize"
[steps.profile]
from = "int8"
[[row]]
name = "a"
source = "org/a"
[[row]]
name = "b"
source = "org/b"
"""


class Backend:
    """Ends steps in the order in which they came, one at a time, as `judge` says."""

    def __init__(self, judge: Judge, slots: int = 2) -> None:
        self.slots, self.judge = slots, judge
        self.started: list[tuple[str, str]] = []
        self.waiting: list[Task] = []
        self.closed = False
        self.most_memory = 0

    def start(self, task: Task) -> None:
        self.started.append(task.id)
        self.waiting.append(task)
        self.most_memory = max(self.most_memory, sum(task.limits.memory or 0 for task in self.waiting))

    def wait(self) -> Iterator[tuple[Task, StepResult]]:
        task = self.waiting.pop(0)
        status = self.judge(task)
        if status.has_output:
            folder = Path(task.root, "rows", *task.id)
            folder.mkdir(parents=True, exist_ok=True)
            for name in task.outputs:
                (folder / name).touch()
        yield task, task.result(status)

    def close(self) -> None:
        self.closed = True


def fine(_: Task) -> StepStatus:
    return StepStatus.OK


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return read_plan(write_fleet(tmp_path, TEXT))


def run(plan: Plan, folder: Path, judge: Judge = fine, options: RunOptions | None = None) -> Backend:
    folder.mkdir(exist_ok=True)
    books, backend = Bookkeeping(folder), Backend(judge)
    coordinator = Coordinator(plan, books, options or RunOptions(), lambda *_: None)
    try:
        coordinator.run(backend)
    finally:
        books.close()
    books.finish(coordinator.results(), changed=bool(coordinator.progress.ran))
    assert backend.closed
    assert coordinator.progress.done == coordinator.progress.total
    return backend


def statuses(folder: Path) -> dict[str, str]:
    return {f"{result.row} {result.step}": str(result.status) for result in read_results(folder / RESULTS)}


def test_steps_run_when_what_they_read_is_there(plan: Plan, tmp_path: Path) -> None:
    started = run(plan, tmp_path / "out").started
    assert len(started) == len(set(started)) == 8
    for row in "ab":
        order = [step for name, step in started if name == row]
        assert order.index("export") < order.index("int8") < order.index("profile")


def test_results_are_given_out_as_they_come(plan: Plan, tmp_path: Path) -> None:
    """Whoever runs the steps can end the run after any of them; those that are kept are given out, too."""
    out, backend = tmp_path / "out", Backend(fine)
    out.mkdir()
    with closing(Bookkeeping(out)) as books:
        steps = Coordinator(plan, books, RunOptions(), lambda *_: None).steps(backend)
        first = next(steps)
        assert (first.id, len(backend.started)) == (backend.started[0], 2)
        steps.close()
        assert backend.closed
    with closing(Bookkeeping(out)) as books:
        again = list(Coordinator(plan, books, RunOptions(), lambda *_: None).steps(Backend(fine)))
    assert again[0] == first
    assert sorted(result.id for result in again) == sorted(
        (row.name, step.name) for row in plan.rows for step in row.steps
    )


def test_a_step_may_be_another_program(tmp_path: Path) -> None:
    """For code that has work of its own; its outcome is its exit code alone."""
    steps = (Step("work", "work", module="json.tool", words=("--help",)),)
    plan = Plan("own", (Row("a", steps=steps), Row("b", steps=(Step("work", "work", module="no.such", words=()),))))
    out = tmp_path / "out"
    out.mkdir()
    with closing(Bookkeeping(out)) as books:
        results = list(Coordinator(plan, books, RunOptions(), lambda *_: None).steps(LocalBackend(1)))
    found = {result.row: (str(result.status), result.reason) for result in results}
    assert found["a"] == ("ok", "")
    assert found["b"][0] == "crashed"
    assert "No module named" in found["b"][1]


def test_what_was_done_is_not_done_again(plan: Plan, tmp_path: Path) -> None:
    run(plan, tmp_path / "out")
    before = (tmp_path / "out" / RESULTS).read_text()
    assert run(plan, tmp_path / "out").started == []
    assert (tmp_path / "out" / RESULTS).read_text() == before
    assert not (tmp_path / "out" / PREVIOUS).exists()


def test_steps_behind_one_that_wrote_nothing_are_skipped(plan: Plan, tmp_path: Path) -> None:
    def judge(task: Task) -> StepStatus:
        return StepStatus.CRASHED if task.id == ("a", "int8") else StepStatus.OK

    run(plan, tmp_path / "out", judge)
    found = statuses(tmp_path / "out")
    assert (found["a int8"], found["a profile"], found["a verify"]) == ("crashed", "skipped", "ok")
    assert all(status == "ok" for name, status in found.items() if name.startswith("b"))


def test_a_failure_is_kept_until_it_is_asked_for_again(plan: Plan, tmp_path: Path) -> None:
    run(plan, tmp_path / "out", lambda task: StepStatus.FAILED if task.id == ("a", "verify") else StepStatus.OK)
    assert run(plan, tmp_path / "out").started == []
    assert run(plan, tmp_path / "out", options=RunOptions(retry_failed=True)).started == [("a", "verify")]
    assert set(statuses(tmp_path / "out").values()) == {"ok"}


@pytest.mark.parametrize("status", [StepStatus.DISK_FULL, StepStatus.LOST])
def test_what_the_machine_is_to_blame_for_is_run_again(plan: Plan, tmp_path: Path, status: StepStatus) -> None:
    run(plan, tmp_path / "out", lambda task: status if task.id == ("a", "profile") else StepStatus.OK)
    assert run(plan, tmp_path / "out").started == [("a", "profile")]


def test_more_time_is_another_attempt(tmp_path: Path) -> None:
    def judge(task: Task) -> StepStatus:
        return StepStatus.TIMED_OUT if task.step == "verify" else StepStatus.OK

    plan = read_plan(write_fleet(tmp_path, TEXT.replace("[fleet]", "[fleet]\ntimeout = 60")))
    run(plan, tmp_path / "out", judge)
    assert run(plan, tmp_path / "out").started == []
    longer = read_plan(write_fleet(tmp_path, TEXT.replace("[fleet]", "[fleet]\ntimeout = 90")))
    assert sorted(run(longer, tmp_path / "out").started) == [("a", "verify"), ("b", "verify")]


def test_a_file_that_is_gone_is_made_again(plan: Plan, tmp_path: Path) -> None:
    run(plan, tmp_path / "out")
    (tmp_path / "out" / "rows" / "b" / "int8" / "model.onnx").unlink()
    assert run(plan, tmp_path / "out").started == [("b", "int8")]


def test_only_runs_some_rows_and_keeps_what_is_known_of_the_others(plan: Plan, tmp_path: Path) -> None:
    run(plan, tmp_path / "out")
    assert {row for row, _ in run(plan, tmp_path / "out", options=RunOptions(only=("b",), rerun=True)).started} == {"b"}
    assert len(statuses(tmp_path / "out")) == 8


def test_a_row_that_is_no_longer_in_the_file_is_no_result(plan: Plan, tmp_path: Path) -> None:
    run(plan, tmp_path / "out")
    fewer = read_plan(write_fleet(tmp_path, TEXT.rpartition("[[row]]")[0]))
    run(fewer, tmp_path / "out")
    assert {name.split()[0] for name in statuses(tmp_path / "out")} == {"a"}


def test_large_steps_wait_for_each_other_and_small_ones_pass(tmp_path: Path) -> None:
    text = TEXT.replace('name = "a"', 'name = "a"\nmemory = "6GB"').replace('name = "b"', 'name = "b"\nmemory = "6GB"')
    plan = read_plan(write_fleet(tmp_path, text + '[[row]]\nname = "c"\nsource = "org/c"\nmemory = "1GB"\n'))
    backend = run(plan, tmp_path / "out", options=RunOptions(memory=8 * 10**9))
    assert len(backend.started) == 12
    assert backend.most_memory == 7 * 10**9
    assert backend.started[:2] == [("a", "export"), ("c", "export")]


class TestInterrupted:
    def test_everything_that_ended_is_known_afterwards(self, plan: Plan, tmp_path: Path) -> None:
        ended: list[Task] = []

        def judge(task: Task) -> StepStatus:
            if len(ended) == 3:
                raise KeyboardInterrupt
            ended.append(task)
            return StepStatus.OK

        out = tmp_path / "out"
        with pytest.raises(KeyboardInterrupt):
            run(plan, out, judge)
        assert [result.id for result in read_results(out / JOURNAL)] == [task.id for task in ended]
        again = run(plan, out).started
        assert sorted([*again, *(task.id for task in ended)]) == sorted((row, step) for row in "ab" for step in (
            "export", "int8", "profile", "verify"))  # fmt: skip

    def test_a_torn_line_is_nobodys_result(self, plan: Plan, tmp_path: Path) -> None:
        out = tmp_path / "out"
        run(plan, out)
        text = (out / RESULTS).read_text()
        (out / RESULTS).unlink()
        (out / JOURNAL).write_text(text[:-40] + "\nnull\n[]\n{}\n" + "[" * 10_000 + "\n")
        assert run(plan, out).started == [("b", "profile")]

    def test_a_step_whose_coordinator_died_is_found_in_its_folder(self, plan: Plan, tmp_path: Path) -> None:
        out = tmp_path / "out"
        run(plan, out)
        for result in read_results(out / RESULTS):
            import json

            (out / "rows" / result.row / result.step / "result.json").write_text(json.dumps(result.to_json()))
        (out / RESULTS).unlink()
        assert run(plan, out).started == []
        assert len(statuses(out)) == 8

    def test_what_was_the_last_run_is_the_previous_one(self, plan: Plan, tmp_path: Path) -> None:
        out = tmp_path / "out"
        run(plan, out, lambda task: StepStatus.FAILED if task.step == "verify" else StepStatus.OK)
        run(plan, out, options=RunOptions(retry_failed=True))
        previous = {result.id: result.status for result in read_results(out / PREVIOUS)}
        assert previous["a", "verify"] is StepStatus.FAILED


def test_one_run_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    with (
        locked_folder(tmp_path / "out"),
        pytest.raises(UserError, match="another fleet"),
        locked_folder(tmp_path / "out"),
    ):
        pass
    with locked_folder(tmp_path / "out"):
        pass
