"""Grids of packed images without loops: the same numbers as transformers' own functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import vision_utils

from modelexport.capture.generation.packed_images import (
    _GridFunctions,
    attend_in_segments,
    find_packed_attention,
    make_uneven,
    place_patches,
)

GRIDS = [[[1, 4, 4], [1, 4, 8]], [[1, 4, 6], [2, 8, 4], [1, 10, 2]], [[3, 6, 10]]]
HELPERS: Any = vision_utils


def prepare(grid: list[list[int]]) -> tuple[torch.Tensor, _GridFunctions]:
    sizes = torch.tensor(grid)
    return sizes, _GridFunctions(int(sizes.prod(-1).sum()))


def test_places() -> None:
    places = place_patches(torch.tensor([[1, 2, 2], [2, 1, 2]]), 8)
    assert places.frame.tolist() == [0, 0, 0, 0, 4, 4, 6, 6]
    assert places.inside.tolist() == [0, 1, 2, 3, 0, 1, 0, 1]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("temporal", [False, True])
def test_positions(grid: list[list[int]], temporal: bool) -> None:
    sizes, functions = prepare(grid)
    expected = HELPERS.get_vision_position_ids(sizes, 2, include_temporal=temporal)
    assert torch.equal(functions.number_positions(sizes, 2, include_temporal=temporal), expected)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("window", [32, 48, 64])
def test_windows(grid: list[list[int]], window: int) -> None:
    sizes, functions = prepare(grid)
    order, starts = functions.order_windows(sizes, 2, window, 8)
    expected, ends = HELPERS.get_vision_window_index(sizes, 2, window, 8)
    assert torch.equal(order, expected)
    assert torch.unique(starts).tolist() == ends[:-1].tolist()


@pytest.mark.parametrize("grid", GRIDS)
def test_frames(grid: list[list[int]]) -> None:
    sizes, functions = prepare(grid)
    assert torch.unique(functions.cut_frames(sizes)).tolist() == HELPERS.get_vision_cu_seqlens(sizes)[:-1].tolist()


def test_segments_do_not_see_each_other() -> None:
    query, key, value = torch.randn(3, 1, 2, 5, 4).unbind(0)
    module = nn.Identity()
    whole, _ = attend_in_segments(module, query, key, value, cu_seq_lens_q=torch.tensor([0, 3, 5]), is_causal=False)
    first, _ = attend_in_segments(module, query[:, :, :3], key[:, :, :3], value[:, :, :3], is_causal=False)
    torch.testing.assert_close(whole[:, :3], first)


def test_images_of_different_sizes() -> None:
    inputs = {"pixel_values": torch.randn(8, 6), "image_grid_thw": torch.tensor([[1, 2, 2], [1, 2, 2]])}
    uneven = make_uneven(inputs, "pixel_values")
    assert uneven["image_grid_thw"].tolist() == [[1, 2, 4], [1, 2, 2]]
    assert uneven["pixel_values"].shape == (12, 6)


def test_model_without_a_grid_is_not_packed() -> None:
    inputs = {"pixel_values": torch.randn(2, 3, 8, 8)}
    assert find_packed_attention(nn.Identity(), lambda **_: None, inputs) is None
