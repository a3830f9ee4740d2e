"""Records that are carried to what real tools make of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import quantize_dynamic
from tests.support.architectures import build
from torch import nn

import modelexport as mx
from modelexport.errors import RecordMissing, RecordUnreadable, ToolFailed, UnknownName, UserError
from modelexport.graph.file.metadata import OUTLINE_KEY
from modelexport.record.lineage import Relation

EXPORTERS = ("dynamo", "torchscript")


class Block(nn.Module):
    """A convolution with its norm, and a way around it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x)) + x)


class Around(nn.Module):
    """Two convolutions side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 32, 3, padding=1)
        self.around = nn.Conv2d(32, 32, 1)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.conv(x) + self.around(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), Block(), Block(), nn.Flatten(), nn.Linear(8 * 36, 4))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.running_mean, 0, 0.3)  # type: ignore[arg-type]
    return net.eval()


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.fc(x)) + x


class Deciding(nn.Module):
    """Two branches that an optimizer has something to do in."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.yes = Branch()
        self.no = Branch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return torch.cond(h.sum() > 0, self.yes, self.no, (h,))


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deciding") / "deciding.onnx"
    torch.manual_seed(0)
    mx.export(Deciding().eval(), path, inputs=torch.randn(2, 8), exporter="dynamo", no_check=True)
    return path


