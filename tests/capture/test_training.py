"""Layers that are different in training mode, found by what they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from modelexport.capture.isolation import random_layers_in_training, running_norms_in_training

DRAWING: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Dropout": (nn.Dropout, (64,)),
    "Dropout1d": (nn.Dropout1d, (8, 8, 8)),
    "Dropout2d": (nn.Dropout2d, (8, 8, 2, 2)),
    "Dropout3d": (nn.Dropout3d, (8, 8, 2, 2, 2)),
    "AlphaDropout": (nn.AlphaDropout, (64,)),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout, (8, 8, 2)),
    "RReLU": (nn.RReLU, (64,)),
    "LSTM": (lambda: nn.LSTM(4, 4, 2, dropout=0.5), (8, 2, 4)),
    "GRU": (lambda: nn.GRU(4, 4, 2, dropout=0.5), (8, 2, 4)),
}
STEADY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Dropout(0)": (lambda: nn.Dropout(0.0), (64,)),
    "RReLU of one slope": (lambda: nn.RReLU(0.2, 0.2), (64,)),
    "LSTM of one layer": (lambda: nn.LSTM(4, 4, 1), (8, 2, 4)),
    "GRU without": (lambda: nn.GRU(4, 4, 2), (8, 2, 4)),
    "Linear": (lambda: nn.Linear(4, 4), (8, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (8, 4)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (8, 4)),
}


def result(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found = module(x)
    return found[0] if isinstance(found, tuple) else found


def differs(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether two runs on the same input are not the same."""
    x = torch.randn(shape).abs().neg()  # RReLU draws for negative numbers only
    return not torch.equal(result(module, x), result(module, x))


@pytest.mark.parametrize("name", [*DRAWING, *STEADY])
def test_a_layer_is_said_to_draw_if_it_does(name: str) -> None:
    build, shape = {**DRAWING, **STEADY}[name]
    model = nn.Sequential(nn.ReLU(), build())
    assert random_layers_in_training(model) == (("1",) if name in DRAWING else ())
    assert differs(model[1], shape) is (name in DRAWING)
    model.eval()
    assert random_layers_in_training(model) == ()
    assert not differs(model[1], shape)


def test_one_layer_has_nothing_to_drop_between() -> None:
    with pytest.warns(UserWarning, match="num_layers greater than 1"):
        recurrent = nn.LSTM(4, 4, 1, dropout=0.5)
    assert random_layers_in_training(recurrent) == ()
    assert not differs(recurrent, (8, 2, 4))


def test_attention_draws_by_itself() -> None:
    assert random_layers_in_training(nn.MultiheadAttention(4, 2, dropout=0.1)) == ("",)
    assert random_layers_in_training(nn.MultiheadAttention(4, 2)) == ()


def test_classes_of_others_are_known_by_what_they_descend_from() -> None:
    class Own(nn.Dropout):
        pass

    assert random_layers_in_training(nn.ModuleDict({"a": Own(), "b": nn.Identity()})) == ("a",)


def test_parts_of_a_model_may_be_in_training_mode() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)), nn.BatchNorm1d(2)).eval()
    model[1].train()
    assert random_layers_in_training(model) == ("1.0",)
    assert running_norms_in_training(model) == ("1.1",)


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (8, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), (8, 4, 2, 2)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4, track_running_stats=True), (8, 4, 3)),
}
NORMS_OF_THE_INPUT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4, track_running_stats=False), (8, 4)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4), (8, 4, 3)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (8, 4, 3)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_with_stored_statistics_do_not_use_them_in_training(name: str) -> None:
    build, shape = NORMS[name]
    norm, x = build(), torch.randn(shape) + 3
    assert running_norms_in_training(norm) == ("",)
    trained = norm(x)
    assert not torch.allclose(trained, norm.eval()(x))
    assert running_norms_in_training(norm) == ()


@pytest.mark.parametrize("name", NORMS_OF_THE_INPUT)
def test_norms_without_stored_statistics_are_the_same_in_training(name: str) -> None:
    build, shape = NORMS_OF_THE_INPUT[name]
    norm, x = build(), torch.randn(shape) + 3
    assert running_norms_in_training(norm) == ()
    assert torch.equal(norm(x), norm.eval()(x))
