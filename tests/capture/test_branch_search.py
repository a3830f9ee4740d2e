"""Decisions of a run, and the search for inputs that change them. No exporter is needed."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from modelexport.capture.arguments import CallArguments
from modelexport.capture.branch_search import BranchSearch
from modelexport.capture.decisions import BOOL, NUMBER, SIZE, Decision, PathRecorder, RunPath
from modelexport.capture.hidden_branches import find_borders
from modelexport.capture.variations import change_some, kind_of, resize, vary_sample, vary_values
from modelexport.capture.watched_numbers import WatchedSize


@dataclass(frozen=True)
class Run:
    model: nn.Module
    arguments: CallArguments

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()


class Deciding(nn.Module):
    """Takes a function, so that a test says in one line what is decided."""

    def __init__(self, decide: object) -> None:
        super().__init__()
        self.decide = decide
        self.table = nn.Embedding(60, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.ones(1) if self.decide(x, mask) else torch.zeros(1)  # type: ignore[operator]


X = torch.linspace(-1, 1, 12).reshape(3, 4)
IDS = torch.arange(1, 9).reshape(2, 4)
ONES = torch.ones(2, 4, dtype=torch.int64)


def path_of(model: nn.Module, *args: Tensor) -> RunPath:
    with PathRecorder(model) as recorder:
        model(*args)
    return recorder.path


def search(decide: object, x: Tensor = X, mask: Tensor | None = None, *, open_batch: bool = False) -> list[int]:
    """What the model returned on inputs of other paths."""
    torch.manual_seed(0)
    given = {"x": x} if mask is None else {"x": x, "mask": mask}
    found = BranchSearch(Run(Deciding(decide), CallArguments(given)), {"x": {0: "batch"}} if open_batch else {})
    return [int(probe.outputs["output"]) for probe in found.probes()]


class Choosing(nn.Module):
    """Two layers that call the same functions. What numpy computes with, and compares, cannot be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.high, self.low = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.high if x.detach().numpy().sum() > -3 else self.low
        made: Tensor = chosen(x)
        return made


# decisions


def test_another_module_is_another_path_whatever_it_calls() -> None:
    net = Choosing()
    assert path_of(net, X).functions == path_of(net, X + 1).functions
    assert path_of(net, X).functions != path_of(net, X - 1).functions


def test_modules_that_numpy_chooses_are_both_found() -> None:
    """Without what was detached, nothing shows that x decides, and only a few variations of it are tried."""
    torch.manual_seed(0)
    sample = torch.randn(2, 5, 4) + 0.05
    probes = BranchSearch(Run(Choosing(), CallArguments({"x": sample})), {}).probes()
    assert any(float(probe.tensors["x"].sum()) < -3 for probe in probes)


class ChoosingParameters(nn.Module):
    """The same function with one parameter, or part of one, or another, as numpy says."""

    def __init__(self, *, stacked: bool) -> None:
        super().__init__()
        self.high, self.low = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.both, self.stacked = nn.Parameter(torch.eye(4)[:2]), stacked

    def forward(self, x: Tensor) -> Tensor:
        is_high = x.detach().numpy().sum() > -3
        if self.stacked:
            return x * self.both[int(is_high)]
        return x * (self.high if is_high else self.low)


@pytest.mark.parametrize("stacked", [False, True])
def test_another_parameter_is_another_path(stacked: bool) -> None:
    net = ChoosingParameters(stacked=stacked)
    assert path_of(net, X).functions == path_of(net, X + 1).functions
    assert path_of(net, X).functions != path_of(net, X - 1).functions


def test_two_decisions_in_one_line_are_two() -> None:
    """Also where Python has made its code faster after some runs."""
    net = Deciding(lambda x, _: float(x[0, 0]) > -2 and float(x[0, 1]) > -2)
    sites = {tuple(item.site for item in path_of(net, X).decisions) for _ in range(40)}
    assert [len(set(in_run)) for in_run in sites] == [2]


def test_where_of_a_mask_alone_counts_like_nonzero() -> None:
    assert 1 in search(lambda x, _: torch.where(x > 0)[0].shape[0] < 3)


