"""Files that follow the path of their sample, and outputs that are no larger than rounding errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from measure.branches import length_networks, value_networks
from torch import Tensor, nn

import modelexport as mx
from modelexport.errors import ExportFailed

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class TinyBranch(nn.Module):
    """Outputs around 1e-5, and other ones for inputs with a negative sum."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return (self.left(x) if x.sum() > 0 else self.right(x)) * 1e-5


class SameOnBothPaths(nn.Module):
    """A shortcut that changes nothing: the file is right on both paths."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if not x.any():
            return self.fc(torch.zeros_like(x))
        return self.fc(x)


class Rest(nn.Module):
    """What two ways of one computation leave: rounding, and nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x) - x * 0.5 * (1 + torch.erf(x / 2**0.5))


class TinyWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.fc(x) * 1e-7)


class Deciding(nn.Module):
    """Adds 1 where a function says so."""

    def __init__(self, decide: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.decide = decide
        self.before, self.after = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        made: Tensor = self.after(h + 1 if self.decide(h) else h)
        return made


def is_a_mirror(h: Tensor) -> bool:
    return torch.equal(h, h.flip(0))


def exported(model: nn.Module, path: Path, inputs: object, exporter: str = "torchscript") -> mx.ExportResult:
    result = mx.export(model.eval(), path, inputs=inputs, exporter=exporter)
    assert isinstance(result, mx.ExportResult)
    assert result.check is not None
    return result


@pytest.mark.parametrize(
    "kind",
    [
        value_networks.GateInside,
        value_networks.MostlyZeros,
        value_networks.ExpertByArgmax,
        length_networks.TruncatedToPadding,
        length_networks.OneRareToken,
        length_networks.LongText,
    ],
)
def test_a_file_that_is_right_only_for_inputs_like_its_sample(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind()
    inputs = model.example()  # type: ignore[operator]
    check = exported(model, tmp_path / "net.onnx", inputs).check
    assert check is not None
    assert not check.ok
    assert check.message.startswith("the file is right only for ")
    assert "_networks.py:" in check.message
    verified = mx.verify(tmp_path / "net.onnx", model, inputs=inputs, proof=False)
    assert verified.numbers_agree
    assert (verified.ok, len(verified.frozen)) == (False, 1)
    assert "_networks.py:" in verified.frozen[0]


def test_dynamo_refuses_such_a_branch_or_keeps_it_right(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed):
        mx.export(value_networks.SignOfSum(), tmp_path / "a.onnx", inputs={"x": X})


def test_small_outputs_of_another_branch_are_told_apart(tmp_path: Path) -> None:
    check = exported(TinyBranch(), tmp_path / "a.onnx", {"x": X.abs()}).check
    assert check is not None
    assert not check.ok
    assert "a tensor was turned into a Python bool" in check.message


def test_small_outputs_that_are_right_are_called_so(tmp_path: Path) -> None:
    result = exported(TinyWeights(), tmp_path / "a.onnx", {"x": X})
    assert result.check is not None
    assert (result.check.ok, result.check.too_small) == (True, ())


def test_outputs_that_are_rounding_are_too_small_to_tell(tmp_path: Path) -> None:
    model, inputs = Rest(), {"x": torch.randn(4, 64, generator=torch.Generator().manual_seed(0))}
    result = exported(model, tmp_path / "a.onnx", inputs)
    assert result.check is not None
    assert (result.check.ok, result.check.too_small) == (True, ("output",))
    verified = mx.verify(tmp_path / "a.onnx", model, inputs=inputs)
    assert verified.ok
    assert verified.outputs["output"].too_small


def test_wrong_small_values_inside_of_a_model_are_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(TinyWeights(), nn.Linear(6, 6))
    exported(model, tmp_path / "a.onnx", {"input": X})
    with torch.no_grad():
        model[0].fc.weight.mul_(1.5)  # type: ignore[union-attr, operator]
    verified = mx.verify(tmp_path / "a.onnx", model, inputs={"input": X})
    assert not verified.numbers_agree


@pytest.mark.parametrize("samples", [1, 5])
def test_another_path_with_the_same_numbers_is_no_alarm(samples: int, tmp_path: Path) -> None:
    model = SameOnBothPaths()
    check = exported(model, tmp_path / "a.onnx", {"x": X}).check
    assert check is not None
    assert check.ok
    assert mx.verify(tmp_path / "a.onnx", model, inputs={"x": X}, samples=samples).ok


def test_samples_vary_in_sign_and_scale(tmp_path: Path) -> None:
    model = value_networks.SignOfSum()
    mx.export(model, tmp_path / "a.onnx", inputs={"x": X.abs()}, exporter="torchscript", no_check=True)
    verified = mx.verify(tmp_path / "a.onnx", model, inputs={"x": X.abs()}, samples=3, proof=False)
    assert not verified.numbers_agree


@pytest.mark.parametrize(
    ("decide", "blamed", "said"),
    [
        (is_a_mirror, "inputs like the sample", "test_frozen_branches.py:"),
        (lambda h: h.shape[0] < 2, "the sizes it was traced with (batch)", "not for batch 1"),
        (lambda h: sum(1 for _ in h) > 5, "the sizes it was traced with (batch)", "not for batch "),
        (lambda h: h.sum() > 0, "inputs like the sample", "test_frozen_branches.py:"),
    ],
    ids=["rows that are equal", "one row", "a loop", "a sign"],
)
def test_sizes_and_decisions_are_blamed_for_what_they_do(
    decide: Callable[[Tensor], object], blamed: str, said: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    check = exported(Deciding(decide), tmp_path / "a.onnx", {"x": X}).check
    assert check is not None
    assert not check.ok
    assert check.message.startswith(f"the file is right only for {blamed}")
    assert said in check.message


def test_a_batch_of_one_is_tried_though_nothing_shows_that_sizes_decide(tmp_path: Path) -> None:
    """A float on the left takes any number: that a size was compared is not seen."""
    torch.manual_seed(0)
    check = exported(Deciding(lambda h: 0.6 * h.shape[0] < 1), tmp_path / "a.onnx", {"x": X}).check
    assert check is not None
    assert not check.ok
    assert "not for batch 1" in check.message


def test_a_number_that_may_hide_a_branch_is_a_note(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Deciding(lambda h: 7.31 < float(h[0, 3]) < 7.35)
    result = exported(model, tmp_path / "a.onnx", {"x": X})
    verified = mx.verify(tmp_path / "a.onnx", model, inputs={"x": X}, proof=False)
    assert result.check is not None
    assert (result.check.ok, verified.ok) == (True, True)
    for notes in (result.notes, verified.notes):
        assert any("no input was found that takes another path there" in note for note in notes)


def test_a_sign_that_another_size_changes_is_no_matter_of_sizes(tmp_path: Path) -> None:
    """The first row, repeated for a third one, makes the sum positive."""
    torch.manual_seed(0)
    x = torch.tensor([[0.5], [-0.8]]).expand(2, 6).contiguous()
    check = exported(value_networks.SignOfSum(), tmp_path / "a.onnx", {"x": x}).check
    assert check is not None
    assert check.message.startswith("the file is right only for inputs like the sample")
    assert "value_networks.py:" in check.message
