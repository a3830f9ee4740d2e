"""A worker that hangs or breaks down costs the task that it was at, and the others go on."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from measure.corpus.corpus_run import verification
from measure.corpus.rows import Outcome, Result
from measure.job import Job
from measure.lineage.lineage_run import tool_runs
from measure.lineage.scoring import ToolOutcome, ToolResult
from measure.results import TaskFolder
from measure.workers import Workers, module_command
from tests.support.corpus_rows import fine
from tests.support.tool_cases import result

CODES = {
    "good": "import sys; print('noise'); open(sys.argv[1], 'w').write(sys.argv[2])",
    "hanging": "import time; time.sleep(60)",
    "crashing": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "raising": "raise TypeError('not this way')",
    "silent": "import sys; sys.exit(3)",
}


def attempt(name: str, exporter: str = "dynamo") -> Job:
    return Job((name, exporter), ("verify",))


def accountable(folder: Path, limit: float, jobs: int = 1) -> Workers[Result]:
    """Workers that do what the row is named after, in the place of a real attempt."""

    def command(job: Job, place: Path) -> Sequence[str]:
        name, exporter = job.subject
        text = json.dumps(fine(name, exporter).to_json())
        return sys.executable, "-S", "-c", CODES[name], str(place / "verify.json"), text

    return Workers(replace(verification(limit), command=command), folder, jobs, limit)


def run_one(folder: Path, name: str, limit: float = 30) -> tuple[Outcome, str]:
    (found,) = accountable(folder, limit).run_job(attempt(name))
    assert found.key == (name, "dynamo")
    return found.outcome, found.reason


class TestAccountable:
    """Whatever happens to a worker is the result of its row."""

    def test_a_result_comes_through_whatever_the_worker_prints(self, tmp_path: Path) -> None:
        found = accountable(tmp_path, 30).run_job(attempt("good", "torchscript"))
        assert found == [fine("good", "torchscript")]
        assert not list(tmp_path.rglob("*.running"))

    def test_a_hanging_worker_is_cut_off_at_its_limit(self, tmp_path: Path) -> None:
        start = time.monotonic()
        assert run_one(tmp_path, "hanging", limit=0.5) == (Outcome.TIMED_OUT, "after 0.5 s")
        assert time.monotonic() - start < 20

    @pytest.mark.parametrize(
        ("name", "cause"),
        [("crashing", "killed by SIGSEGV"), ("raising", "TypeError: not this way"), ("silent", "exit code 3")],
    )
    def test_a_worker_that_breaks_down_says_how(self, tmp_path: Path, name: str, cause: str) -> None:
        assert run_one(tmp_path, name) == (Outcome.CRASHED, cause)

    def test_the_others_go_on(self, tmp_path: Path) -> None:
        jobs = [attempt(name) for name in ("crashing", "good", "raising", "hanging", "silent")]
        found = {job.subject[0]: results[0].outcome for job, results in accountable(tmp_path, 2, jobs=2).run(jobs)}
        assert found == {
            "crashing": Outcome.CRASHED,
            "good": Outcome.OK,
            "raising": Outcome.CRASHED,
            "hanging": Outcome.TIMED_OUT,
            "silent": Outcome.CRASHED,
        }

    def test_a_real_worker_can_be_started(self, tmp_path: Path) -> None:
        """It knows no such row, and says so: enough to know that it runs."""
        (found,) = Workers(verification(120), tmp_path, 1, 120).run_job(attempt("nobody"))
        assert found.outcome is Outcome.CRASHED
        assert "nobody" in found.reason


NET = ("net", "dynamo")

# Stands in for the real worker of tools. A line of its log says what it was asked for.
WORKER = """
import json, os, signal, sys, time
folder, log, results, *chains = sys.argv[1:]
with open(log, "a") as file:
    file.write(" ".join(chains) + "\\n")
for chain in chains:
    if chain == "measure":
        print("noise")
        raise KeyError("it is the measure that is wrong")
    place = os.path.join(folder, chain.replace(":", "-"))
    open(place + ".running", "w").close()
    if chain == "SIGSEGV":
        os.kill(os.getpid(), signal.SIGSEGV)
    if chain == "hang":
        time.sleep(60)
    if chain == "exit":
        sys.exit(3)
    os.remove(place + ".running")
    open(place + ".json", "w").write(json.dumps(json.loads(results)[chain]))
