"""How much of a result is rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelexport.capture.arguments import CallArguments, output_tensors
from modelexport.capture.hierarchy import run_model
from modelexport.capture.rounding import largest_array_change, measure_output_noise


class Cancelling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 1e4) - 1e4


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * 1e-9


class Mixed(nn.Module):
    """Two ways to the same number: what is left between them is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x * 2) - 2 * self.fc(x)


X = torch.linspace(-1, 1, 32).reshape(4, 8)


def noise_of(model: nn.Module, x: Tensor = X) -> float:
    arguments = CallArguments({"x": x})
    return measure_output_noise(model, arguments, output_tensors(run_model(model, arguments)))["output"]


def test_what_is_left_of_large_numbers_is_rounding() -> None:
    assert 1e-3 < noise_of(Cancelling()) < 1
    assert 1e-8 < noise_of(Mixed()) < 1e-4


def test_small_numbers_alone_are_not() -> None:
    assert 0 < noise_of(Scaled()) < 1e-14


def test_the_model_and_its_random_numbers_stay() -> None:
    model = Scaled()
    before, state = model.fc.weight.clone(), torch.get_rng_state()
    noise_of(model)
    assert torch.equal(model.fc.weight, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_it_is_that_of_the_type(dtype: torch.dtype) -> None:
    noise = noise_of(Scaled().to(dtype), X.to(dtype))
    assert noise / 1e-9 < 100 * torch.finfo(dtype).eps


def test_what_cannot_be_compared_is_infinitely_far_away() -> None:
    one = np.array([1.0, math.inf])
    assert largest_array_change(one, np.array([1.5, math.inf])) == 0.5
    assert largest_array_change(one, np.array([1.0, 2.0])) == math.inf
    assert largest_array_change(one, np.ones(3)) == math.inf
