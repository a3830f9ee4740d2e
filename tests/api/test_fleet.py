"""A fleet from end to end: processes of this program, broken down in every way, on this machine and on workers."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from tests.support.children import started
from tests.support.fleets import faulty_row, write_fleet

import modelexport as mx
from modelexport.api.fleet import FleetOptions, fleet
from modelexport.errors import FleetInvalid, UnknownName, UserError
from modelexport.fleet.verbs import VERBS
from modelexport.record.results.fleet import FleetResult

pytestmark = pytest.mark.slow  # each step is a process of this program
# They write another model, with an option that says which, or of a larger one.
TOOLS = ("quantize", "run-tool")
HEAD = '[fleet]\nsteps = ["analyze", "cost"]\ntimeout = "2m"\n[[row]]\nname = "fine"\nfile = "a.onnx"\n'


def statuses(result: FleetResult) -> dict[str, list[str]]:
    return {row.name: [str(step.status) for step in row.results] for row in result.rows}


def reasons(result: FleetResult) -> dict[str, str]:
    return {row.name: row.fault for row in result.rows}


def test_rows_that_break_down_fail_alone(tmp_path: Path) -> None:
    rows = [
        faulty_row(tmp_path, "exit", "exit7", 'steps = ["cost"]'),
        faulty_row(tmp_path, "silent", "exit0", 'steps = ["cost"]'),
        faulty_row(tmp_path, "segv", "signal11", 'steps = ["cost"]'),
        faulty_row(tmp_path, "killed", "signal9", 'steps = ["cost"]'),
        faulty_row(tmp_path, "hang", "hang", 'steps = ["cost"]\ntimeout = "2s"'),
        faulty_row(tmp_path, "eat", "eat", 'steps = ["cost"]\nmemory = "400MB"'),
        faulty_row(tmp_path, "full", "full", 'steps = ["cost"]'),
        faulty_row(tmp_path, "once", "once", 'steps = ["cost"]'),
    ]
    path = write_fleet(tmp_path, HEAD + "".join(rows))
    result = fleet(path, FleetOptions(jobs=2, trust=True))
    assert statuses(result) == {
        "fine": ["ok", "ok"],
        "exit": ["crashed"],
        "silent": ["crashed"],
        "segv": ["crashed"],
        "killed": ["lost"],
        "hang": ["timed out"],
        "eat": ["out of memory"],
        "full": ["disk full"],
        "once": ["ok"],
    }
    found = reasons(result)
    assert found["exit"] == "cost crashed: ended with exit code 7 without report.json"
    assert found["segv"] == "cost crashed: killed by SIGSEGV"
    assert found["hang"] == "cost timed out: took longer than 2 s"
    assert found["eat"] == "cost out of memory: took more than 0.4 GB"
    assert "file too large" in found["full"]
    (once,) = next(row for row in result.rows if row.name == "once").results
    assert once.attempts == 2
    folder = tmp_path / "models-fleet"
    assert not list(folder.glob("rows/*/.modelexport-*"))
    assert (folder / "rows" / "exit" / "cost" / "log.txt").exists()

    again = fleet(path, FleetOptions(jobs=2, trust=True))
    assert (again.ran, again.kept) == (2, 8), "what the machine was to blame for, and nothing else"


def test_verbs_that_read_a_file_are_steps(tmp_path: Path) -> None:
    """Each is given its output in its own way; `validate` takes --output for another thing."""
    verbs = [name for name, verb in VERBS.items() if verb.takes == "file" and not verb.model and name not in TOOLS]
    assert "validate" in verbs
    text = HEAD + f"steps = {verbs}\n".replace("'", '"')
    result = fleet(write_fleet(tmp_path, text), FleetOptions(jobs=2))
    assert result.ok, reasons(result)
    assert [step.step for step in result.results] == verbs


def test_budgets_and_figures_come_from_reports(tmp_path: Path) -> None:
    text = HEAD + 'budget = { nodes = 2, operators = { Relu = 2 } }\nsteps = ["analyze"]\n'
    (row,) = fleet(write_fleet(tmp_path, text), FleetOptions(output=tmp_path / "out")).rows
    assert row.results[0].operators == {"Relu": 3}
    assert [str(broken) for broken in row.broken] == [
        "nodes of analyze is 3, and may be 2",
        "operators of analyze is Relu 3, and may be Relu 2",
    ]
    assert not row.ok


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    result = fleet(write_fleet(tmp_path, HEAD), FleetOptions(dry_run=True))
    assert [planned.command[:2] for planned in result.planned] == [("modelexport", "analyze"), ("modelexport", "cost")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "models.toml"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("dephts = 3", "fine: cost: No such option"),
        ('depth = "deep"', "'deep' is not a valid integer"),
        ("depth = -1", "is not in the range"),
    ],
)
def test_every_option_is_held_against_its_command_before_anything_runs(tmp_path: Path, option: str, said: str) -> None:
    path = write_fleet(tmp_path, f"{HEAD}[steps.cost]\noptions = {{ {option} }}\n")
    with pytest.raises(FleetInvalid) as caught:
        fleet(path, FleetOptions())
    assert said in str(caught.value)
    assert not (tmp_path / "models-fleet").exists()


def test_a_row_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown row 'fin'"):
        fleet(write_fleet(tmp_path, HEAD), FleetOptions(only=("fin",)))
    with pytest.raises(FleetInvalid, match="options: timeout is 'soon'"):
        fleet(write_fleet(tmp_path, HEAD), FleetOptions(timeout="soon"))


def test_files_go_through_an_address(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    text = HEAD + '[[row]]\nname = "chain"\nfile = "a.onnx"\nsteps = ["attach", "analyze"]\n'
    address = (tmp_path / "shared").as_uri()
    path = write_fleet(tmp_path, text)
    result = fleet(path, FleetOptions(output=tmp_path / "out", address=address))
    assert result.ok, reasons(result)
    shared = tmp_path / "shared"
    assert (shared / "rows" / "chain" / "attach" / "model.onnx").exists()
    assert (shared / "results.jsonl").read_bytes() == (tmp_path / "out" / "results.jsonl").read_bytes()
    assert not (tmp_path / "out" / "rows").exists()
    elsewhere = fleet(path, FleetOptions(output=tmp_path / "other", address=address))
    assert (elsewhere.ran, elsewhere.kept) == (0, 4)


def test_an_address_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UserError, match="cannot use the address nowhere://x"):
        fleet(write_fleet(tmp_path, HEAD), FleetOptions(address="nowhere://x"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_processes_and_keeps_what_ended(tmp_path: Path, number: signal.Signals, code: int) -> None:
    path = write_fleet(tmp_path, HEAD + faulty_row(tmp_path, "hang", "hang", 'steps = ["cost"]'))
    command = [sys.executable, "-m", "modelexport", "fleet", str(path), "--trust", "--jobs", "1"]
    folder = tmp_path / "models-fleet"
    with started(command, env={**environment(), "OMP_NUM_THREADS": "1"}) as child:
        assert child.stderr is not None
        lines = [child.stderr.readline() for _ in range(2)]
        assert [line.split()[:4] for line in lines] == [
            ["1/3", "fine", "analyze", "ok"],
            ["2/3", "fine", "cost", "ok"],
        ]
        while not list(folder.glob("rows/hang/.modelexport-*/log.txt")):
            time.sleep(0.05)
        child.send_signal(number)
        assert child.wait(60) == code
        assert "interrupted" in child.stderr.read()
    assert len((folder / "results.jsonl").read_text().splitlines()) == 2
    assert not list(folder.glob("rows/hang/.modelexport-*"))


def environment() -> dict[str, str]:
    import os

    source = str(Path(mx.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))}
