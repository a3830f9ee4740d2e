"""What was asked for is held against the file: whatever an exporter, converter or quantizer does without a word."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tests.support.command_line import run

import modelexport as mx
from modelexport.api.asked_and_done import AskedQuantization, QuantizationCheck, check_export, check_tool
from modelexport.api.options import ExportOptions
from modelexport.errors import UserError
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.record.results.files import Unmet
from modelexport.record.tags import TagPolicy
from modelexport.transform.tools.quantizers import Quantization
from modelexport.transform.tools.tool import Tool

pytest.importorskip("onnxruntime.quantization")

_RANDOM = np.random.default_rng(0)


def _model(weights: dict[str, np.ndarray], nodes: list[onnx.NodeProto], *, opset: int = 20) -> onnx.ModelProto:
    """x of 2x8 to y of 2x8."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in ("x", "y")]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])


def _floats(*shape: int) -> np.ndarray:
    return _RANDOM.standard_normal(shape).astype(np.float32)


@pytest.fixture
def products(tmp_path: Path) -> Path:
    """A product by a constant, one of two values that are computed, and experts that are looked up before a product."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="constant"),
        helper.make_node("Transpose", ["h"], ["t"], name="turned"),
        helper.make_node("MatMul", ["h", "t"], ["s"], name="computed"),
        helper.make_node("MatMul", ["s", "h"], ["a"], name="weighted"),
        helper.make_node("Slice", ["experts", "zero", "one", "zero"], ["chosen"], name="choose"),
        helper.make_node("Squeeze", ["chosen", "zero"], ["expert"], name="squeeze"),
        helper.make_node("MatMul", ["a", "expert"], ["y"], name="expert"),
    ]
    weights = {"w": _floats(8, 8), "experts": _floats(4, 8, 8)}
    weights |= {"zero": np.array([0], np.int64), "one": np.array([1], np.int64)}
    onnx.save(_model(weights, nodes), tmp_path / "products.onnx")
    return tmp_path / "products.onnx"


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> TaggedFile:
    path = tmp_path_factory.mktemp("export") / "linear.onnx"
    mx.export(torch.nn.Sequential(torch.nn.Linear(8, 8)), path, inputs=torch.zeros(2, 8), no_check=True)
    return open_tagged(path)


class TestExport:
    @pytest.mark.parametrize(
        ("options", "asked", "done"),
        [
            (ExportOptions(opset=3), "--opset 3", "the file has opset"),
            (ExportOptions(dtype="float16"), "--dtype float16", "256 bytes in float32"),
            (ExportOptions(static=True), "--static", "are dynamic"),
            (ExportOptions(external_data=True), "--external-data", "in the file itself"),
            (ExportOptions(policy=TagPolicy(keep=("Conv*",))), "--keep Conv*", "no such module"),
            (ExportOptions(policy=TagPolicy(drop=("0.gone",))), "--drop 0.gone", "no such module"),
            (ExportOptions(policy=TagPolicy(torch_nn_exceptions=("GRU",))), "--torch-nn-exception GRU", "no such"),
        ],
    )
    def test_what_the_file_is_not(self, linear: TaggedFile, options: ExportOptions, asked: str, done: str) -> None:
        (unmet,) = check_export(linear, options, linear.provenance.hierarchy)
        assert unmet.asked == asked
        assert done in unmet.done

    def test_what_it_is(self, linear: TaggedFile) -> None:
        policy = TagPolicy(keep=("Lin*", "0"), torch_nn_exceptions=("Linear",))
        options = ExportOptions(opset=linear.proto.opset_import[0].version, dtype="float32", policy=policy)
        assert not [*check_export(linear, options, linear.provenance.hierarchy)]

    def test_the_command_exits_with_one_and_says_it(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "net.py").write_text("import torch\ndef build():\n    return torch.nn.Linear(4, 4)\n")
        monkeypatch.chdir(tmp_path)
        call = ("export", "-m", "net.py:build", "--input", "input=2x4", "-o", tmp_path / "a.onnx", "--no-check")
        assert run(*call, "--opset", "3", "--format", "json") == 1
        (unmet,) = json.loads(capsys.readouterr().out)["unmet"]
        assert unmet["asked"] == "--opset 3"
        assert run(*call, "--opset", "3", "--quiet") == 1
        assert "not as asked: --opset 3" in capsys.readouterr().err
        assert run(*call, "--opset", "18") == 0


class TestTools:
    def _tool(self, number_type: str = "") -> Tool:
        return Tool("tool", "", "onnx", lambda _: None, number_type=number_type)

    def test_an_opset_that_was_not_reached(self, products: Path) -> None:
        file = open_tagged(products)
        assert [*check_tool(file, file, self._tool(), "21")] == [Unmet("tool:21", "the file has opset 20")]
        assert not [*check_tool(file, file, self._tool(), "20")]
        assert not [*check_tool(file, file, self._tool(), "extended")]

    def test_types_that_were_not_reached(self, products: Path) -> None:
        file = open_tagged(products)
        (half,) = check_tool(file, file, self._tool("float16"), "")
        assert "in float32" in half.done
        (narrow,) = check_tool(file, file, self._tool("int8"), "")
        assert narrow.done.startswith("nothing was quantized")
        assert not [*check_tool(file, file, self._tool("float32"), "")]

    def test_the_command_exits_with_one(self, products: Path, tmp_path: Path) -> None:
        assert run("run-tool", products, "--tool", "opset:21", "-o", tmp_path / "21.onnx", "--quiet") == 0
        assert run("run-tool", products, "--tool", "int8", "-o", tmp_path / "8.onnx", "--quiet") == 0
        assert run("run-tool", tmp_path / "8.onnx", "--tool", "int8", "-o", tmp_path / "8.8.onnx", "--quiet") == 1


class TestQuantize:
    def test_what_cannot_be_quantized_is_refused_before_anything_runs(self, products: Path, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="--include op=Squeeze means is of a kind that this quantizer quantizes"):
            mx.quantize(products, tmp_path / "q.onnx", include="op=Squeeze")
        with pytest.raises(UserError, match="--include op=Slice"):
            mx.quantize(products, tmp_path / "q.onnx", include=["tensor=w", "op=Slice"])
        assert not (tmp_path / "q.onnx").exists()

    def test_what_was_not_quantized_of_its_kind_is_not_as_asked(self, products: Path, tmp_path: Path) -> None:
        result = mx.quantize(products, tmp_path / "q.onnx", include=["tensor=w", "tensor=t & op=MatMul"])
        assert result.unmet == (Unmet("--include tensor=t & op=MatMul", "none of its 1 nodes was quantized"),)
        assert not result.ok
        alone = mx.quantize(products, tmp_path / "q.onnx", include="tensor=t & op=MatMul")
        assert [item.asked for item in alone.unmet] == ["int8", "--include tensor=t & op=MatMul"]

    def test_a_part_that_no_quantizer_takes_is_told_of(self, products: Path, tmp_path: Path) -> None:
        result = mx.quantize(products, tmp_path / "q.onnx", include="tensor=w | op=Squeeze")
        assert result.ok
        assert any(
            note.startswith("--include tensor=w | op=Squeeze: 1 of 2 nodes were quantized, not: Squeeze 1")
            for note in result.notes
        ), result.notes
        assert not any("were quantized" in note for note in mx.quantize(products, tmp_path / "r.onnx").notes)

    def test_operators_of_which_none_was_quantized(self, products: Path, tmp_path: Path) -> None:
        result = mx.quantize(products, tmp_path / "q.onnx", op_types=["MatMul", "Transpose"])
        assert [item.asked for item in result.unmet] in ([], ["--op-types Transpose"])
        assert mx.quantize(products, tmp_path / "q.onnx", op_types=["MatMul"]).ok

    @pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "uint4"])
    def test_types_that_were_asked_for_are_there(self, products: Path, tmp_path: Path, kind: str) -> None:
        block_size = 16 if kind.endswith("int4") else None
        result = mx.quantize(products, tmp_path / "q.onnx", weight_type=kind, block_size=block_size)
        assert result.ok, result.unmet

    @pytest.mark.parametrize("form", ["qdq", "qoperator"])
    def test_static_types_and_scales_of_channels_are_there(self, products: Path, tmp_path: Path, form: str) -> None:
        result = mx.quantize(
            products,
            tmp_path / "q.onnx",
            static=True,
            quant_format=form,
            per_channel=True,
            weight_type="int8",
            activation_type="uint8",
        )
        assert result.ok, result.unmet

    def test_experts_that_stayed_in_float_are_told_of(self, products: Path, tmp_path: Path) -> None:
        result = mx.quantize(products, tmp_path / "q.onnx")
        (note,) = result.notes
        assert note.startswith("80% of the weights, in bytes, stayed in float and were not excluded: 1 that Slice read")
        assert "1 with more than two axes (experts)" in note
        assert result.ok
        asked = mx.quantize(products, tmp_path / "q.onnx", exclude="op=Slice", include="op=MatMul")
        assert not any("stayed in float" in note for note in asked.notes)

    def test_another_file_than_was_asked_for(self, products: Path, tmp_path: Path) -> None:
        """As if the quantizer had not listened: the file is held against requests that it was not made by."""
        mx.quantize(products, tmp_path / "q.onnx", weight_type="uint8")
        before, after = open_tagged(products), open_tagged(tmp_path / "q.onnx")
        nothing: dict[str, frozenset[str]] = {}

        def unmet(settings: Quantization, excluded: dict[str, frozenset[str]] = nothing) -> list[str]:
            check = QuantizationCheck(before, after, AskedQuantization(settings, nothing, excluded))
            return [item.asked for item in check.find_unmet()]

        asked = Quantization(weight_type="uint8")
        assert unmet(asked) == []
        assert unmet(replace(asked, weight_type="int8")) == ["--weight-type int8"]
        assert unmet(replace(asked, per_channel=True)) == ["--per-channel"]
        assert unmet(asked, {"tensor=w": frozenset({"h"})}) == ["--exclude tensor=w"]
        assert unmet(asked, {"tensor=t": frozenset({"s"})}) == []