@pytest.fixture(scope="module", params=EXPORTERS)
def bert(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "bert.onnx"
    mx.export(build("bert"), path, exporter=request.param, no_check=True)
    return path


@pytest.fixture(scope="module", params=EXPORTERS)
def net(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "net.onnx"
    mx.export(network(), path, inputs=torch.randn(1, 3, 8, 8), exporter=request.param, no_check=True)
    return path


def optimized(source: Path, target: Path, level: str = "ORT_ENABLE_ALL") -> Path:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return target


def changed(source: Path, target: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    model = onnx.load(source)
    change(model)
    onnx.save(model, target)
    return target


def without_names(model: onnx.ModelProto) -> None:
    """All names are gone but those of what goes in and comes out."""
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    made = [output for node in model.graph.node for output in node.output if output and output not in ends]
    stored = [tensor.name for tensor in model.graph.initializer]
    names = {name: f"t{number}" for number, name in enumerate([*made, *stored])}
    for node in model.graph.node:
        node.name = ""
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        del node.metadata_props[:]
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    del model.graph.value_info[:]


class TestOptimized:
    def test_every_node_has_a_module_and_what_is_fused_has_several(self, bert: Path, tmp_path: Path) -> None:
        after = optimized(bert, tmp_path / "opt.onnx")
        found = mx.relink(after, tmp_path / "tagged.onnx", before=bert)
        assert found.ok
        assert all(entry.attribution.owners for entry in found.provenance.nodes.values())
        fused = {
            entry.op_type: set(entry.attribution.modules)
            for entry in found.provenance.nodes.values()
            if entry.op_type in ("SkipLayerNormalization", "BiasGelu")
        }
        if "SkipLayerNormalization" in fused:
            assert {"encoder.layer.1.output", "encoder.layer.1.output.LayerNorm"} <= fused["SkipLayerNormalization"]
        assert fused["BiasGelu"] == {
            "encoder.layer.1.intermediate.dense",
            "encoder.layer.1.intermediate.intermediate_act_fn",
        }
        assert not found.lineage.consistency.disorder
        assert not found.lineage.consistency.strayed

    def test_it_is_proved_by_values(self, bert: Path, tmp_path: Path) -> None:
        after = optimized(bert, tmp_path / "opt.onnx")
        tagged = tmp_path / "tagged.onnx"
        mx.relink(after, tagged, before=bert)
        seen = mx.verify(tagged, build("bert"))
        assert seen.proof is not None
        assert not seen.proof.contradicted
        assert seen.proof.compute_shown > 0.75 * seen.proof.compute

    def test_the_file_alone_says_the_same(self, bert: Path, tmp_path: Path) -> None:
        after = optimized(bert, tmp_path / "opt.onnx")
        alone, both = mx.relink(after), mx.relink(after, before=bert)
        assert alone.lineage.nodes == both.lineage.nodes
        assert alone.provenance.nodes == both.provenance.nodes
        assert alone.path is None

    def test_names_are_not_needed(self, bert: Path, tmp_path: Path) -> None:
        plain = optimized(bert, tmp_path / "opt.onnx")
        bare = changed(plain, tmp_path / "bare.onnx", without_names)
        named = mx.relink(plain, before=bert).provenance.nodes.values()
        found = mx.relink(bare, before=bert).provenance.nodes.values()
        same = [a.attribution.owners == b.attribution.owners for a, b in zip(named, found, strict=True)]
        assert sum(same) > 0.95 * len(same)

    def test_a_folded_norm_belongs_to_the_node_that_does_its_work(self, net: Path, tmp_path: Path) -> None:
        after = optimized(net, tmp_path / "opt.onnx")
        found = mx.relink(after, before=net)
        owners = [
            set(entry.attribution.modules) for entry in found.provenance.nodes.values() if "Conv" in entry.op_type
        ]
        assert any({"1.conv", "1.norm"} <= one for one in owners)
        assert any({"2.conv", "2.norm"} <= one for one in owners)
        assert not any({"1.conv", "2.conv"} <= one for one in owners)

    def test_what_a_convolution_adds_to_its_result_is_not_its_work(self, tmp_path: Path) -> None:
        """ONNX Runtime adds the result of the one to that of the other inside of the latter."""
        for exporter in EXPORTERS:
            path = tmp_path / f"{exporter}.onnx"
            mx.export(Around().eval(), path, inputs=torch.randn(1, 32, 8, 8), exporter=exporter, no_check=True)
            found = mx.relink(optimized(path, tmp_path / "opt.onnx"), before=path)
            nodes = found.provenance.nodes.values()
            one, other = (entry.attribution.modules for entry in nodes if entry.op_type in ("Conv", "FusedConv"))
            assert one == ("around",) or other == ("around",)
            assert {*one, *other} - {"around"} == (
                {"conv"} if "Relu" in {entry.op_type for entry in nodes} else {"conv", "", "act"}
            )

    def test_relinking_twice_is_relinking_once(self, bert: Path, tmp_path: Path) -> None:
        basic = optimized(bert, tmp_path / "basic.onnx", "ORT_ENABLE_BASIC")
        mx.relink(basic, tmp_path / "tagged.onnx", before=bert)
        full = optimized(tmp_path / "tagged.onnx", tmp_path / "full.onnx")
        direct = mx.relink(full, before=bert).provenance
        steps = mx.relink(full).provenance
        same = [direct.nodes[key].attribution.owners == entry.attribution.owners for key, entry in steps.nodes.items()]
        assert sum(same) > 0.97 * len(same)


class TestBodies:
    @pytest.mark.parametrize("tool", ["ort:all", "onnxslim", "int8", "fp16", "onnxscript"])
    def test_no_branch_is_credited_with_the_other(self, deciding: Path, tmp_path: Path, tool: str) -> None:
        found = mx.run_tool(deciding, tool, tmp_path / "out.onnx")
        assert found.ok
        inside = {key: entry for key, entry in found.provenance.nodes.items() if "_branch|" in key}
        assert inside
        for key, entry in inside.items():
            sources = found.lineage.nodes[key].sources
            assert sources
            assert {branch_of(source) for source in sources if "_branch|" in source} == {branch_of(key)}
            assert {path.partition(".")[0] for path in entry.attribution.modules} <= {"", branch_of(key)}

    def test_what_is_fused_in_a_branch_belongs_to_its_modules(self, deciding: Path, tmp_path: Path) -> None:
        found = mx.run_tool(deciding, "ort:all", tmp_path / "out.onnx")
        fused = {key: entry for key, entry in found.provenance.nodes.items() if entry.op_type == "FusedGemm"}
        assert len(fused) == 2
        for key, entry in fused.items():
            assert found.lineage.nodes[key].relation is Relation.FUSED
            assert f"{branch_of(key)}.fc" in entry.attribution.modules
            assert len(entry.attribution.modules) > 1

    def test_time_inside_of_a_branch_counts_once(self, deciding: Path) -> None:
        found = mx.profile(deciding, runs=5, warmup=2)
        assert found.time == pytest.approx(sum(module.own for module in found.modules))
        holders = [event for event in found.events if event.inside]
        assert len(holders) == 5
        for event in holders:
            within = [
                other.duration for other in found.events if other.run == event.run and "_branch|" in other.keys[0]
            ]
            assert event.inside == pytest.approx(sum(within))
            assert event.own <= event.duration


def branch_of(key: str) -> str:
    return "yes" if "then_branch" in key else "no"


class TestQuantized:
    def test_every_product_belongs_to_the_module_of_its_weight(self, bert: Path, tmp_path: Path) -> None:
        after = tmp_path / "int8.onnx"
        quantize_dynamic(bert, after)
        tagged = tmp_path / "tagged.onnx"
        found = mx.relink(after, tagged)
        assert found.ok
        truth = {name: set(item.modules) for name, item in mx.load(bert).initializers.items()}
        for tensor in onnx.load(after).graph.initializer:
            name = tensor.name.removesuffix("_quantized")
            if name in truth and tensor.name.endswith("_quantized"):
                assert set(found.provenance.initializers[tensor.name].modules) == truth[name]
        products = [entry for entry in found.provenance.nodes.values() if entry.op_type == "MatMulInteger"]
        assert len({entry.attribution.module for entry in products}) == len(products)

    @pytest.mark.parametrize("exporter", EXPORTERS)
    def test_what_is_optimized_after_it_was_quantized(self, exporter: str, tmp_path: Path) -> None:
        """In one go or one after the other: a quantizer that is fused with the product behind it is part of that."""
        source, int8 = tmp_path / "bert.onnx", tmp_path / "int8.onnx"
        mx.export(build("bert"), source, exporter=exporter, no_check=True)
        mx.run_tool(source, "int8", int8)
        found = mx.run_tool(int8, "ort:all", tmp_path / "deployed.onnx")
        at_once = mx.run_tool(source, "int8+ort:all", tmp_path / "at_once.onnx")
        for result in (found, at_once):
            products = [one for one in result.provenance.nodes.values() if one.op_type == "DynamicQuantizeMatMul"]
            assert len(products) == 7
            assert all(len(one.attribution.owners) == 1 for one in products)
            assert {one.attribution.module for one in products} >= {"encoder.layer.0.output.dense", "pooler.dense"}

    @pytest.mark.parametrize("exporter", EXPORTERS)
    def test_a_convolution_in_several_nodes(self, exporter: str, tmp_path: Path) -> None:
        source = tmp_path / "net.onnx"
        mx.export(Around().eval(), source, inputs=torch.randn(1, 32, 8, 8), exporter=exporter, no_check=True)
        found = mx.run_tool(source, "int8", tmp_path / "int8.onnx")
        for name in ("conv", "around"):
            mine = [one.op_type for one in found.provenance.nodes.values() if one.attribution.modules == (name,)]
            assert {"ConvInteger", "Cast", "Mul", "Add"} <= set(mine)

    @pytest.mark.parametrize("exporter", EXPORTERS)
    def test_a_quantizer_in_the_place_of_an_activation(self, exporter: str, tmp_path: Path) -> None:
        """What is cut off below zero by the range of integers needs no ReLU."""
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Sigmoid()).eval()
        source, qdq = tmp_path / "net.onnx", tmp_path / "qdq.onnx"
        mx.export(net, source, inputs=torch.randn(1, 3, 8, 8), exporter=exporter, no_check=True)
        found = mx.run_tool(source, "qdq", qdq)
        entries = list(found.provenance.nodes.values())
        assert "Relu" not in {one.op_type for one in entries}
        assert {one.attribution.modules for one in entries if one.op_type == "Conv"} == {("0",), ("2",)}
        assert [one.attribution.modules for one in entries if one.op_type == "QuantizeLinear"].count(("1",)) == 1
        seen = mx.verify(qdq, net, min_sqnr=20)
        assert seen.ok
        assert all(row.outputs is not None for row in seen.calls if row.call.path in ("0", "1", "2", "3"))


class TestWhatIsWrong:
    def test_files_that_have_nothing_to_do_with_each_other(self, bert: Path, net: Path, tmp_path: Path) -> None:
        target = tmp_path / "out.onnx"
        found = mx.relink(net, target, before=bert)
        assert not found.related
        assert not found.ok
        assert not target.exists()
        assert found.lineage.overlap.degree < 0.5

    def test_another_version_of_the_model(self, bert: Path, tmp_path: Path) -> None:
        def retrain(model: onnx.ModelProto) -> None:
            tensor = next(item for item in model.graph.initializer if item.name == "pooler.dense.weight")
            tensor.CopyFrom(numpy_helper.from_array(np.ones(tensor.dims, np.float32), tensor.name))

        found = mx.relink(changed(bert, tmp_path / "other.onnx", retrain), before=bert)
        assert found.related
        assert found.differing == ("pooler.dense.weight",)
        assert not found.ok

    @pytest.mark.parametrize("tool", ["ort:all", "fp16", "int8", "qdq", "qoperator"])
    def test_another_version_behind_a_tool(self, bert: Path, tool: str, tmp_path: Path) -> None:
        def retrain(model: onnx.ModelProto) -> None:
            random = np.random.default_rng(7)
            for item in model.graph.initializer:
                if item.data_type == onnx.TensorProto.FLOAT and len(item.dims) == 2:
                    fresh = random.standard_normal(tuple(item.dims)).astype(np.float32)
                    item.CopyFrom(numpy_helper.from_array(fresh, item.name))

        other, made = changed(bert, tmp_path / "other.onnx", retrain), tmp_path / "made.onnx"
        same = mx.run_tool(other, tool, made, check=False)
        assert same.ok
        found = mx.relink(made, before=bert)
        assert found.related
        assert len(found.differing) > 3
        assert not found.ok

    def test_a_file_without_an_outline(self, bert: Path, tmp_path: Path) -> None:
        def strip(model: onnx.ModelProto) -> None:
            kept = [entry for entry in model.metadata_props if entry.key != OUTLINE_KEY]
            del model.metadata_props[:]
            model.metadata_props.extend(kept)

        stripped = changed(bert, tmp_path / "stripped.onnx", strip)
        with pytest.raises(RecordMissing, match="what it was made from"):
            mx.relink(stripped)
        assert mx.relink(stripped, before=bert).ok

    def test_a_file_without_a_record(self, bert: Path, tmp_path: Path) -> None:
        stripped = changed(bert, tmp_path / "stripped.onnx", lambda model: model.ClearField("metadata_props"))
        with pytest.raises(RecordMissing):
            mx.relink(stripped)

    @pytest.mark.parametrize("value", ["modelexport-outline-2:xyz", "modelexport-outline-1:no", "nothing"])
    def test_an_outline_that_cannot_be_read(self, bert: Path, tmp_path: Path, value: str) -> None:
        def spoil(model: onnx.ModelProto) -> None:
            next(entry for entry in model.metadata_props if entry.key == OUTLINE_KEY).value = value

        with pytest.raises(RecordUnreadable, match="outline"):
            mx.relink(changed(bert, tmp_path / "spoiled.onnx", spoil))


class TestTools:
    def test_a_tool_and_its_lineage_in_one_step(self, bert: Path, tmp_path: Path) -> None:
        found = mx.run_tool(bert, "int8+ort:extended", tmp_path / "out.onnx")
        assert found.ok
        again = mx.load(tmp_path / "out.onnx")
        assert again.nodes == found.provenance.nodes
        assert {link.relation for link in found.lineage.nodes.values()} >= {Relation.KEPT, Relation.FUSED}

    def test_what_a_tool_appends_is_put_in_order(self, net: Path, tmp_path: Path) -> None:
        """The cast of the input comes last in what the converter gives, and everything depends on it."""
        half = tmp_path / "half.onnx"
        assert mx.run_tool(net, "fp16", half).ok
        onnx.checker.check_model(half)
        found = mx.verify(half, network(), min_sqnr=30)
        assert found.ok
        assert found.proof is not None
        assert "does not depend on the inputs" not in found.proof.reasons

    def test_tools_and_options_that_nobody_knows(self, bert: Path, tmp_path: Path) -> None:
        with pytest.raises(UnknownName, match="onnxslimm"):
            mx.run_tool(bert, "onnxslimm", tmp_path / "out.onnx")
        with pytest.raises(UserError, match="no option 'max'"):
            mx.run_tool(bert, "ort:max", tmp_path / "out.onnx")
        assert not list(tmp_path.iterdir())

    def test_a_tool_that_fails_says_why(self, bert: Path, tmp_path: Path) -> None:
        with pytest.raises(ToolFailed, match="opset failed: "):
            mx.run_tool(bert, "opset:3", tmp_path / "out.onnx")
        assert not list(tmp_path.iterdir())


class TestProfile:
    @pytest.mark.parametrize("quantized", [False, True])
    def test_all_time_belongs_to_modules_and_adds_up(self, bert: Path, tmp_path: Path, quantized: bool) -> None:
        path = bert
        if quantized:
            path = tmp_path / "int8.onnx"
            quantize_dynamic(bert, path)
        found = mx.profile(path, runs=3, warmup=1)
        assert found.attributed == 1.0
        assert found.time == pytest.approx(sum(module.own for module in found.modules))
        root = found.modules[0]
        assert root.path == ""
        assert root.time == pytest.approx(found.time)
        assert root.nodes == len(found.nodes)
        assert {event.run for event in found.events} == {0, 1, 2}
        shared = [node.key for node in found.nodes if len({owner.path for owner in node.owners}) > 1]
        assert sum(group.nodes for module in found.modules for group in module.shared) == len(shared)
        assert shared

    def test_what_is_fused_is_shared_by_the_module_around(self, bert: Path) -> None:
        found = {module.path: module for module in mx.profile(bert, runs=1, warmup=0).modules}
        shared = found["encoder.layer.0.intermediate"].shared
        assert [set(one.modules) for one in shared] == [
            {"encoder.layer.0.intermediate.dense", "encoder.layer.0.intermediate.intermediate_act_fn"}
        ]

    @pytest.mark.parametrize("bad", [{"runs": 0}, {"optimization": "most"}, {"providers": ["Abacus"]}])
    def test_what_cannot_be_asked_for(self, bert: Path, bad: dict[str, object]) -> None:
        with pytest.raises(UserError):
            mx.profile(bert, **bad)  # type: ignore[call-overload]
