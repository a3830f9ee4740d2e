"""A second run that leaves the model all of its work, and falls back to the first one where it cannot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from modelexport.capture.arguments import CallArguments, bind_arguments
from modelexport.capture.export import ProbedRun, probe_operators, trace_model
from modelexport.errors import InputError

X = torch.linspace(-1, 1, 6).reshape(2, 3)
IDLE = torch.ones(2, 3, dtype=torch.int64)


def masked(**tensors: Tensor) -> dict[str, Tensor] | None:
    arguments = CallArguments(tensors).with_mask(tensors)
    return None if arguments is None else dict(arguments.tensors)


def test_a_mask_that_hides_nothing_hides_the_last_place() -> None:
    found = masked(x=X, mask=IDLE, flags=IDLE.bool())
    assert found is not None
    assert found["x"] is X
    assert found["mask"].tolist() == [[1, 1, 0]] * 2
    assert found["flags"].tolist() == [[True, True, False]] * 2
    assert IDLE.sum() == 6


@pytest.mark.parametrize(
    "tensor", [X, torch.ones(2, 3), torch.tensor([[1, 1, 0]]), torch.ones(4, dtype=torch.int64), IDLE[:, :1]]
)
def test_nothing_else_is_taken_for_a_mask(tensor: Tensor) -> None:
    assert masked(x=tensor) is None


def test_other_values_change_sign_or_hide() -> None:
    ids = torch.tensor([[5, 6]])
    values = CallArguments({"x": X, "mask": IDLE, "ids": ids}).negate_or_mask()
    assert torch.equal(values["x"], -X)
    assert values["mask"].tolist() == [[1, 1, 0]] * 2
    assert values["ids"] is ids


class Masking(nn.Module):
    """Leaves out the work of a mask that hides nothing; `refuse` and `other` say what it does about a real one."""

    def __init__(self, refuse: bool = False, other: bool = False) -> None:
        super().__init__()
        self.refuse, self.other = refuse, other
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if bool(mask.all()):
            return self.a(x)
        if self.refuse:
            raise ValueError("no masks")
        return (self.b if self.other else self.a)(x) * mask


def probed(net: nn.Module) -> tuple[ProbedRun, list[str]]:
    found = probe_operators(trace_model(net, {"x": X, "mask": IDLE}), {"x", "mask"})
    return found, [op.name for op in found.trace.ops]


def test_the_work_of_the_mask_is_seen() -> None:
    found, operators = probed(Masking())
    assert "aten::mul" in operators
    assert found.arguments.tensors["mask"].tolist() == [[1, 1, 0]] * 2


@pytest.mark.parametrize("net", [Masking(refuse=True), Masking(other=True)])
def test_a_model_that_does_otherwise_is_run_as_before(net: nn.Module) -> None:
    found, operators = probed(net)
    assert "aten::mul" not in operators
    assert found.arguments.tensors["mask"] is IDLE


class Fickle(nn.Module):
    """Calls another module each time."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.parts[self.runs % 3](x)


def test_a_model_that_changes_its_path_is_refused() -> None:
    run = trace_model(Fickle(), X)
    with pytest.raises(InputError, match="Fickle calls other modules when it runs on the same inputs again"):
        probe_operators(run, set(run.arguments.tensors))


class Once(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spent = False

    def forward(self, x: Tensor) -> Tensor:
        if self.spent:
            raise RuntimeError("only once")
        self.spent = True
        return x.sin()


def test_a_model_that_cannot_run_again_says_so() -> None:
    run = trace_model(Once(), X)
    with pytest.raises(InputError, match="only once"):
        probe_operators(run, set(run.arguments.tensors))


def test_a_probe_has_the_calls_of_the_first_run() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    run = trace_model(net, bind_arguments(net, X))
    recorded = {site.call for site in run.hierarchy.calls}
    found = probe_operators(run, set(run.arguments.tensors))
    assert {op.call for op in found.trace.ops} <= recorded
    assert found.arguments is run.arguments


def test_what_the_graph_does_not_take_stays_as_it_was() -> None:
    assert CallArguments({"x": X, "mask": IDLE}).with_mask({"x"}) is None
