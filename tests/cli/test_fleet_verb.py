"""`modelexport fleet`: its table, its formats, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command_line import run
from tests.support.fleets import write_fleet

HEAD = '[fleet]\nsteps = ["cost"]\n[[row]]\nname = "fine"\nfile = "a.onnx"\n'


@pytest.mark.slow
def test_a_fleet_is_run_once_and_then_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_fleet(tmp_path, HEAD)
    assert run("fleet", path) == 0
    said = capsys.readouterr()
    assert "1 row, all ok · steps: 1 ok · 1 run, 0 kept" in said.out
    assert said.err.startswith("1/1 fine cost ok")
    assert run("fleet", path, "--format", "json", "-q") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ran"], document["kept"], document["ok"]) == (0, 1, True)
    assert run("fleet", path, "--rerun", "--format", "csv") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("fine,cost,cost,ok")
    assert (tmp_path / "models-fleet" / "fleet.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_a_row_that_fails_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_fleet(tmp_path, HEAD + '[[row]]\nname = "none"\nfile = "nothing.onnx"\n')
    assert run("fleet", path, "-o", tmp_path / "out") == 1
    assert "none  failed" in capsys.readouterr().out
    assert run("fleet", path, "-o", tmp_path / "out", "--only", "fine") == 0, "the others are not asked for"


def test_a_dry_run_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fleet", write_fleet(tmp_path, HEAD), "--dry-run") == 0
    assert f"fine · cost: modelexport cost {tmp_path / 'a.onnx'} --format json" in capsys.readouterr().out
    assert not (tmp_path / "models-fleet").exists()


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (HEAD + "timout = 3", (), "there is no key 'timout'"),
        (HEAD, ("--only", "fin"), "unknown row 'fin'\nDid you mean 'fine'?"),
        (HEAD, ("--memory", "lots"), "memory is 'lots'"),
        (HEAD, ("--cluster", "slrm"), "unknown kind of cluster 'slrm'\nDid you mean 'slurm'?"),
        (HEAD + "[steps.cost]\noptions = { dpth = 3 }", (), "No such option"),
    ],
)
def test_what_is_wrong_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, options: tuple[str, ...], said: str
) -> None:
    assert run("fleet", write_fleet(tmp_path, text), *options) == 2
    assert said in capsys.readouterr().err