@pytest.mark.parametrize("cut", [lambda x: x.detach(), lambda x: x.data])
def test_gradients_lead_through_what_was_detached(cut: Callable[[Tensor], Tensor]) -> None:
    assert 1 in search(lambda x, _: cut(x)[0, 1] > 30 and cut(x)[0, 2] < -30)


def test_values_that_leave_a_tensor_are_decisions() -> None:
    def decide(x: Tensor, _: object) -> bool:
        scale = x.sum().item()
        return bool(x.sum() > 0) and scale > 1 and x.shape[1] > 10

    net = nn.Sequential(Deciding(decide))
    decisions = [(item.path, item.kind, item.value) for item in path_of(net, X + 1).decisions]
    assert decisions == [
        ("0", NUMBER, pytest.approx(12.0)),
        ("0", BOOL, True),
        ("0", BOOL, True),
        ("0", SIZE, ("__gt__", False)),
    ]
    first = path_of(net, X + 1).decisions[0]
    assert first.where.startswith("test_branch_search.py:")
    assert str(first).endswith("a tensor was turned into a Python number")


def test_the_first_decision_that_is_another_one() -> None:
    net = Deciding(lambda x, _: x.sum() > 1)
    above, below = path_of(net, X + 1), path_of(net, X)
    assert above.is_like(above)
    assert not above.is_like(below)
    departed = above.departs_from(below)
    assert departed is not None
    assert departed.value is False


def test_a_model_may_keep_what_it_was_handed() -> None:
    kept: list[int] = []
    path_of(Deciding(lambda x, _: kept.append(x.shape[0])), X)
    assert isinstance(kept[0], WatchedSize)
    assert type(pickle.loads(pickle.dumps(kept[0]))) is int
    assert kept[0] == 3
    assert torch.zeros(kept[0]).shape == (3,)
    assert {3: "a"}[kept[0]] == "a"


def test_borders_of_sizes_lie_on_a_line() -> None:
    def path(size: int, other: int) -> RunPath:
        return RunPath((Decision("", "a.py:1", SIZE, ("__gt__", False), compared=(size, other)),), "")

    assert {20, 21} <= set(find_borders(path(8, 20), 8, {9: path(9, 20)}))
    assert {21, 22} <= set(find_borders(path(4, 10), 8, {17: path(8, 10), 9: path(4, 10)}))
    assert not set(find_borders(path(30, 30), 8, {9: path(30, 30)}))


# search


@pytest.mark.parametrize(
    "decide",
    [
        lambda x, _: x.sum() > 5,
        lambda x, _: (x < -37).any(),
        lambda x, _: x[0, 2] > 4 and x[1, 1] > 7,
        lambda x, _: (x == 0).float().mean() > 0.6,
        lambda x, _: (x > 0.5).sum() == 11,
        lambda x, _: x.norm() < 1e-3,
        lambda x, _: float(x.mean()) > 0.8,
        lambda x, _: 2.0 < x.std().item() < 2.5,
        lambda x, _: int(x.sum(0).argmax()) == 0,
        lambda x, _: max(x[0].tolist()) > 3,
        lambda x, _: x.var() < 0.1 and x.mean() > 2,
        lambda x, _: x[x > 0.5].numel() >= 9,
        lambda x, _: len(torch.nonzero(x < -0.9)) > 6,
        lambda x, _: 1 - x.mean().item() > 31,
        lambda x, _: -x.mean().item() > 70,
        lambda x, _: (x > 0.8).sum().item() > 10.5,
        lambda x, _: 7.31 < x[0, 3].item() < 7.35,
        lambda x, _: 7.31 < x.tolist()[0][3] < 7.35,
        lambda x, _: bool(x.any()) and torch.equal(x, x.round()),  # zeros are whole numbers, too
    ],
)
def test_numbers_of_another_path(decide: object) -> None:
    assert 1 in search(decide)


