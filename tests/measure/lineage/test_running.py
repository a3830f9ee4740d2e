"""A tool that brings its worker down costs one result; an error of the measure is no tool's fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from measure.lineage.attempt import result_path, running_path
from measure.lineage.running import Export, Workers, worker_command
from measure.lineage.score import Outcome, Result
from tests.support.tool_cases import result

NET = Export("net", "dynamo")

# Stands in for the real worker. A line of its log says what it was asked for.
WORKER = """
import json, os, signal, sys
folder, log, *chains = sys.argv[1:]
with open(log, "a") as file:
    file.write(" ".join(json.loads(chain)["chain"] for chain in chains) + "\\n")
for text in chains:
    chain = json.loads(text)["chain"]
    if chain == "measure":
        print("noise")
        raise KeyError("it is the measure that is wrong")
    place = os.path.join(folder, chain.replace(":", "-"))
    open(place + ".running", "w").close()
    if chain in ("SIGSEGV", "SIGALRM"):
        os.kill(os.getpid(), getattr(signal, chain))
    if chain == "exit":
        sys.exit(3)
    os.remove(place + ".running")
    open(place + ".json", "w").write(text)
"""


def fine(chain: str, export: Export = NET) -> Result:
    return result(chain, row=export.row, exporter=export.exporter, nodes=5)


def workers(folder: Path, *chains: str) -> Workers:
    def command(export: Export, place: Path, left: Sequence[str]) -> Sequence[str]:
        results = [json.dumps(fine(chain, export).to_json()) for chain in left]
        return sys.executable, "-S", "-c", WORKER, str(place), str(folder / f"{export.row}.log"), *results

    return Workers(chains, folder / "work", 1, command)


def asked_for(folder: Path) -> list[str]:
    return (folder / "net.log").read_text(encoding="utf-8").splitlines()


def test_results_come_through_in_the_order_of_the_chains(tmp_path: Path) -> None:
    assert workers(tmp_path, "ort:all", "int8").run_one(NET) == [fine("ort:all"), fine("int8")]
    assert asked_for(tmp_path) == ["ort:all int8"]


@pytest.mark.parametrize(
    ("chain", "said"), [("SIGSEGV", "killed by SIGSEGV"), ("SIGALRM", "took too long"), ("exit", "exit code 3")]
)
def test_a_tool_that_brings_its_worker_down_costs_one_result(tmp_path: Path, chain: str, said: str) -> None:
    first, lost, *others = workers(tmp_path, "ort:all", chain, "int8", "qdq").run_one(NET)
    assert lost == Result("net", "dynamo", chain, Outcome.FAILED, said)
    assert [first, *others] == [fine("ort:all"), fine("int8"), fine("qdq")]
    assert asked_for(tmp_path) == [f"ort:all {chain} int8 qdq", "int8 qdq"]
    assert not list(tmp_path.rglob("*.running"))


def test_several_tools_may_do_so(tmp_path: Path) -> None:
    found = workers(tmp_path, "SIGSEGV", "ort:all", "SIGALRM", "exit").run_one(NET)
    assert [one.outcome for one in found] == [Outcome.FAILED, Outcome.OK, Outcome.FAILED, Outcome.FAILED]


@pytest.mark.parametrize("before", ["ort:all", "SIGSEGV"])
def test_an_error_of_the_measure_itself_is_raised(tmp_path: Path, before: str) -> None:
    with pytest.raises(RuntimeError, match=r"net, dynamo: KeyError: .*it is the measure that is wrong"):
        workers(tmp_path, before, "measure", "int8").run_one(NET)
    folder = tmp_path / "work" / "net-dynamo"
    assert result_path(folder, before).exists()
    assert not result_path(folder, "measure").exists()
    with pytest.raises(RuntimeError):
        list(workers(tmp_path, before, "measure", "int8").run([NET]))


def test_what_is_there_already_is_not_run_again(tmp_path: Path) -> None:
    workers(tmp_path, "ort:all", "SIGSEGV").run_one(NET)
    found = workers(tmp_path, "ort:all", "SIGSEGV", "int8").run_one(NET)
    assert [one.outcome for one in found] == [Outcome.OK, Outcome.FAILED, Outcome.OK]
    assert asked_for(tmp_path)[-1] == "int8"
    workers(tmp_path, "ort:all", "SIGSEGV", "int8").run_one(NET)
    assert len(asked_for(tmp_path)) == 2


def test_every_export_has_results_of_its_own(tmp_path: Path) -> None:
    exports = [Export(row, exporter) for row in ("net", "other") for exporter in ("dynamo", "torchscript")]
    found = list(workers(tmp_path, "ort:all", "int8").run(exports))
    assert sorted((one.row, one.exporter, one.chain) for results in found for one in results) == sorted(
        (export.row, export.exporter, chain) for export in exports for chain in ("ort:all", "int8")
    )


def test_two_chains_have_two_files() -> None:
    folder = Path("folder")
    chains = ("ort:all", "int8", "int8+ort:all", "opset:21", "ort:basic")
    paths = [path for chain in chains for path in (result_path(folder, chain), running_path(folder, chain))]
    assert len(set(paths)) == 10
    assert {path.parent for path in paths} == {folder}


def test_the_real_command_names_everything(tmp_path: Path) -> None:
    command = worker_command(NET, tmp_path, ["int8", "int8+ort:all"])
    assert command[1:] == ("-m", "measure.lineage.attempt", "net", "dynamo", str(tmp_path), "int8", "int8+ort:all")
