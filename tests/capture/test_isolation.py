"""A captured model is left as it was, whatever happens."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import nets
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

import modelexport as mx
from modelexport.capture.isolation import explain_optimizer, root_cause, without_full_collections
from modelexport.errors import ExportFailed

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Counting(nn.Module):
    """A buffer that every run changes, a dropout, and a forward that can be told to fail."""

    runs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.fail = False
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        if self.fail:
            raise RuntimeError("told to fail")
        return self.norm(self.drop(self.lin(x)))


def _state(model: nn.Module) -> tuple[object, ...]:
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    globals_ = (len(module_hooks._global_forward_hooks), len(module_hooks._global_forward_pre_hooks))
    own = sorted(model.__dict__)
    return {name: tensor.tolist() for name, tensor in tensors.items()}, hooks, globals_, own


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_an_export_changes_nothing(tmp_path: Path, exporter: str) -> None:
    model = Counting()
    model.norm.eval()
    flags = [part.training for part in model.modules()]
    before, random = _state(model), torch.random.get_rng_state()
    mx.export(model, tmp_path / "m.onnx", inputs=X, exporter=exporter, no_check=True)
    assert _state(model) == before
    assert [part.training for part in model.modules()] == flags
    assert torch.equal(torch.random.get_rng_state(), random)
    assert model.lin.weight.requires_grad


def test_a_failing_run_changes_nothing_and_says_why(tmp_path: Path) -> None:
    model = Counting()
    model.fail = True
    before = _state(model)
    with pytest.raises(mx.UserError, match="told to fail"):
        mx.export(model, tmp_path / "m.onnx", inputs=X)
    assert _state(model) == before
    assert model.training
    assert list(tmp_path.iterdir()) == []


def test_the_experts_of_a_model_are_put_back(tmp_path: Path) -> None:
    from tests.support.architectures import build

    model = build("mixtral")
    before = model.get_experts_implementation()  # type: ignore[operator]
    mx.TracingHierarchyBuilder()
    mx.export(model, tmp_path / "m.onnx", exporter="torchscript", no_check=True)
    assert model.get_experts_implementation() == before  # type: ignore[operator]


def test_calls_are_recorded_in_order_with_their_parents() -> None:
    hierarchy = mx.TracingHierarchyBuilder().trace_model_execution(nets.Repeated(), X)
    calls = [str(site.call) for site in hierarchy.calls]
    assert calls[:6] == ["", "blk", "blk.fc", "blk.fc#1", "blk.net", "blk.net.0"]
    assert hierarchy.call_counts == {"": 1, "blk": 3, "blk.fc": 6, "blk.net": 3, "blk.net.0": 3, "blk.net.1": 3} | {
        "blk.kinds.p": 3
    }
    assert [str(call) for call in hierarchy.stack(mx.ModuleCall("blk.fc", 3))] == ["", "blk#1", "blk.fc#3"]


def test_the_module_tree_has_parameters_arguments_and_containers() -> None:
    modules = mx.TracingHierarchyBuilder().trace_model_execution(nets.Repeated(), X).modules
    assert [tensor.name for tensor in modules["blk.fc"].parameters] == ["weight", "bias"]
    assert modules["blk.fc"].parameters[0].shape == (4, 4)
    assert modules["blk.fc"].parameters[0].nbytes == 64
    assert modules["blk"].arguments == ("x",)
    assert modules["blk.kinds"].container
    assert modules["blk.net"].container
    assert not modules["blk"].container
    assert modules["blk.fc"].package == "torch.nn.modules.linear"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_submodule_is_looked_into() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fast = torch.compile(nets.CalledThrice())

        def forward(self, x: Tensor) -> Tensor:
            return self.fast(x)

    hierarchy = mx.TracingHierarchyBuilder().trace_model_execution(Holder(), X)
    assert hierarchy.call_counts["fast._orig_mod.lin"] == 3


def test_exports_from_several_threads(tmp_path: Path) -> None:
    results: dict[int, list[str | None]] = {}

    def work(number: int) -> None:
        net = nets.perturbed(nets.CalledThrice())
        found = mx.export(net, tmp_path / f"{number}.onnx", inputs=X, exporter="torchscript", no_check=True)
        results[number] = [entry.attribution.module for entry in found.provenance.nodes.values()]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(modules == ["lin", "", "lin#1", "", "lin#2"] for modules in results.values())


def _full_collections(count: int) -> int:
    """How many there are while so many objects are made that stay."""
    before = gc.get_stats()[-1]["collections"]
    kept = [[number] for number in range(count)]
    assert len(kept) == count
    return gc.get_stats()[-1]["collections"] - before


def test_garbage_is_not_looked_for_among_all_objects_within_an_export() -> None:
    before, settings = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*settings)  # a command that ran in this process has changed them
    try:
        gc.collect()
        objects = 2 * len(gc.get_objects())  # Python waits until there is a quarter more than before
        with pytest.raises(RuntimeError), without_full_collections():
            assert _full_collections(objects) == 0
            raise RuntimeError
        assert gc.get_threshold() == settings
        gc.collect()
        assert _full_collections(objects) > 0
    finally:
        gc.set_threshold(*before)


def test_what_this_package_raises_inside_of_torchs_optimizer_stays_a_fault_of_its_own() -> None:
    own_mistake: Any = None
    with pytest.raises(AttributeError, match="__cause__"), explain_optimizer(nn.ReLU(), "dynamo", "Try another."):
        root_cause(own_mistake)
    failing = pytest.raises(ExportFailed, match="its optimizer fails: TypeError")
    with failing, explain_optimizer(nn.ReLU(), "dynamo", "Try another."):
        torch.zeros("none")  # type: ignore[arg-type]