"""


def related(chain: str, subject: tuple[str, ...] = NET) -> ToolResult:
    return result(chain, row=subject[0], exporter=subject[1], nodes=5)


def several(folder: Path) -> Workers[ToolResult]:
    """Workers with several tasks, of which only the marked one is to blame."""

    def command(job: Job, place: Path) -> Sequence[str]:
        results = json.dumps({chain: related(chain, job.subject).to_json() for chain in job.tasks})
        return sys.executable, "-S", "-c", WORKER, str(place), str(folder / f"{job.subject[0]}.log"), results

    return Workers(replace(tool_runs(), command=command), folder / "work", 1, 2)


def run_chains(folder: Path, *chains: str) -> list[ToolResult]:
    return several(folder).run_job(Job(NET, chains))


def asked_for(folder: Path) -> list[str]:
    return (folder / "net.log").read_text(encoding="utf-8").splitlines()


class TestSeveralTasks:
    """A tool that brings its worker down costs one result; an error of the measure is no tool's fault."""

    def test_results_come_through_in_the_order_of_the_tasks(self, tmp_path: Path) -> None:
        assert run_chains(tmp_path, "ort:all", "int8") == [related("ort:all"), related("int8")]
        assert asked_for(tmp_path) == ["ort:all int8"]

    @pytest.mark.parametrize(
        ("chain", "said"), [("SIGSEGV", "killed by SIGSEGV"), ("hang", "took too long"), ("exit", "exit code 3")]
    )
    def test_a_task_that_brings_its_worker_down_costs_one_result(self, tmp_path: Path, chain: str, said: str) -> None:
        first, lost, *others = run_chains(tmp_path, "ort:all", chain, "int8", "qdq")
        assert lost == ToolResult("net", "dynamo", chain, ToolOutcome.FAILED, said)
        assert [first, *others] == [related("ort:all"), related("int8"), related("qdq")]
        assert asked_for(tmp_path) == [f"ort:all {chain} int8 qdq", "int8 qdq"]
        assert not list(tmp_path.rglob("*.running"))

    def test_several_tasks_may_do_so(self, tmp_path: Path) -> None:
        found = run_chains(tmp_path, "SIGSEGV", "ort:all", "hang", "exit")
        assert [str(one.outcome) for one in found] == ["failed", "ok", "failed", "failed"]

    @pytest.mark.parametrize("before", ["ort:all", "SIGSEGV"])
    def test_an_error_of_the_measure_itself_is_raised(self, tmp_path: Path, before: str) -> None:
        with pytest.raises(RuntimeError, match=r"net, dynamo: KeyError: .*it is the measure that is wrong"):
            run_chains(tmp_path, before, "measure", "int8")
        folder = TaskFolder(tmp_path / "work" / "net-dynamo")
        assert folder.result_path(before).exists()
        assert not folder.result_path("measure").exists()
        with pytest.raises(RuntimeError):
            list(several(tmp_path).run([Job(NET, (before, "measure", "int8"))]))

    def test_what_is_there_already_is_not_run_again(self, tmp_path: Path) -> None:
        run_chains(tmp_path, "ort:all", "SIGSEGV")
        found = run_chains(tmp_path, "ort:all", "SIGSEGV", "int8")
        assert [one.outcome for one in found] == [ToolOutcome.OK, ToolOutcome.FAILED, ToolOutcome.OK]
        assert asked_for(tmp_path)[-1] == "int8"
        run_chains(tmp_path, "ort:all", "SIGSEGV", "int8")
        assert len(asked_for(tmp_path)) == 2

    def test_the_mark_of_an_interrupted_run_blames_nobody(self, tmp_path: Path) -> None:
        folder = TaskFolder(tmp_path / "work" / "net-dynamo")
        folder.path.mkdir(parents=True)
        folder.mark_running("int8")
        with pytest.raises(RuntimeError, match="it is the measure"):
            run_chains(tmp_path, "measure", "int8")
        assert not folder.result_path("int8").exists()

    def test_jobs_are_rows_of_a_fleet(self, tmp_path: Path) -> None:
        """Its books know how each ended; a job whose results are all there is no row that is run."""
        jobs = [Job((row, "dynamo"), ("ort:all", "SIGSEGV")) for row in ("net", "other")]
        assert {job for job, _ in several(tmp_path).run(jobs)} == set(jobs)
        books = tmp_path / "work" / "results.jsonl"
        steps = [json.loads(line) for line in books.read_text(encoding="utf-8").splitlines()]
        assert [(step["row"], step["status"]) for step in steps] == [("net-dynamo", "ok"), ("other-dynamo", "ok")]
        shutil.rmtree(tmp_path / "work" / "net-dynamo")
        assert {job for job, _ in several(tmp_path).run(jobs)} == set(jobs)
        again = [json.loads(line) for line in books.read_text(encoding="utf-8").splitlines()]
        assert again[1] == steps[1]
        assert again[0] != steps[0]

    def test_every_job_has_results_of_its_own(self, tmp_path: Path) -> None:
        jobs = [
            Job((row, exporter), ("ort:all", "int8"))
            for row in ("net", "other")
            for exporter in ("dynamo", "torchscript")
        ]
        found = dict(several(tmp_path).run(jobs))
        assert sorted((one.row, one.exporter, one.chain) for results in found.values() for one in results) == sorted(
            (*job.subject, chain) for job in jobs for chain in ("ort:all", "int8")
        )
        assert all((one.row, one.exporter) == job.subject for job, results in found.items() for one in results)


def test_the_command_names_everything(tmp_path: Path) -> None:
    command = module_command("measure.lineage.run_tools")(Job(NET, ()), tmp_path)
    assert command[-4:] == ("-m", "measure.lineage.run_tools", str(tmp_path), "net,dynamo")
