"""Temporary names: whose they are, who removes them, and signals that wait."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.support.children import run_child, started

from modelexport.graph.file.atomic import staging, write_atomically
from modelexport.graph.file.folder import staged_folder
from modelexport.graph.file.temporaries import deferring_signals, name_temporary, remove_leftovers, remove_temporary

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes cannot be told apart here")
WRITE = "from pathlib import Path; from modelexport.graph.file.atomic import staging\n"


def leave_behind(folder: Path, code: str) -> list[Path]:
    """What a process that is killed in the middle leaves."""
    script = f"import os, signal\n{WRITE}{code}\nos.kill(os.getpid(), signal.SIGKILL)"
    assert run_child([sys.executable, "-c", script], cwd=folder).returncode == -signal.SIGKILL
    return sorted(folder.rglob(".modelexport-*"))


@LINUX
def test_leftovers_of_a_dead_process_are_removed_by_the_next_one_that_writes(tmp_path: Path) -> None:
    code = (
        "staged = staging()\nstage = staged.__enter__()\nstage.write(Path('a'), 'half')\nstage.write(Path('b'), 'half')"
    )
    assert len(leave_behind(tmp_path, code)) == 2
    write_atomically(tmp_path / "c", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@LINUX
def test_a_folder_left_behind_is_removed_as_well(tmp_path: Path) -> None:
    code = (
        "from modelexport.graph.file.folder import staged_folder\n"
        "staged = staged_folder(Path('package'))\n"
        "(staged.__enter__() / 'model.onnx').write_text('half')"
    )
    (left,) = leave_behind(tmp_path, code)
    assert left.is_dir()
    with staged_folder(tmp_path / "package") as folder:
        (folder / "model.onnx").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


@LINUX
def test_files_of_a_living_process_are_left_alone(tmp_path: Path) -> None:
    waiting = (
        f"import sys, time\n{WRITE}staged = staging()\nstage = staged.__enter__()\nstage.write(Path('a'), 'half')\n"
        "print('writing', flush=True)\ntime.sleep(200)"
    )
    with started([sys.executable, "-c", waiting], cwd=tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        write_atomically(tmp_path / "b", "whole")
        assert len(list(tmp_path.glob(".modelexport-*"))) == 1


def test_names_that_say_nothing_about_a_process_are_left_alone(tmp_path: Path) -> None:
    own = name_temporary(tmp_path)
    machine = own.name.split("-")[1]
    names = [
        f".modelexport-{'0' * 8}-99999999-1-{'a' * 8}.tmp",  # of another machine
        f".modelexport-{machine}-99999999-0-{'a' * 8}.tmp",  # of a process whose start is not known
        ".modelexport-notes.tmp",
        own.name,
    ]
    for name in names:
        (tmp_path / name).write_text("somebody's")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    remove_temporary(own)
    assert not own.exists()


@LINUX
def test_a_number_that_another_process_has_now_is_no_sign_of_life(tmp_path: Path) -> None:
    own = name_temporary(tmp_path)
    before = own.with_name(own.name.replace(f"-{os.getpid()}-", f"-{os.getpid()}-1"))
    before.write_text("of a process that had this number before")
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_removed_is_gone_when_the_program_ends(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from modelexport.graph.file.temporaries import name_temporary\n"
        "name_temporary(Path()).write_text('half')\nname_temporary(Path()).mkdir()\nsys.exit(3)"
    )
    assert run_child([sys.executable, "-c", code], cwd=tmp_path).returncode == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_it_may_come(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    steps: list[str] = []
    try:
        with pytest.raises(KeyboardInterrupt), deferring_signals():
            signal.raise_signal(number)
            with deferring_signals():
                steps.append("inside")
            steps.append("behind")
        assert steps == ["inside", "behind"]
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_a_signal_while_files_are_moved_comes_when_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        signal.raise_signal(signal.SIGINT)
        return replace(self, target)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt), staging() as stage:
            for name in "ab":
                stage.write(tmp_path / name, "new")
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
