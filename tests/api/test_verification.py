"""`verify` end to end, on small networks: what it finds, and what it says of bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import quantize_dynamic
from torch import nn

import modelexport as mx
from modelexport.errors import InputError, ModelMismatch, ModelUnrepeatable, RecordMissing, RuntimeFailed, UserError
from modelexport.record.results.verification import ShownBy, Verdict

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Chain(nn.Module):
    """Two blocks, one behind the other."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(width, 8), nn.Tanh())
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.first(x)))


class Dice(Chain):
    """It draws random numbers, whatever its mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.nn.functional.dropout(self.first(x), 0.5, training=True))


class Stranger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.other(x))


def chain(seed: int = 0) -> Chain:
    torch.manual_seed(seed)
    return Chain().eval()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chain") / "chain.onnx"
    mx.export(chain(), path, inputs=X, exporter="torchscript", no_check=True)
    return path


def changed(file: Path, target: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    model = onnx.load(file)
    change(model)
    onnx.save(model, target)
    return target


def scaled(name: str, factor: float) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        tensor = next(item for item in model.graph.initializer if item.name == name)
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(factor), name))

    return change


def test_a_good_file(file: Path) -> None:
    found = mx.verify(file, chain(), inputs=X)
    assert found.ok
    assert found.divergence is None
    assert found.parameters is not None
    assert (found.parameters.compared, found.parameters.differing) == (4, ())
    assert found.proof is not None
    assert found.proof.compute == found.proof.compute_shown == 3
    assert [str(row.call) for row in found.calls] == ["first.0", "first.1", "first", "drop", "last", ""]
    assert {row.status.value for row in found.calls} == {"ok"}


class Masking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x > 0


class Masked(nn.Module):
    """Truth values, sizes and constants between modules: one run does not tell whose they are."""

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.first, self.last = Masking(), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        chosen = torch.where(self.mask(x), self.first(x), 2.0)
        positions = torch.arange(length, device=x.device).reshape(1, length, 1)
        return self.last(chosen.reshape(batch * length, width)).reshape(batch, length, width) * positions


def masked() -> Masked:
    torch.manual_seed(0)
    return Masked().eval()


@pytest.fixture(scope="module", params=["dynamo", "torchscript"])
def masked_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masked") / "masked.onnx"
    mx.export(masked(), path, inputs={"x": torch.randn(2, 5, 4)}, exporter=request.param, no_check=True)
    return path


def test_truth_values_sizes_and_constants_are_shown(masked_file: Path) -> None:
    found = mx.verify(masked_file, masked(), inputs={"x": torch.randn(2, 5, 4)})
    assert found.proof is not None
    assert not [node for node in found.proof.nodes if not node.is_shown]
    greater = next(node for node in found.proof.nodes if node.op_type == "Greater")
    assert (greater.verdict, greater.shown_by) == (Verdict.PROVED, ShownBy.SERIES)


class Boxes(nn.Module):
    """Widths index a table: numbers of a box in another order are none."""

    def __init__(self) -> None:
        super().__init__()
        self.widths, self.last = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, boxes: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        left, right = boxes.unbind(-1)
        hidden = (mask == 0).unsqueeze(-1).expand(-1, -1, 4)
        return self.last(torch.where(hidden, 0.0, self.widths(right - left)))


def test_inputs_that_are_refused_are_tried_in_another_order(tmp_path: Path) -> None:
    boxes = (
        torch.arange(12).reshape(2, 6, 1) * 10 + torch.tensor([0, 1]) + torch.arange(6)[:, None] * torch.tensor([0, 1])
    )
    given = {"boxes": boxes, "mask": torch.ones(2, 6, dtype=torch.int64)}
    model = Boxes().eval()
    mx.export(model, tmp_path / "boxes.onnx", inputs=given, exporter="torchscript", no_check=True)
    found = mx.verify(tmp_path / "boxes.onnx", model, inputs=given)
    assert found.proof is not None
    assert not [node for node in found.proof.nodes if not node.is_shown]


def test_a_wrong_weight_is_said_first_and_its_module_named(file: Path, tmp_path: Path) -> None:
    wrong = changed(file, tmp_path / "wrong.onnx", scaled("last.weight", 1.1))
    found = mx.verify(wrong, chain(), inputs=X)
    assert found.parameters is not None
    assert [item.name for item in found.parameters.differing] == ["last.weight"]
    assert found.divergence is not None
    assert [str(call) for call in found.divergence.calls] == ["last"]
    assert found.divergence.inputs is not None
    assert found.divergence.inputs.agrees
    assert not found.ok


def test_other_weights_everywhere(file: Path) -> None:
    found = mx.verify(file, chain(seed=1), inputs=X)
    assert found.parameters is not None
    assert len(found.parameters.differing) == 4
    assert not found.ok


def test_a_tolerance_decides(file: Path, tmp_path: Path) -> None:
    wrong = changed(file, tmp_path / "wrong.onnx", scaled("last.bias", 1.001))
    assert not mx.verify(wrong, chain(), inputs=X).numbers_agree
    assert mx.verify(wrong, chain(), inputs=X, rtol=0.01).numbers_agree
    assert mx.verify(wrong, chain(), inputs=X, min_sqnr=30).numbers_agree
    assert not mx.verify(wrong, chain(), inputs=X, min_sqnr=120).numbers_agree
    with pytest.raises(mx.UserError, match="min_sqnr decides in place of tolerances, and rtol would mean nothing"):
        mx.verify(wrong, chain(), inputs=X, min_sqnr=30, rtol=0.01)


@pytest.mark.parametrize("against", [False, True])
def test_a_value_that_nobody_makes_is_named(file: Path, tmp_path: Path, against: bool) -> None:
    def dangle(proto: onnx.ModelProto) -> None:
        proto.graph.node[1].input[0] = "nowhere"

    broken = changed(file, tmp_path / "broken.onnx", dangle)
    with pytest.raises(mx.UserError, match="reads 'nowhere', which nobody makes"):
        if against:
            mx.verify(broken, against=file, inputs=X)
        else:
            mx.verify(broken, chain(), inputs=X)


def test_layers_left_in_training_mode_are_said(file: Path) -> None:
    model = chain().train()
    found = mx.verify(file, model, inputs=X)
    assert found.ok
    assert any("training mode" in note and "drop" in note for note in found.notes)
    assert model.training


@pytest.mark.parametrize("state", [0, 1, 2])
def test_a_model_that_is_different_each_time(file: Path, state: int) -> None:
    dice = Dice().eval()
    dice.load_state_dict(chain().state_dict())
    torch.manual_seed(state)  # whatever somebody did before
    with pytest.raises(ModelUnrepeatable, match="each time"):
        mx.verify(file, dice, inputs=X)


def test_a_model_that_has_nothing_to_do_with_the_file(file: Path) -> None:
    with pytest.raises(ModelMismatch, match="was not made from"):
        mx.verify(file, Stranger().eval(), inputs=X)


def test_inputs_that_do_not_fit(file: Path) -> None:
    with pytest.raises(InputError):
        mx.verify(file, chain(), inputs=torch.ones(3, 5))


def test_a_file_without_a_record(file: Path, tmp_path: Path) -> None:
    def plain(model: onnx.ModelProto) -> None:
        del model.metadata_props[:]

    with pytest.raises(RecordMissing):
        mx.verify(changed(file, tmp_path / "plain.onnx", plain), chain(), inputs=X)
    with pytest.raises(RecordMissing):  # nor is the model looked for
        mx.verify(tmp_path / "plain.onnx", tmp_path / "nowhere")


def test_a_file_that_onnx_runtime_cannot_load(file: Path, tmp_path: Path) -> None:
    def broken(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "NoSuchOperator"

    with pytest.raises(RuntimeFailed, match="NoSuchOperator"):
        mx.verify(changed(file, tmp_path / "broken.onnx", broken), chain(), inputs=X)


def test_nothing_to_compare_with(file: Path) -> None:
    with pytest.raises(UserError, match="nothing to verify"):
        mx.verify(file)


@pytest.mark.parametrize("bad", [{"samples": 0}, {"atol": -1.0}, {"rtol": float("nan")}, {"min_sqnr": float("nan")}])
def test_options_that_make_no_sense(file: Path, bad: dict[str, float]) -> None:
    with pytest.raises(UserError):
        mx.verify(file, chain(), inputs=X, **bad)  # type: ignore[call-overload]


def test_several_inputs(file: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for number, path in enumerate(files):
        np.savez(path, x=X.numpy() + number)
    assert mx.verify(file, chain(), inputs=files).samples == 2
    assert mx.verify(file, chain(), inputs=X, samples=3).samples == 3
    assert mx.verify(file, chain(), inputs=files, samples=3).samples == 3


def test_nan_is_found_where_it_begins(file: Path, tmp_path: Path) -> None:
    def root(model: onnx.ModelProto) -> None:
        next(node for node in model.graph.node if node.op_type == "Tanh").op_type = "Sqrt"

    found = mx.verify(changed(file, tmp_path / "nan.onnx", root), chain(), inputs=X)
    assert [(item.kind, [str(call) for call in item.calls], item.both) for item in found.not_finite] == [
        ("NaN", ["first.1"], False)
    ]
    assert found.divergence is not None
    assert [str(call) for call in found.divergence.calls] == ["first.1"]


def test_two_files_give_the_same_in_both_directions(file: Path, tmp_path: Path) -> None:
    wrong = changed(file, tmp_path / "wrong.onnx", scaled("first.0.weight", 1.05))
    one, other = mx.verify(wrong, against=file, samples=2), mx.verify(file, against=wrong, samples=2)
    rows = [[(str(row.call), row.lost) for row in found.ranked()] for found in (one, other)]
    assert rows[0] == rows[1]
    assert one.parameters is None
    assert one.proof is None
    for found in (one, other):
        assert found.divergence is not None
        assert [str(call) for call in found.divergence.calls] == ["first.0"]


def test_two_exporters_of_one_model(file: Path, tmp_path: Path) -> None:
    mx.export(chain(), tmp_path / "dynamo.onnx", inputs=X, no_check=True)
    assert mx.verify(file, against=tmp_path / "dynamo.onnx").ok


def test_files_of_unrelated_models(file: Path, tmp_path: Path) -> None:
    mx.export(Stranger().eval(), tmp_path / "s.onnx", inputs=X, exporter="torchscript", no_check=True)
    with pytest.raises(ModelMismatch, match="not of one model"):
        mx.verify(file, against=tmp_path / "s.onnx")


def test_what_needs_a_model_says_so(file: Path) -> None:
    with pytest.raises(UserError, match="need the model"):
        mx.verify(file, against=file, text="hello")


def test_weights_are_said_first_also_if_the_file_cannot_run(file: Path, tmp_path: Path) -> None:
    def cut(model: onnx.ModelProto) -> None:
        tensor = next(item for item in model.graph.initializer if item.name == "last.bias")
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:3], "last.bias"))

    broken = changed(file, tmp_path / "broken.onnx", cut)
    with pytest.raises(RuntimeFailed, match=r"^the model's weights are not those of the file \(last\.bias\), and ONNX"):
        mx.verify(broken, chain(), inputs=X)


@pytest.mark.parametrize("given", [X, (X,), [{"x": X}], {"x": X.clone().requires_grad_()}, X.numpy()])
def test_two_files_take_inputs_as_a_model_does(file: Path, given: object) -> None:
    found = mx.verify(file, against=file, inputs=given, samples=3)
    assert found.ok
    assert found.samples == 3


def test_two_files_on_files_and_on_more(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=X.numpy())
    assert mx.verify(file, against=file, inputs=[path, path], samples=3).samples == 3


def test_inputs_that_are_too_many_for_two_files(file: Path) -> None:
    with pytest.raises(InputError, match="the file takes 1 inputs, and 2 were given"):
        mx.verify(file, against=file, inputs=(X, X))


class Forked(nn.Module):
    """Two ways out; and a place where one value can be taken for another."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        left = torch.tanh(self.left(x))
        return {"left": left, "right": self.block(left)}


