"""`modelexport quantize`, and `mx.quantize` behind it."""

from __future__ import annotations

import inspect
import json
import shutil
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.any_files import plain
from tests.support.command_line import run
from tests.support.small_file import SmallFile, credited
from tests.support.spoiled_files import contents, refused

import modelexport as mx
from modelexport.cli.tools import quantize as verb
from modelexport.errors import ToolFailed, UserError
from modelexport.graph.file.metadata import sidecar_path
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.writing import save_model
from modelexport.record.provenance import Evidence, EvidenceKind

pytest.importorskip("onnxruntime.quantization")

Captured = pytest.CaptureFixture[str]


def nodes(path: Path) -> list[onnx.NodeProto]:
    return list(onnx.load(path).graph.node)


def floats(path: Path, op_type: str = "MatMul") -> set[str]:
    return {node.name for node in nodes(path) if node.op_type == op_type}


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.npz"
    np.savez(path, ids=np.arange(8).reshape(4, 2))
    return path


def test_every_option_is_a_keyword_of_the_api() -> None:
    options = {parameter.name for parameter in verb.params} - {"quiet", "verbose", "debug", "form"}
    # Several options of one name are one keyword.
    assert options - {"component"} | {"components", "progress"} == set(inspect.signature(mx.quantize).parameters)


