"""What became of one model after a tool: whose fault it is, and what is scored all the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from measure.job import Job
from measure.lineage.lineage_page import targets
from measure.lineage.lineage_run import tool_runs
from measure.lineage.run_tools import BEFORE, Subject
from measure.lineage.scoring import SHARES, Scorer, ToolOutcome, ToolResult, sum_scores
from measure.results import TaskFolder
from measure.workers import Workers
from onnx import numpy_helper
from torch import nn

import modelexport as mx
from measure.lineage import run_tools

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    path = tmp_path_factory.mktemp("net") / BEFORE
    mx.export(net, path, inputs=torch.randn(2, 4), exporter="torchscript", no_check=True)
    return path


class Trial:
    """A model and a tool of one's own making."""

    def __init__(self, exported: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        self._monkeypatch = monkeypatch
        shutil.copytree(exported.parent, folder, dirs_exist_ok=True)
        self._tasks = TaskFolder(Path())
        self._subject = Subject(Path(BEFORE), self._tasks)

    def attempt(self, change: Change, chain: str = "ort:all") -> ToolResult:
        def run_chain(name: str, source: Path, folder: Path, feeds: object) -> Path:
            assert self._tasks.running_path(name).exists()
            model = onnx.load(source)
            change(model)
            onnx.save(model, folder / "made.onnx")
            return folder / "made.onnx"

        self._monkeypatch.setattr(run_tools, "run_chain", run_chain)
        return self._subject.attempt("net", "torchscript", chain)


@pytest.fixture
def trial(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(exported, tmp_path, monkeypatch)


def nothing(model: onnx.ModelProto) -> None:
    """A tool that leaves everything as it is."""


def other_weights(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    changed = numpy_helper.to_array(tensor) + np.float32(1)
    tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[1].op_type = "Relic"


def no_record(model: onnx.ModelProto) -> None:
    del model.metadata_props[:]


def other_inputs(model: onnx.ModelProto) -> None:
    (value,) = model.graph.input
    for node in model.graph.node:
        node.input[:] = ["renamed" if name == value.name else name for name in node.input]
    value.name = "renamed"


class TestOutcome:
    def test_a_tool_that_changes_nothing(self, trial: Trial) -> None:
        found = trial.attempt(nothing)
        assert (found.outcome, found.message, found.wrong) == (ToolOutcome.OK, "", ())
        assert found.planted
        assert found.alone[0] == found.alone[1] == found.scores[0.0].nodes > 2
        assert all(found.scores[share].compared for share in SHARES)

    def test_inputs_under_another_name_are_fed_by_place(self, trial: Trial) -> None:
        assert trial.attempt(other_inputs).outcome is ToolOutcome.OK

    def test_other_numbers(self, trial: Trial) -> None:
        """It is scored by names; its values say nothing."""
        found = trial.attempt(other_weights)
        assert found.outcome is ToolOutcome.CHANGED
        assert "differs by" in found.message
        assert [found.scores[share].compared for share in SHARES] == [0, 0, 0]
        assert found.scores[0.0].scored > 0

    def test_other_numbers_of_a_tool_that_is_meant_to_change_them(self, trial: Trial) -> None:
        assert trial.attempt(other_weights, "int8").outcome is ToolOutcome.OK

    def test_what_cannot_be_run(self, trial: Trial) -> None:
        found = trial.attempt(unknown_operator)
        assert found.outcome is ToolOutcome.BROKEN
        assert "Relic" in found.message
        assert found.scores[0.0].nodes > 0
        assert found.scores[0.0].compared == 0

    def test_a_record_that_is_gone(self, trial: Trial) -> None:
        found = trial.attempt(no_record)
        assert found.outcome is ToolOutcome.OK
        assert (found.planted, found.alone) == (False, (0, 0))


class TestFaults:
    def test_what_a_tool_raises_is_its_own_fault(self, trial: Trial) -> None:
        def fail(_: onnx.ModelProto) -> None:
            raise ValueError("cannot do this\nwith that")

        found = trial.attempt(fail)
        assert (found.outcome, found.message) == (ToolOutcome.FAILED, "ValueError: cannot do this")
        assert found.scores == {}
        assert not list(Path().glob("*.running"))

    def test_an_error_of_the_measure_is_not(self, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
        """It comes through, and no tool is said to have been running."""

        def fail(*_: object) -> None:
            raise KeyError("the measure")

        monkeypatch.setattr(Scorer, "score", fail)
        with pytest.raises(KeyError, match="the measure"):
            trial.attempt(nothing)
        assert not list(Path().glob("*.running"))


@pytest.mark.parametrize(
    ("row", "chains", "fuses"),
    [
        (
            "multi-head",
            ("ort:all", "int8", "onnxslim", "merge", "merge_copy+onnxslim", "merge_shared+ort:all", "int8+ort:all"),
            False,
        ),
        ("folded-norms", ("ort:extended", "qdq", "onnxslim+fp16"), True),
    ],
)
def test_real_tools_reach_the_targets(tmp_path: Path, row: str, chains: tuple[str, ...], fuses: bool) -> None:
    """A small network, from the worker's command line to the figures of the page; the last tool cannot do it."""
    *made, failed = Workers(tool_runs(), tmp_path).run_job(Job((row, "torchscript"), (*chains, "opset:3")))
    assert [(one.chain, one.outcome, one.message) for one in made] == [(name, ToolOutcome.OK, "") for name in chains]
    assert (failed.outcome, failed.scores) == (ToolOutcome.FAILED, {})
    assert failed.message
    assert [line for one in made for line in one.wrong] == []
    assert [target.what for target in targets(made) if not target.holds] == []
    for one in made:
        assert one.scores[0.0].scored
        assert one.scores[0.0].compared
    for share in SHARES:
        assert sum_scores(made, share).scored
        assert bool(sum_scores(made, share).several) is fuses