@pytest.fixture
def forked(tmp_path: Path) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    net = Forked().eval()
    path = tmp_path / "forked.onnx"
    mx.export(net, path, inputs=X, exporter="torchscript", no_check=True)
    return net, path


def test_an_output_that_is_missing(forked: tuple[nn.Module, Path]) -> None:
    net, path = forked
    changed(path, path, lambda model: model.graph.output.remove(model.graph.output[-1]))
    found = mx.verify(path, net, inputs=X)
    assert not found.ok
    assert found.missing == ("right",)
    assert found.numbers_agree


def test_a_value_in_the_wrong_place_is_blamed_on_who_put_it_there(forked: tuple[nn.Module, Path]) -> None:
    """What the second part of the block reads is right by itself, and its maker did nothing wrong."""
    net, path = forked

    def rewire(model: onnx.ModelProto) -> None:
        first, last = model.graph.node[-2:]
        last.input[0] = first.input[0]

    found = mx.verify(changed(path, path, rewire), net, inputs=X)
    assert found.divergence is not None
    assert [str(call) for call in found.divergence.calls] == ["block"]
    right = {str(row.call) for row in found.calls if row.status == "ok"}
    assert right.isdisjoint(map(str, found.divergence.calls))


def test_a_chosen_tolerance_is_the_only_one(file: Path, tmp_path: Path) -> None:
    """The first module loses something that is allowed, the last one more than that."""
    spoiled = changed(file, tmp_path / "a.onnx", scaled("first.0.bias", 1.0001))
    changed(spoiled, spoiled, scaled("last.bias", 3.0))
    found = mx.verify(spoiled, chain(), inputs=X, min_sqnr=40)
    assert found.divergence is not None
    assert [str(call) for call in found.divergence.calls] == ["last"]
    strict = mx.verify(spoiled, chain(), inputs=X)
    assert strict.divergence is not None
    assert [str(call) for call in strict.divergence.calls] == ["first.0"]