@pytest.mark.parametrize(
    "decide",
    [
        lambda ids, _: (ids == 53).any(),
        lambda ids, _: ids.max() > 40,
        lambda ids, _: ids[0, 0].item() == 17,
        lambda ids, _: len(ids.unique()) == 1,
        lambda _, mask: not mask.bool().all(),
        lambda _, mask: mask.sum() == 5,
        lambda _, mask: int(mask.sum(1).max()) <= 2,
        lambda _, mask: mask[0, 0] == 0,
    ],
)
def test_tokens_and_masks_of_another_path(decide: object) -> None:
    assert 1 in search(decide, IDS, ONES)


@pytest.mark.parametrize(
    "decide",
    [
        lambda x, _: x.shape[0] > 57,
        lambda x, _: x.size(0) // 4 >= 5,
        lambda x, _: x.shape[0] * 2 == 50,
        lambda x, _: len(x) >= 40,
        lambda x, _: x.shape[0] == 1,
        lambda x, _: x.shape[0] / x.shape[1] > 9.5,
        lambda x, _: -x.shape[0] < -33,
        lambda x, _: x.shape[0] * 0.5 > 17.25,
        lambda x, _: int(x.shape[0] / 2) > 15,
        lambda x, _: math.ceil(x.shape[0] / 4) == 7,
        lambda x, _: 7 - x.shape[0] < -21,
        lambda x, _: {12: True}.get(x.shape[0]),
        lambda x, _: sum(1 for _row in x) > 5,
        lambda x, _: len(x.split(1)) > 40,
        lambda x, _: math.sqrt(x.shape[0]) > 6,
        lambda x, _: f"{x.shape[0]}" == "5",
    ],
)
def test_sizes_of_another_path(decide: object) -> None:
    assert 1 in search(decide, open_batch=True)
    assert search(decide) == []  # no axis of the file is open


def test_the_length_of_a_list_of_numbers_may_decide() -> None:
    assert 1 in search(lambda x, _: len(x.tolist()) == 1, open_batch=True)


def test_a_length_of_another_axis_is_no_reason_to_try_sizes() -> None:
    """The parts of a packed product are as many at each size."""
    net = Deciding(lambda x, _: len(x.chunk(2, -1)) > 2)
    search_of = BranchSearch(Run(net, CallArguments({"x": X})), {"x": {0: "batch"}})
    assert list(search_of.probes()) == []
    assert search_of._runs == 2


def test_a_model_that_decides_nothing_is_run_once() -> None:
    net = nn.Linear(4, 4)
    found = BranchSearch(Run(net, CallArguments({"input": X})), {"input": {0: "batch"}})
    assert list(found.probes()) == []
    assert found._runs == 1


@pytest.mark.parametrize(
    ("decide", "values", "is_bounded"),
    [
        (lambda x, _: bool((x[x > 0] * 2).dim()), {1}, True),
        (lambda x, _: x[x > 0].shape[0] > 9, {0, 1}, False),
        (lambda x, _: len([row + 1 for row in x[x > 0]]) > 9, {0, 1}, False),
    ],
    ids=["nobody asks how many", "compared", "a loop"],
)
def test_what_a_mask_picks_is_searched_no_longer_than_it_tells(
    decide: object, values: set[int], is_bounded: bool
) -> None:
    """Files are shown other numbers of elements all the same: a number may have become a constant in them."""
    torch.manual_seed(0)
    found = BranchSearch(Run(Deciding(decide), CallArguments({"x": X})), {})
    outputs = [int(probe.outputs["output"]) for probe in found.probes()]
    assert len(outputs) >= 5
    assert set(outputs) == values
    assert (found._runs <= 12) == is_bounded


def test_what_does_not_depend_on_the_inputs_has_no_other_path() -> None:
    assert search(lambda _x, _: torch.ones(1).sum() > 3) == []


@pytest.mark.parametrize("decide", [lambda x, _: x.abs().sum() < -1, lambda x, _: torch.isnan(x).any()])
def test_a_decision_that_nothing_changes_is_named(decide: object) -> None:
    found = BranchSearch(Run(Deciding(decide), CallArguments({"x": X})), {})
    assert list(found.probes()) == []
    assert [item.kind for item in found.unmoved] == [BOOL]