class TestExclude:
    def test_a_module_by_its_class_with_all_that_is_inside(
        self, small_path: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        target = tmp_path / "int8.onnx"
        assert run("quantize", small_path, "-o", target, "--exclude", "class=Block & tensor=layers.0.fc.weight") == 0
        assert floats(target) == {"node_h0"}
        assert "left in float as asked: 1 node" in capsys.readouterr().out

    def test_a_module_by_its_path(self, small_path: Path, tmp_path: Path) -> None:
        found = mx.quantize(small_path, tmp_path / "int8.onnx", exclude="module=layers.1")
        assert [entry.key for entry in found.excluded] == ["h1", "r1"]
        assert floats(tmp_path / "int8.onnx") == {"node_h1"}

    def test_several_queries(self, small_path: Path, tmp_path: Path) -> None:
        mx.quantize(small_path, tmp_path / "int8.onnx", exclude=["module=layers.0", "module=emb"])
        assert floats(tmp_path / "int8.onnx") == {"node_h0"}
        assert floats(tmp_path / "int8.onnx", "Gather") == {"node_e"}

    def test_only_what_is_included(self, small_path: Path, tmp_path: Path) -> None:
        found = mx.quantize(small_path, tmp_path / "int8.onnx", include="class=Block", exclude="tensor=h1")
        assert floats(tmp_path / "int8.onnx") == {"node_h1"}
        assert [entry.key for entry in found.included or ()] == ["h0", "r0", "h1", "r1"]

    def test_the_result_keeps_its_record(self, small_path: Path, tmp_path: Path) -> None:
        target = tmp_path / "int8.onnx"
        mx.quantize(small_path, target, exclude="module=layers.1")
        found = mx.load(target)
        modules = {entry.op_type: entry.attribution.module for entry in found.nodes.values()}
        assert modules["MatMulInteger"] == "layers.0.fc"
        assert modules["MatMul"] == "layers.1.fc"
        assert sidecar_path(target).is_file()

    def test_files_without_names(self, small: SmallFile, tmp_path: Path) -> None:
        names = dict.fromkeys(("e", "h0", "r0", "h1", "r1", "y"), "")
        path = replace(small, names=names | {"h1": "same", "r1": "same"}).write(tmp_path / "a.onnx")
        before = path.read_bytes()
        found = mx.quantize(path, tmp_path / "int8.onnx", exclude="tensor=h0 & op=MatMul")
        kept = [node for node in nodes(tmp_path / "int8.onnx") if node.op_type == "MatMul"]
        assert [node.output[0] for node in kept] == ["h0"]
        assert found.notes == ("5 nodes without a name of their own were given one: quantizers go by names",)
        assert path.read_bytes() == before

    def test_what_is_never_quantized_anyway(self, small_path: Path, tmp_path: Path) -> None:
        found = mx.quantize(small_path, tmp_path / "int8.onnx", exclude="op=Relu")
        assert found.notes == ("none of the 2 nodes that are excluded is of a kind that this quantizer quantizes",)
        assert floats(tmp_path / "int8.onnx") == set()


class TestStatic:
    @pytest.mark.parametrize("form", ["qdq", "qoperator"])
    def test_with_samples(self, small_path: Path, samples: Path, tmp_path: Path, form: str, capsys: Captured) -> None:
        target = tmp_path / "int8.onnx"
        arguments = ["--static", "--calibration", samples, "--quant-format", form, "--activation-type", "uint8"]
        assert run("quantize", small_path, "-o", target, *arguments, "--exclude", "module=layers.1") == 0
        made = nodes(target)
        paired = {name for node in made if node.op_type == "DequantizeLinear" for name in node.output}
        products = {node.name: node for node in made if node.op_type == "MatMul"}
        assert not set(products["node_h1"].input) <= paired
        assert form == "qoperator" or set(products["node_h0"].input) <= paired
        assert ("node_h0" in products) == (form == "qdq")
        assert "made-up" not in capsys.readouterr().out

    def test_without_samples_it_is_said(self, small_path: Path, tmp_path: Path, capsys: Captured) -> None:
        assert run("quantize", small_path, "-o", tmp_path / "int8.onnx", "--static", "--samples", 2) == 0
        assert "calibrated on 2 made-up inputs" in capsys.readouterr().out

    def test_samples_are_what_decides_the_scales(self, small_path: Path, tmp_path: Path) -> None:
        scales = []
        for factor in (1, 2):
            path = tmp_path / f"{factor}.npz"
            np.savez(path, ids=np.full((1, 2), factor))
            model = onnx.load(small_path)
            table = next(one for one in model.graph.initializer if one.name == "emb.weight")
            table.CopyFrom(onnx.numpy_helper.from_array(np.arange(40, dtype=np.float32).reshape(10, 4), "emb.weight"))
            onnx.save(model, tmp_path / "a.onnx")
            mx.quantize(tmp_path / "a.onnx", tmp_path / "q.onnx", static=True, calibration=path)
            stored = {
                one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(tmp_path / "q.onnx").graph.initializer
            }
            scales.append(float(stored["y_scale"]))
        assert scales[0] < scales[1]


class TestReport:
    def test_what_each_module_lost(self, small_path: Path, tmp_path: Path, capsys: Captured) -> None:
        target = tmp_path / "int8.onnx"
        assert run("quantize", small_path, "-o", target, "--report", "--exclude", "module=emb", "--format", "json") == 0
        document = json.loads(capsys.readouterr().out)
        assert [one["key"] for one in document["excluded"]] == ["e"]
        assert document["included"] is None
        assert document["lineage"]["related"]
        assert document["report"]["file"] == str(target)
        jsonschema = pytest.importorskip("jsonschema")
        schema = resources.files("modelexport.record") / "schema" / "quantization.schema.json"
        jsonschema.validate(document, json.loads(schema.read_text()))
        assert run("quantize", small_path, "-o", target, "--report") == 0
        assert f"{target} against {small_path}" in capsys.readouterr().out


class TestFiles:
    def test_weights_beside_the_model(self, small_path: Path, tmp_path: Path) -> None:
        spread = tmp_path / "spread"
        spread.mkdir()
        save_model(open_model(small_path), spread / "a.onnx", external_data=True, threshold=1)
        shutil.copy(sidecar_path(small_path), spread / "a.hierarchy.json")
        before = contents(spread)
        assert "a.onnx.data" in before
        for static in (False, True):
            target = tmp_path / "int8.onnx"
            mx.quantize(spread / "a.onnx", target, exclude="module=layers.1", static=static)
            assert mx.validate(target).ok
            onnx.checker.check_model(target, full_check=False)
        assert contents(spread) == before

    def test_nothing_is_left_anywhere(
        self, small_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
    ) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        monkeypatch.chdir(inner)
        assert run("quantize", small_path, "-o", tmp_path / "out.onnx", "--static", "-q") == 0
        assert list(inner.iterdir()) == []
        assert capsys.readouterr() == ("", "")
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
            "out.hierarchy.json", "out.onnx", "small.hierarchy.json", "small.onnx",
        ]  # fmt: skip

    def test_a_quantizer_that_fails(self, small_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from onnxruntime import quantization

        def fail(*_: object, **__: object) -> None:
            Path("litter").write_text("x")
            raise ValueError("no")

        monkeypatch.setattr(quantization, "quantize_dynamic", fail)
        before = contents(tmp_path)
        with pytest.raises(ToolFailed, match="int8 failed: no"):
            mx.quantize(small_path, tmp_path / "out.onnx")
        assert contents(tmp_path) == before


class TestRemedies:
    """Of a quantizer that fails; the small file has two MatMul nodes in float."""

    @pytest.fixture(autouse=True)
    def fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from onnxruntime import quantization

        def fail(*_: object, **__: object) -> None:
            raise ValueError("no")

        monkeypatch.setattr(quantization, "quantize_static", fail)

    def hint(self, path: Path, folder: Path) -> str:
        with pytest.raises(ToolFailed, match="qdq failed: no") as caught:
            mx.quantize(path, folder / "out.onnx", static=True)
        return caught.value.hint

    def test_a_file_may_be_cleaned_up(self, small_path: Path, tmp_path: Path) -> None:
        assert f"run-tool {small_path} --tool onnxslim -o CLEAN" in self.hint(small_path, tmp_path)

    def test_but_not_twice(self, small: SmallFile, tmp_path: Path) -> None:
        cleaned = Evidence(EvidenceKind.LINEAGE, "onnxslim+ort:basic", "rewritten")
        owned = credited("layers.0.fc")
        path = small.but(h0=replace(owned, evidence=(*owned.evidence, cleaned))).write(tmp_path / "clean.onnx")
        hint = self.hint(path, tmp_path)
        assert "--exclude QUERY" in hint
        assert "onnxslim" not in hint

    def test_nor_what_is_quantized_already(self, small_path: Path, tmp_path: Path) -> None:
        mx.quantize(small_path, tmp_path / "int8.onnx")
        hint = self.hint(tmp_path / "int8.onnx", tmp_path)
        assert "The file is quantized already" in hint
        assert "onnxslim" not in hint

    def test_nor_what_nothing_can_be_quantized_in(self, tmp_path: Path) -> None:
        model = plain()
        del model.graph.node[:-1]
        model.graph.node[0].op_type = "Neg"
        model.graph.node[0].input[0] = "x"
        onnx.save(model, tmp_path / "given.onnx")
        assert "no node of a kind that this quantizer quantizes" in self.hint(tmp_path / "given.onnx", tmp_path)


class TestNothingToQuantize:
    def test_it_is_said(self, small_path: Path, tmp_path: Path, capsys: Captured) -> None:
        once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
        assert mx.quantize(small_path, once).notes == ()
        capsys.readouterr()
        assert run("quantize", once, "-o", twice, "--format", "json") == 1
        (unmet,) = json.loads(capsys.readouterr().out)["lineage"]["unmet"]
        assert unmet["asked"] == "int8"
        assert unmet["done"].startswith("nothing was quantized: ")

    def test_weights_that_are_made_at_run_time(self, tmp_path: Path) -> None:
        """None is stored, so none of few bits is either."""
        path = tmp_path / "given.onnx"
        half = numpy_helper.from_array(np.array([0.5], np.float32))
        shape = numpy_helper.from_array(np.array([2, 3, 1, 1]), "shape")
        made = helper.make_node("ConstantOfShape", ["shape"], ["weight"], value=half)
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size, 4, 4])
            for name, size in (("x", 3), ("y", 2))
        ]
        graph = helper.make_graph(
            [made, helper.make_node("Conv", ["x", "weight"], ["y"])], "made", ends[:1], ends[1:], [shape]
        )
        onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
        result = mx.quantize(path, tmp_path / "int8.onnx")
        assert {"ConvInteger", "DynamicQuantizeLinear"} <= {node.op_type for node in nodes(tmp_path / "int8.onnx")}
        assert not [note for note in result.notes if "nothing was quantized" in note]


