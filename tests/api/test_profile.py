"""The time of files, module by module."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.support.profiles import ensure_nested
from torch import nn

import modelexport as mx
from modelexport.api import profile_run
from modelexport.errors import RecordMismatch
from modelexport.inspect.kernel_events import join_events
from modelexport.record.results.profile import KernelEvent
from modelexport.show.data.trace import profile_trace

EXPORTERS = ("dynamo", "torchscript")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.act = nn.ReLU()
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.act(self.fc(x)))


class Twice(nn.Module):
    """A block that is called twice, and another one once."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.last = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(torch.sin(self.block(x))))


class Deciding(nn.Module):
    """Branches that look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.yes = Block()
        self.no = Block()
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cond(x.sum() > 0, self.yes, self.no, (x,)))


def exported(model: nn.Module, path: Path, exporter: str = "dynamo", seed: int = 0) -> Path:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    mx.export(model.eval(), path, inputs=torch.ones(2, 8), exporter=exporter, no_check=True)
    return path


@pytest.fixture(scope="module", params=EXPORTERS)
def twice(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(Twice(), tmp_path_factory.mktemp(request.param) / "twice.onnx", request.param)


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(Deciding(), tmp_path_factory.mktemp("deciding") / "deciding.onnx")


@pytest.fixture(params=["float", "int8"])
def kind(request: pytest.FixtureRequest, twice: Path, tmp_path: Path) -> Path:
    if request.param == "float":
        return twice
    mx.run_tool(twice, "int8", tmp_path / "int8.onnx")
    return tmp_path / "int8.onnx"


def without_names(path: Path, target: Path) -> Path:
    model = onnx.load(path)
    todo = [model.graph]
    while todo:
        for node in todo.pop().node:
            node.name = ""
            todo += [item.g for item in node.attribute if item.type == onnx.AttributeProto.GRAPH]
    onnx.save(model, target)
    return target


class TestCalls:
    @pytest.mark.parametrize("optimization", ["all", "none"])
    def test_of_modules_and_not_of_kernels(self, kind: Path, optimization: str) -> None:
        found = {
            module.path: module for module in mx.profile(kind, runs=2, warmup=0, optimization=optimization).modules
        }
        calls = {path: module.calls for path, module in found.items()}
        assert (calls[""], calls["block"], calls["last"]) == (1, 2, 1)
        assert (calls["block.out"], calls["last.out"]) == (2, 1)
        assert found["block"].kernels >= 2 * found["last"].kernels > 2

    def test_in_a_loop(self, tmp_path: Path) -> None:
        class Looping(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.step = Block()
                self.last = nn.Linear(8, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                start = (torch.tensor(0), x)
                loop: Any = torch.while_loop
                return self.last(loop(lambda i, _: i < 5, lambda i, x: (i + 1, self.step(x)), start)[1])

        path = exported(Looping(), tmp_path / "loop.onnx")
        found = {module.path: module for module in mx.profile(path, runs=2, warmup=0, optimization="none").modules}
        assert [found[path].calls for path in ("", "step", "step.fc", "last")] == [1, 5, 5, 1]
        assert (found["step.fc"].kernels, found["last"].kernels) == (5, 1)


class TestSum:
    """The trace is added up from its times alone, the parts from what modules are charged with."""

    @pytest.mark.parametrize("optimization", ["all", "none"])
    def test_the_parts_are_all_of_the_trace(self, kind: Path, optimization: str) -> None:
        found = mx.profile(kind, runs=3, warmup=1, optimization=optimization)
        assert found.check.holds
        assert found.check.trace == sum(event.duration for event in found.events) > 0
        assert found.attributed == 1

    def test_with_branches(self, deciding: Path) -> None:
        found = mx.profile(deciding, runs=3, warmup=1)
        assert found.check.holds
        assert found.check.trace < sum(event.duration for event in found.events)  # a branch is inside of its If

    @pytest.mark.parametrize("wrong", ["lost", "twice", "not inside"])
    def test_what_is_lost_or_counted_twice_is_noticed(
        self, deciding: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
    ) -> None:
        def spoiled(*arguments: Any) -> Sequence[KernelEvent]:
            events = join_events(*arguments)
            longest = max(range(len(events)), key=lambda place: events[place].own)
            match wrong:
                case "lost":
                    del events[longest]
                case "twice":
                    events.append(events[longest])
                case _:
                    return [replace(event, inside=0.0) for event in events]
            return events

        monkeypatch.setattr(profile_run, "join_events", spoiled)
        assert not mx.profile(deciding, runs=3, warmup=1).check.holds


class TestBranches:
    def test_the_branch_that_ran_is_charged(self, deciding: Path) -> None:
        found = mx.profile(deciding, runs=2, warmup=0)
        paths = {module.path for module in found.modules}
        assert "yes" in paths or "no" in paths
        assert not {"yes", "no"} <= paths
        assert not any(node.others for node in found.nodes)

    @pytest.mark.parametrize("optimization", ["all", "none"])
    def test_neither_is_if_nothing_tells_them_apart(self, deciding: Path, tmp_path: Path, optimization: str) -> None:
        bare = without_names(deciding, tmp_path / "bare.onnx")
        found = mx.profile(bare, runs=2, warmup=0, optimization=optimization)
        modules = {module.path: module for module in found.modules}
        assert not {"yes", "no"} & set(modules)
        unclear = [one for one in modules[""].shared if one.unclear]
        assert unclear
        for one in unclear:
            assert {path.partition(".")[0] for path in one.modules} == {"yes", "no"}
        inside = [node for node in found.nodes if "_branch|" in node.key]
        assert sum(one.nodes for one in unclear) == len(inside)
        assert sum(one.time for one in unclear) == pytest.approx(sum(node.time for node in inside))
        assert found.check.holds

    def test_their_trace_nests(self, deciding: Path) -> None:
        events = json.loads(profile_trace(mx.profile(deciding, runs=2, warmup=0)))["traceEvents"]
        bars = [one for one in events if one["ph"] == "X"]
        ensure_nested(bars)
        lane = max(one["tid"] for one in bars)
        kernels = [one for one in bars if one["tid"] == lane]
        branch = next(one for one in kernels if one["name"] == "If")
        assert any(branch["ts"] < one["ts"] < branch["ts"] + branch["dur"] for one in kernels)


class TestBefore:
    """A file that says itself what it was made from, and another answer to that."""

    def test_it_is_asked_even_if_there_is_a_record(self, twice: Path, tmp_path: Path) -> None:
        plain = {module.path for module in mx.profile(twice, runs=1, warmup=0).modules}
        assert {module.path for module in mx.profile(twice, before=twice, runs=1, warmup=0).modules} == plain
        bare = tmp_path / "bare.onnx"
        stripped = onnx.load(twice)
        del stripped.metadata_props[:]
        onnx.save(stripped, bare)
        asked = mx.profile(twice, before=bare, runs=1, warmup=0)
        assert any(f"no record in {bare}" in note for note in asked.notes)

    def test_a_file_of_another_model_is_refused(self, twice: Path, tmp_path: Path) -> None:
        class Other(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.convolution = nn.Conv1d(2, 4, 3)
                self.norm = nn.GroupNorm(2, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.softmax(self.norm(self.convolution(x[None])), -1).cumsum(0)

        other = exported(Other(), tmp_path / "other.onnx")
        with pytest.raises(RecordMismatch, match=r"was not made from .*other\.onnx"):
            mx.profile(twice, before=other, runs=1, warmup=0)

    def test_weights_of_another_version_are_named(self, twice: Path, tmp_path: Path) -> None:
        exporter = twice.parent.name.rstrip("0123456789")
        other = exported(Twice(), tmp_path / "other.onnx", exporter, seed=1)
        said = f"hold other numbers than in {other}"
        assert any(said in note for note in mx.profile(twice, before=other, runs=5, warmup=0).notes)
        assert not any("hold other numbers" in note for note in mx.profile(twice, runs=5, warmup=0).notes)


class TestNoise:
    def test_few_runs_say_nothing(self, twice: Path) -> None:
        few = mx.profile(twice, runs=4, warmup=0)
        assert few.spread is None
        assert all(module.spread is None and module.noisy for module in few.modules)
        assert few.notes == ("4 of 5 runs that it takes to say how far times are apart: give more --runs",)
        enough = mx.profile(twice, runs=5, warmup=0)
        assert enough.spread is not None
        assert enough.modules[0].spread is not None
        assert not enough.notes