class ChoosingConstants(nn.Module):
    """3 for sums between 5 and 20, which the first variations of the sample do not have."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.full((1,), 3.0 if 5 < float(x.sum()) < 20 else 2.0)


HIDDEN: list[Callable[[Tensor], object]] = [
    lambda x: 7.31 < float(x[0, 3]) < 7.35,
    lambda x: 7.31 < x.detach().numpy()[0, 3] < 7.35,
    lambda x: f"{x[0, 3]:.2f}" == "7.33",
    lambda x: int(x[0, 3].item() * 1000) == 7331,
    lambda x: {7.331: True}.get(round(x.tolist()[0][3], 3)),
]


@pytest.mark.parametrize("decide", HIDDEN)
def test_a_number_after_which_all_runs_went_on_in_one_way_is_named(decide: Callable[[Tensor], object]) -> None:
    # A path of its own, which nothing shows before.
    search_of = BranchSearch(Run(Deciding(lambda x, _: decide(x) and x.cos().any()), CallArguments({"x": X})), {})
    assert {int(probe.outputs["output"]) for probe in search_of.probes()} <= {0}
    assert [(item.kind, item.hidden) for item in search_of.unmoved] == [(NUMBER, True)]


@pytest.mark.parametrize(
    "decide",
    [
        lambda x, _: float(x[0, 3]) > 0 and x.cos().dim(),
        lambda x, _: (x * x.max().item()).dim() > 5,
        lambda x, _: x[x > 0].dim() > 5,
        lambda _x, _: float(torch.ones(1)) > 3,
    ],
    ids=["two ways", "computed with", "counted", "not of the inputs"],
)
def test_a_number_that_hides_nothing_is_not_named(decide: object) -> None:
    search_of = BranchSearch(Run(Deciding(decide), CallArguments({"x": X})), {})
    list(search_of.probes())
    assert search_of.unmoved == []


def test_a_constant_that_a_number_chooses_is_among_the_probes() -> None:
    """No function tells that it is another constant: each number counts, whatever other numbers came before."""
    probes = list(BranchSearch(Run(ChoosingConstants(), CallArguments({"x": X})), {}).probes())
    assert {float(probe.outputs["output"]) for probe in probes} == {2.0, 3.0}
    assert min(number for number, probe in enumerate(probes) if float(probe.outputs["output"]) == 3) > 4


def test_inputs_that_the_model_refuses_are_no_finding() -> None:
    def decide(x: Tensor, _: object) -> bool:
        if x.sum() < -2:
            raise ValueError("not for me")
        return False

    assert search(decide) == []


# variations


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_masks_stay_masks(dtype: torch.dtype) -> None:
    mask = ONES.to(dtype)
    for varied in vary_values({"mask": mask}, {}):
        assert varied["mask"].dtype is dtype
        assert set(varied["mask"].flatten().tolist()) <= {0, 1}
        if dtype is torch.int64:
            assert varied["mask"].any(-1).all()


def test_shapes_and_types_stay() -> None:
    given = {"x": X.half(), "ids": IDS, "mask": ONES, "count": torch.tensor(3), "flag": torch.tensor(True)}
    varied = [*vary_values(given, {"ids": 50}), vary_sample(given, 3), change_some(given, {}, torch.Generator())]
    assert len(varied) > 40
    for tensors in varied:
        assert {name: (item.shape, item.dtype) for name, item in tensors.items()} == {
            name: (item.shape, item.dtype) for name, item in given.items()
        }


def test_what_stands_for_infinity_is_left_alone() -> None:
    added = torch.tensor([[0.0, -torch.inf], [0.0, 0.0]])
    assert kind_of("bias", added) == "fixed"
    assert list(vary_values({"bias": added}, {})) == []


def test_axes_of_one_name_have_one_size() -> None:
    resized = resize({"x": X, "ids": IDS}, {"x": {1: "sequence"}, "ids": {1: "sequence"}}, "sequence", 7)
    assert (resized["x"].shape, resized["ids"].shape) == ((3, 7), (2, 7))