class Gated(nn.Module):
    """Only inputs above zero come to the second module's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Linear(4, 4)
        self.high = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.low(x) + self.high(torch.relu(x))


@pytest.mark.parametrize("other", [False, True])
def test_what_only_the_second_input_shows(tmp_path: Path, other: bool) -> None:
    torch.manual_seed(0)
    net = Gated().eval()
    path = tmp_path / "gated.onnx"
    mx.export(net, path, inputs=X.abs(), exporter="torchscript", no_check=True)
    matrix = next(item.name for item in onnx.load(path).graph.initializer if item.name.startswith(("high", "onnx::")))
    spoiled = changed(path, tmp_path / "spoiled.onnx", scaled(matrix, 2.0))
    inputs = [{"x": -X.abs()}, {"x": X.abs()}]
    reference: dict[str, object] = {"against": path} if other else {"model": net}
    assert mx.verify(spoiled, inputs=inputs[0], **reference).numbers_agree  # type: ignore[call-overload]
    found = mx.verify(spoiled, inputs=inputs, **reference)  # type: ignore[call-overload]
    assert found.samples == 2
    assert found.divergence is not None
    assert [str(call) for call in found.divergence.calls] == ["high"]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_quantized_file_in_both_directions(exporter: str, tmp_path: Path) -> None:
    """One of two linear layers is quantized: what is lost is lost there."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16), nn.Softmax(-1)).eval()
    plain, int8 = tmp_path / "plain.onnx", tmp_path / "int8.onnx"
    mx.export(net, plain, inputs=torch.randn(2, 4, 32), exporter=exporter, no_check=True)
    record = mx.load(plain)
    chosen = [entry.name for entry in record.nodes.values() if entry.attribution.module == "2"]
    # With eight bits, signed weights saturate on processors without VNNI: the numbers would depend on the machine.
    quantize_dynamic(plain, int8, nodes_to_quantize=chosen, reduce_range=True)
    for file, other in ((int8, plain), (plain, int8)):
        found = mx.verify(file, against=other)
        assert found.divergence is not None
        assert [str(call) for call in found.divergence.calls] == ["2"]
        lost = {str(row.call): row.lost for row in found.calls if row.call.path and row.lost is not None}
        assert max(lost, key=lost.__getitem__) == "2"
        assert lost["2"] > 50
        assert lost["0"] == 0
        assert mx.verify(file, against=other, min_sqnr=30).ok


def test_models_of_another_size(file: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.onnx"
    mx.export(Chain(6).eval(), wide, inputs=torch.ones(2, 6), no_check=True)
    for other in ({"against": wide}, {"model": Chain(6).eval()}):
        with pytest.raises(ModelMismatch, match=r"0 of 2 modules .*first\.0"):
            mx.verify(file, **other)