class TestWeightsOfFourBits:
    """Without --static, weights alone are quantized: matrix products become MatMulNBits."""

    @pytest.mark.parametrize(("kind", "inputs"), [("int4", 3), ("uint4", 4)])
    def test_the_products_of_a_file(self, product_path: Path, tmp_path: Path, kind: str, inputs: int) -> None:
        out = tmp_path / "out.onnx"
        assert run("quantize", product_path, "-o", out, "--weight-type", kind, "--block-size", "16") == 0
        (product,) = [node for node in nodes(out) if node.op_type == "MatMulNBits"]
        assert len(product.input) == inputs  # that of blocks with a zero point of their own is the last one
        assert {item.name: item.i for item in product.attribute}["block_size"] == 16

    def test_what_is_not_for_four_bits_is_said(self, product_path: Path, tmp_path: Path, capsys: Captured) -> None:
        for options, told in (
            (["--per-channel"], "--block-size"),
            (["--op-types", "Relu"], "one of MatMul and Gather"),
        ):
            out = tmp_path / "out.onnx"
            assert run("quantize", product_path, "-o", out, "--weight-type", "int4", *options) == 2
            assert told in capsys.readouterr().err
            assert not out.exists()

    def test_nor_are_blocks_for_eight(self, product_path: Path, tmp_path: Path, capsys: Captured) -> None:
        out = tmp_path / "out.onnx"
        assert run("quantize", product_path, "-o", out, "--block-size", "16") == 2
        assert "--block-size 16 is for weights of four bits" in capsys.readouterr().err
        assert not out.exists()

    @pytest.fixture
    def product_path(self, tmp_path: Path) -> Path:
        """Relu(x · w)."""
        weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32), "w")
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 32), ("y", 8))
        ]
        made = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
        graph = helper.make_graph(made, "product", ends[:1], ends[1:], [weight])
        path = tmp_path / "product.onnx"
        onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
        return path


