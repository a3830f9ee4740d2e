"""Further inputs are like the given ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support import building  # noqa: F401 - loads the profile
from torch import Tensor

from modelexport.capture.arguments import CallArguments, reorder_inputs, resample_inputs


def again(tensor: Tensor, seed: int = 1) -> Tensor:
    return resample_inputs(CallArguments({"x": tensor}), seed).tensors["x"]


FLOATS = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)) * 3 + 10


@given(
    st.sampled_from(
        [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]
    ),
    st.lists(st.integers(0, 4), max_size=3),
)
def test_shapes_and_types_stay(dtype: torch.dtype, shape: list[int]) -> None:
    found = again(torch.ones(shape).to(dtype))
    assert (found.dtype, list(found.shape)) == (dtype, shape)


def test_floats_are_other_numbers_of_the_same_spread() -> None:
    found = again(FLOATS)
    assert torch.isclose(found, FLOATS).double().mean() < 0.01
    assert found.mean().item() == pytest.approx(10, abs=0.3)
    assert found.std().item() == pytest.approx(3, abs=0.3)


@given(st.lists(st.integers(-5, 5), max_size=20), st.integers(0, 9))
def test_integers_change_places_among_themselves(values: list[int], seed: int) -> None:
    assert sorted(again(torch.tensor(values, dtype=torch.int64), seed).tolist()) == sorted(values)


def test_integers_do_change_places() -> None:
    ids = torch.arange(100).reshape(10, 10)
    found = again(ids)
    assert not torch.equal(found, ids)
    assert not torch.equal(found, again(ids, 2))


def test_truth_values_and_complex_ones_stay_what_they_are() -> None:
    truth = torch.arange(10) < 3
    assert again(truth).sum() == 3
    pairs = torch.complex(torch.arange(4.0), -torch.arange(4.0))
    assert again(pairs).sum() == pairs.sum()


def test_equal_floats_get_a_spread() -> None:
    found = again(torch.full((100,), 5.0))
    assert len(set(found.tolist())) == 100
    assert found.mean().item() == pytest.approx(5, abs=0.5)
    assert again(torch.tensor(5.0)).isfinite().all()


def test_one_seed_gives_one_result() -> None:
    for tensor in (FLOATS, torch.arange(30)):
        assert torch.equal(again(tensor, 7), again(tensor, 7))
        assert not torch.equal(again(tensor, 7), again(tensor, 8))


def test_what_was_given_and_torchs_own_random_numbers_stay_as_they_are() -> None:
    ids, floats = torch.arange(30), FLOATS.clone().requires_grad_()
    before = torch.random.get_rng_state()
    found = resample_inputs(CallArguments({"ids": ids, "x": floats}), 1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(ids, torch.arange(30))
    assert torch.equal(floats, FLOATS)
    assert not found.tensors["x"].requires_grad


def test_every_tensor_is_drawn_and_nothing_else_changes() -> None:
    given = CallArguments({"many": [FLOATS, {"ids": torch.arange(30)}], "flag": True, "none": None}, (FLOATS,), ("x",))
    found = resample_inputs(given, 1)
    assert set(found.tensors) == set(given.tensors) == {"x", "many_0", "many_1_ids"}
    assert not any(torch.equal(found.tensors[name], tensor) for name, tensor in given.tensors.items())
    assert (found.kwargs["flag"], found.kwargs["none"]) == (True, None)
    assert not torch.equal(found.tensors["x"], found.tensors["many_0"])


def test_a_mask_of_infinities_keeps_them() -> None:
    mask = torch.randn(100, generator=torch.Generator().manual_seed(0)) + 3
    mask[50:] = -torch.inf
    found = again(mask)
    assert found[50:].eq(-torch.inf).all()
    assert not torch.equal(found[:50], mask[:50])
    assert found[:50].mean().item() == pytest.approx(3, abs=0.6)
    nothing = torch.full((3,), -torch.inf)
    assert torch.equal(again(nothing), nothing)


@pytest.mark.parametrize(("size", "kept"), [(2, [6, 7]), (4, [7, 5, 6, 7]), (3, None)])
def test_an_axis_of_another_size_keeps_what_is_last(size: int, kept: list[int] | None) -> None:
    found = CallArguments({"ids": torch.tensor([[5, 6, 7]]), "x": torch.ones(1)}).with_sizes({"ids": {1: size}})
    assert (None if found is None else found.tensors["ids"].tolist()) == (None if kept is None else [kept])


def test_several_axes_and_no_others_get_another_size() -> None:
    found = CallArguments({"x": torch.ones(4, 6), "y": torch.ones(4)}).with_sizes({"x": {0: 2, 1: 3}})
    assert found is not None
    assert [tuple(tensor.shape) for tensor in found.tensors.values()] == [(2, 3), (4,)]


def test_positions_are_reordered_whole_and_what_belongs_together_stays_together() -> None:
    ids = torch.arange(14).reshape(2, 7)
    boxes = torch.stack([ids, ids + 100, ids + 200], dim=-1)
    found = reorder_inputs(CallArguments({"ids": ids, "boxes": boxes, "scale": torch.tensor(3.0)}), 1).tensors
    assert not torch.equal(found["ids"], ids)
    assert torch.equal(found["ids"].sort(dim=1).values, ids)
    assert torch.equal(found["boxes"][..., 2] - 200, found["ids"])
    assert found["scale"] == 3
