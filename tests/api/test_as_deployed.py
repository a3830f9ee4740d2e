"""`verify --as-deployed`: the graph that ONNX Runtime makes of a file, module by module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from tests.support.architectures import build
from torch import nn

import modelexport as mx
from modelexport.errors import RuntimeFailed, UserError
from modelexport.record.results.verification import CallNumbers, Status, Verification

EXPORTERS = ("dynamo", "torchscript")
INPUTS = torch.linspace(-2, 2, 3 * 14 * 14).reshape(1, 3, 14, 14).sin()


class Unit(nn.Module):
    """A convolution with its norm, and another one on the way around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.around = nn.Conv2d(width, width, 1)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x)) + self.around(x))


def network() -> nn.Module:
    """Of 32 channels, which ONNX Runtime puts into an order of its own where it can."""
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.SiLU()]
    net = nn.Sequential(*stem, Unit(32), Unit(32), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(32 * 9, 5), nn.Tanh())
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.running_mean, 0, 0.3)  # type: ignore[arg-type]
    return net.eval()


MODELS: dict[str, Callable[[], nn.Module]] = {"bert": lambda: build("bert"), "net": network}


@pytest.fixture(scope="module", params=EXPORTERS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    mx.export(MODELS["bert"](), folder / "bert.onnx", exporter=request.param, no_check=True)
    mx.export(MODELS["net"](), folder / "net.onnx", inputs=INPUTS, exporter=request.param, no_check=True)
    return {name: folder / f"{name}.onnx" for name in MODELS}


def compared(found: Verification) -> list[CallNumbers]:
    return [row for row in found.calls if row.status is not Status.NOT_COMPARED]


def named(found: Verification) -> set[str]:
    assert found.divergence is not None
    return {str(call) for call in found.divergence.calls}


def changed(source: Path, target: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    model = onnx.load(source)
    change(model)
    onnx.save(model, target)
    return target


def weights_of(file: Path, module: str) -> list[str]:
    record = mx.load(file)
    return [name for name, one in record.initializers.items() if module in one.modules]


def spoiled(file: Path, target: Path, module: str) -> Path:
    """A copy in which all weights of a module are a tenth too large; the record says nothing of it."""
    names = weights_of(file, module)
    assert names

    def scale(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name in names:
                larger = (numpy_helper.to_array(tensor) * 1.1).astype("float32")
                tensor.CopyFrom(numpy_helper.from_array(larger, tensor.name))

    return changed(file, target, scale)


class TestWhatIsRight:
    @pytest.mark.parametrize("name", MODELS)
    def test_it_agrees_and_is_proved(self, name: str, files: dict[str, Path]) -> None:
        plain, found = (mx.verify(files[name], MODELS[name](), as_deployed=deployed) for deployed in (False, True))
        assert found.ok
        assert (plain.deployed, found.deployed) == (False, True)
        assert found.parameters == plain.parameters
        assert found.proof is not None
        assert plain.proof is not None
        assert not found.proof.contradicted
        assert found.proof.compute_shown > 0.5 * found.proof.compute
        assert len(found.proof.nodes) < len(plain.proof.nodes)

    @pytest.mark.parametrize("exporter", EXPORTERS)
    def test_biases_of_zero_that_are_fused_with_the_next_module_are_proved(self, exporter: str, tmp_path: Path) -> None:
        """As every model has them before it is trained: a product has the value of its Linear without them."""
        model = build("bert")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()
        mx.export(model, tmp_path / "zero.onnx", exporter=exporter, no_check=True)
        found = mx.verify(tmp_path / "zero.onnx", model, as_deployed=True)
        assert found.proof is not None
        assert not found.proof.contradicted
        fused = [node for node in found.proof.nodes if len(node.claimed) > 1]
        assert "BiasGelu" in {node.op_type for node in fused}
        assert all(node.is_shown for node in fused)

    @pytest.mark.parametrize("name", MODELS)
    def test_boundaries_that_are_left_are_compared_and_the_others_have_a_reason(
        self, name: str, files: dict[str, Path]
    ) -> None:
        plain, found = (mx.verify(files[name], MODELS[name](), as_deployed=deployed) for deployed in (False, True))
        assert [row.call for row in found.calls] == [row.call for row in plain.calls]
        assert 0.6 * len(compared(plain)) < len(compared(found)) < len(compared(plain))
        lost = {row.call for row in compared(plain)} - {row.call for row in compared(found)}
        fused = {row.call: row for row in found.calls if row.fused_with}
        assert lost
        assert lost <= set(fused)
        assert {row.reason for row in fused.values()} == {"fused with other modules"}

    def test_who_is_fused_with_whom(self, files: dict[str, Path]) -> None:
        found = mx.verify(files["bert"], MODELS["bert"](), as_deployed=True)
        rows = {str(row.call): [str(call) for call in row.fused_with] for row in found.calls}
        for layer in (0, 1):
            where = f"encoder.layer.{layer}.intermediate"
            assert rows[f"{where}.dense"] == [f"{where}.intermediate_act_fn"]
            assert rows[f"{where}.intermediate_act_fn"] == []
        net = mx.verify(files["net"], network(), as_deployed=True)
        for row in net.calls:
            if str(row.call) == "3.conv":
                assert {"3.norm"} <= {str(call) for call in row.fused_with} <= {"3", "3.norm", "3.act"}
            assert "3.around" not in {str(call) for call in row.fused_with} or str(row.call) == "3.around"

    def test_weights_in_a_file_of_their_own(self, files: dict[str, Path], tmp_path: Path) -> None:
        file = tmp_path / "apart.onnx"
        model = onnx.load(files["bert"])
        onnx.save(model, file, save_as_external_data=True, location="apart.data", size_threshold=1024)
        assert mx.verify(file, MODELS["bert"](), as_deployed=True).ok
        assert sorted(path.name for path in tmp_path.iterdir()) == ["apart.data", "apart.onnx"]

    def test_several_inputs_and_another_file(self, files: dict[str, Path]) -> None:
        found = mx.verify(files["net"], against=files["net"], as_deployed=True, samples=2)
        assert found.ok
        assert (found.samples, found.deployed, found.proof) == (2, True, None)
        assert 0 < len(compared(found)) < len(compared(mx.verify(files["net"], against=files["net"])))

    @pytest.mark.parametrize(("name", "least"), [("bert", 30), ("net", 8)])
    def test_quantized(self, name: str, least: float, files: dict[str, Path], tmp_path: Path) -> None:
        file = tmp_path / "quantized.onnx"
        if name == "bert":
            # Signed weights saturate on processors without VNNI, and give other numbers there.
            # https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
            mx.quantize(files[name], file, weight_type="uint8")
        else:
            mx.run_tool(files[name], "qdq", file)
        for other in ({"model": MODELS[name]()}, {"against": files[name]}):
            plain, found = (
                mx.verify(file, **other, min_sqnr=least, as_deployed=deployed) for deployed in (False, True)
            )
            assert plain.ok
            assert found.ok
            assert len(compared(found)) > 0.5 * len(compared(plain))

    def test_half_precision_contradicts_nothing(self, files: dict[str, Path], tmp_path: Path) -> None:
        """ONNX Runtime computes in single precision with weights of half: values are near, and not where they were."""
        mx.run_tool(files["net"], "fp16", tmp_path / "half.onnx")
        found = mx.verify(tmp_path / "half.onnx", network(), min_sqnr=30, as_deployed=True)
        assert found.ok
        assert found.proof is not None
        assert not found.proof.contradicted

    def test_a_file_that_was_quantized_without_a_word(self, files: dict[str, Path], tmp_path: Path) -> None:
        """Its record is of the graph before: what is planted beside it says how to go on."""
        quantize_dynamic(files["bert"], tmp_path / "int8.onnx", weight_type=QuantType.QUInt8)
        found = mx.verify(tmp_path / "int8.onnx", MODELS["bert"](), min_sqnr=30, as_deployed=True)
        assert found.ok
        assert len(compared(found)) > 20


class TestWhatToolsMade:
    """Files that were optimized before: weights in blocks, rounded, under other names."""

    @pytest.mark.parametrize("tool", ["ort:all", "fp16", "fp16+ort:all"])
    @pytest.mark.parametrize("name", MODELS)
    def test_the_weights_are_those_of_the_model(
        self, name: str, tool: str, files: dict[str, Path], tmp_path: Path
    ) -> None:
        file = tmp_path / "made.onnx"
        mx.run_tool(files[name], tool, file, samples=1)
        found = mx.verify(file, MODELS[name](), inputs=INPUTS if name == "net" else None, min_sqnr=50)
        assert found.ok
        assert found.parameters is not None
        assert found.parameters.differing == ()
        assert found.parameters.compared > 3

    @pytest.mark.parametrize("tool", ["fp16", "fp16+ort:all"])
    @pytest.mark.parametrize("name", MODELS)
    def test_what_comes_from_half_precision_is_as_coarse_as_that(
        self, name: str, tool: str, files: dict[str, Path], tmp_path: Path
    ) -> None:
        """It is returned, and by the second tool computed, as float32 all the same."""
        file = tmp_path / "half.onnx"
        mx.run_tool(files[name], tool, file, samples=1)
        inputs = INPUTS if name == "net" else None
        found = mx.verify(file, MODELS[name](), inputs=inputs)
        assert found.ok
        assert found.proof is not None
        assert found.proof.compute_shown > 0.5 * found.proof.compute
        assert not mx.verify(file, MODELS[name](), inputs=inputs, rtol=1e-4).ok, "who wants it finer is told"

    def test_another_model_is_still_found_out(self, files: dict[str, Path], tmp_path: Path) -> None:
        mx.run_tool(files["bert"], "ort:all", tmp_path / "made.onnx", samples=1)
        other = MODELS["bert"]()
        with torch.no_grad():
            weight = other.get_parameter("encoder.layer.0.attention.self.query.weight")
            weight.add_(torch.randn_like(weight) * 0.1)
        found = mx.verify(tmp_path / "made.onnx", other)
        assert found.parameters is not None
        assert [one.name for one in found.parameters.differing] == ["encoder.layer.0.attention.self.query.weight"]


class TestWhatIsWrong:
    @pytest.mark.parametrize("other", [False, True])
    def test_inside_of_a_fusion_the_group_is_named(self, other: bool, files: dict[str, Path], tmp_path: Path) -> None:
        wrong = spoiled(files["bert"], tmp_path / "wrong.onnx", "encoder.layer.1.intermediate.dense")
        reference: dict[str, object] = {"against": files["bert"]} if other else {"model": MODELS["bert"]()}
        where = "encoder.layer.1.intermediate"
        found = mx.verify(wrong, as_deployed=True, **reference)  # type: ignore[call-overload]
        assert named(found) == {f"{where}.dense", f"{where}.intermediate_act_fn"}
        plain = mx.verify(wrong, **reference)  # type: ignore[call-overload]
        assert named(plain) == {f"{where}.dense"}

    def test_convolutions_too(self, files: dict[str, Path], tmp_path: Path) -> None:
        wrong = spoiled(files["net"], tmp_path / "wrong.onnx", "4.conv")
        found = mx.verify(wrong, network(), as_deployed=True)
        assert {"4.conv", "4.norm"} <= named(found) <= {"4", "4.conv", "4.norm", "4.act"}

    def test_what_is_not_fused_is_named_alone(self, files: dict[str, Path], tmp_path: Path) -> None:
        wrong = spoiled(files["net"], tmp_path / "wrong.onnx", "3.around")
        assert named(mx.verify(wrong, network(), as_deployed=True)) == {"3.around"}

    def test_a_file_that_onnx_runtime_cannot_load(self, files: dict[str, Path], tmp_path: Path) -> None:
        def broken(model: onnx.ModelProto) -> None:
            model.graph.node[3].op_type = "NoSuchOperator"

        file = changed(files["net"], tmp_path / "broken.onnx", broken)
        with pytest.raises(RuntimeFailed, match=r"cannot load .*NoSuchOperator"):
            mx.verify(file, against=files["net"], as_deployed=True)


def test_a_folded_file_is_to_be_made_flat_first(files: dict[str, Path], tmp_path: Path) -> None:
    mx.fold(files["bert"], tmp_path / "folded.onnx")
    with pytest.raises(UserError, match="is folded"):
        mx.verify(tmp_path / "folded.onnx", MODELS["bert"](), as_deployed=True)