class TestFailingQuantizers:
    @pytest.mark.parametrize(
        ("options", "hint"),
        [
            (["--weight-type", "int16"], "add --static, or choose"),
            (["--static", "--weight-type", "float8"], "--method distribution"),
            (["--static", "--weight-type", "int16", "--quant-format", "qoperator"], "--quant-format qdq"),
        ],
    )
    def test_the_hint_is_about_what_was_asked_for(
        self, small_path: Path, tmp_path: Path, capsys: Captured, options: list[str], hint: str
    ) -> None:
        assert run("quantize", small_path, "-o", tmp_path / "out.onnx", *options) == 2
        told = capsys.readouterr().err
        assert hint in told
        assert "run-tool" not in told

    def test_samples_that_the_file_does_not_take(self, small_path: Path, tmp_path: Path, capsys: Captured) -> None:
        samples = tmp_path / "samples.npz"
        np.savez(samples, ids=np.full((4, 2), 10**6))
        assert run("quantize", small_path, "-o", tmp_path / "out.onnx", "--static", "--calibration", samples) == 2
        told = capsys.readouterr().err
        assert "give inputs that it takes: --calibration FILE.npz" in told
        assert "--inputs" not in told

    def test_samples_without_names(self, small_path: Path, tmp_path: Path, capsys: Captured) -> None:
        samples = tmp_path / "samples.npy"
        np.save(samples, np.arange(8).reshape(4, 2))
        assert run("quantize", small_path, "-o", tmp_path / "out.onnx", "--static", "--calibration", samples) == 2
        told = capsys.readouterr().err
        assert "holds one array" in told
        assert f"numpy.savez('{samples.with_suffix('.npz')}', NAME=numpy.load('{samples}')" in told


def test_a_folded_file(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    mx.fold(small_path, tmp_path / "folded.onnx")
    text = refused(tmp_path, capsys, "quantize", tmp_path / "folded.onnx", "-o", tmp_path / "int8.onnx")
    assert "modelexport flatten" in text


def test_what_is_refused(small_path: Path, samples: Path, tmp_path: Path, capsys: Captured) -> None:
    begin = ["quantize", small_path, "-o", tmp_path / "out.onnx"]
    for arguments, message in (
        (["--exclude", "op=MatMul & op=Add"], "the query selects nothing"),
        (["--exclude", "class=Bloc"], "unknown class 'Bloc'"),
        (["--include", "op=MatMul", "--exclude", "op=MatMul"], "nothing is left to quantize"),
        (["--calibration", samples], "--static"),
        (["--quant-format", "qdq"], "--static"),
        (["--method", "entropy"], "--static"),
        (["--activation-type", "int8"], "--static"),
        (["--block-size", "32"], "--block-size 32 is for weights of four bits"),
        (["--static", "--weight-type", "int4", "--block-size", "64"], "without --static"),
        (["--weight-type", "int4", "--per-channel"], "--per-channel is for weights of eight bits"),
        (["--weight-type", "int4", "--reduce-range"], "--reduce-range is for weights of eight bits"),
        (["--static", "--calibration", samples, "--input", "ids=2x2"], "--input is for inputs that are made"),
        (["--no-check", "--input", "ids=2x2"], "nothing is run"),
        (["--static", "--calibration", tmp_path / "no.npz"], "cannot read"),
        (["--op-types", "Matmul"], "unknown operator"),
    ):
        assert message in refused(tmp_path, capsys, *begin, *arguments)
    assert "is read here" in refused(tmp_path, capsys, "quantize", small_path, "-o", small_path)
    with pytest.raises(UserError):
        mx.quantize(small_path, tmp_path / "out.onnx", samples=0)
    with pytest.raises(UserError):
        mx.quantize(small_path, tmp_path / "out.onnx", weight_type="int9")
    for wrong in (5, ["op=MatMul", 5]):
        with pytest.raises(UserError, match="exclude holds 5, an int"):
            mx.quantize(small_path, tmp_path / "out.onnx", exclude=wrong)  # type: ignore[arg-type]
