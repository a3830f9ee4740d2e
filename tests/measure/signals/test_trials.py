"""A sample of `make signals`: verbs that write, ended at lines of the code that moves files."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from measure.signals.scenes import list_scenes
from measure.signals.signals_run import tabulate
from measure.signals.trials import Scene, run_trials


@pytest.fixture
def scenes(tmp_path: Path) -> list[Scene]:
    """With data outside of the model, and of a package."""
    known = list_scenes(tmp_path / "store", with_torch=False)
    return [known[0], next(scene for scene in known if scene.target == "out")]


def test_a_signal_leaves_old_files_or_new_ones_and_nothing_else(scenes: list[Scene], tmp_path: Path) -> None:
    results = list(run_trials(scenes, tmp_path, 2))
    assert len(results) == 2 * 3 * 2
    assert [(result, result.faults) for result in results if result.faults] == []
    killed = [result for result in results if result.trial.number == signal.SIGKILL]
    assert any(result.leftovers for result in killed), "a kill leaves temporary files, or nothing was tried"
    assert {result.state for result in results} >= {"old", "new"}
    assert tabulate(results).holds
