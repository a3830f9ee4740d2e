"""`modelexport attach` on files that plain torch wrote, and on what people give it by mistake."""

from __future__ import annotations

import ast
import inspect
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.support.command_line import run
from tests.support.foreign_files import INPUTS, PlainExports, renamed_throughout

import modelexport as mx
from modelexport.api import attach as api
from modelexport.record.provenance import Confidence
from modelexport.record.results.files import ExportResult

Captured = pytest.CaptureFixture[str]
EXPORTERS = ["dynamo", "torchscript"]
# Operators that stay what they are, whoever exports them.
TELLING = {"MatMul", "Gemm", "Softmax", "LayerNormalization", "Tanh"}


def attach(file: Path, model: Path | str, output: Path, *options: object) -> int:
    return run("attach", file, "-m", model, "-o", output, *options)


def issuers(model: onnx.ModelProto) -> dict[str, str]:
    """The module that the exporter itself says has issued a node, by the node's first output."""
    found = {}
    for node in model.graph.node:
        scopes = {item.key: item.value for item in node.metadata_props}.get("pkg.torch.onnx.name_scopes")
        if node.op_type in TELLING and scopes:
            found[node.output[0]] = ast.literal_eval(scopes)[-2]
        elif node.op_type in TELLING and node.name.startswith("/model/"):
            scope = node.name.removeprefix("/model/").rpartition("/")[0]
            found[node.output[0]] = scope.replace("/", ".")
    return found


def without_metadata(model: onnx.ModelProto) -> bytes:
    del model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
    model.ir_version = 0
    return model.SerializeToString(deterministic=True)


def outputs(path: Path) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {name: tensor.numpy() for name, tensor in INPUTS.items()}
    taken = [value.name for value in session.get_inputs()]
    return [np.asarray(found) for found in session.run(None, {name: feed[name] for name in taken})]


class TestPlainExports:
    @pytest.mark.parametrize("exporter", EXPORTERS)
    def test_every_telling_node_belongs_to_its_module(
        self, exporter: str, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        plain, tagged = plain_exports(exporter), tmp_path / "tagged.onnx"
        assert attach(plain, bert_folder, tagged) == 0
        text = capsys.readouterr().out
        assert f"wrote {tagged}" in text
        assert f"{len(onnx.load(plain).graph.node)} nodes: exact " in text
        found = mx.load(tagged)
        truth = issuers(onnx.load(plain))
        assert len(truth) > 20
        assert {key: found.attribution(key).module for key in truth} == truth

    @pytest.mark.parametrize("exporter", EXPORTERS)
    def test_nothing_but_metadata_is_changed(
        self, exporter: str, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path
    ) -> None:
        plain, tagged = plain_exports(exporter), tmp_path / "tagged.onnx"
        before = plain.read_bytes()
        assert attach(plain, bert_folder, tagged, "-q") == 0
        assert without_metadata(onnx.load(tagged)) == without_metadata(onnx.load(plain))
        for was, now in zip(outputs(plain), outputs(tagged), strict=True):
            np.testing.assert_array_equal(was, now)
        assert plain.read_bytes() == before

    def test_reading_verbs_take_the_tagged_file(
        self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        tagged = tmp_path / "tagged.onnx"
        assert attach(plain_exports("torchscript"), bert_folder, tagged, "-q") == 0
        assert capsys.readouterr().out == ""
        assert run("analyze", tagged) == 0
        assert "exported by unknown, attributed by all" in capsys.readouterr().out
        assert run("validate", tagged, "--check-consistency") == 0
        capsys.readouterr()
        question = "module=encoder.layer.1.attention.self.query & op=MatMul & role=attention.query & layer=1"
        assert run("query", tagged, question, "--format", "names") == 0
        assert capsys.readouterr().out == "/model/encoder/layer.1/attention/self/query/MatMul\n"

    def test_dynamic_axes(self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path) -> None:
        plain, tagged = plain_exports("torchscript", dynamic=True), tmp_path / "tagged.onnx"
        assert onnx.load(plain).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
        assert attach(plain, bert_folder, tagged, "-q") == 0
        found, truth = mx.load(tagged), issuers(onnx.load(plain))
        assert {key: found.attribution(key).module for key in truth} == truth


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_names_are_not_needed(exporter: str, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path) -> None:
    plain = plain_exports(exporter)
    renamed = renamed_throughout(plain, tmp_path / "renamed.onnx")
    assert attach(renamed, bert_folder, tmp_path / "tagged.onnx", "-q") == 0
    found = list(mx.load(tmp_path / "tagged.onnx").nodes.values())
    truth, named = issuers(onnx.load(plain)), onnx.load(plain).graph.node
    places = [place for place, node in enumerate(named) if node.output[0] in truth]
    assert [found[place].attribution.module for place in places] == [truth[named[place].output[0]] for place in places]


class TestWhereItGoes:
    def test_external_data(
        self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        source = _outside(plain_exports("torchscript"), tmp_path / "in" / "plain.onnx", "weights.bin")
        data = source.with_name("weights.bin").read_bytes()
        tagged = tmp_path / "tagged.onnx"
        assert attach(source, bert_folder, tagged) == 0
        assert "tagged.onnx.data" in capsys.readouterr().out
        assert source.with_name("weights.bin").read_bytes() == data
        assert _weights(tagged) == _weights(plain_exports("torchscript"))
        assert run("validate", tagged) == 0

    def test_the_weights_of_the_file_are_not_written_over(
        self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        source = _outside(plain_exports("torchscript"), tmp_path / "plain.onnx", "tagged.onnx.data")
        data = (tmp_path / "tagged.onnx.data").read_bytes()
        assert attach(source, bert_folder, tmp_path / "tagged.onnx") == 2
        assert "it holds the weights of the model" in capsys.readouterr().err
        assert (tmp_path / "tagged.onnx.data").read_bytes() == data
        assert not (tmp_path / "tagged.onnx").exists()

    def test_weights_that_are_gone(
        self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        source = _outside(plain_exports("torchscript"), tmp_path / "plain.onnx", "weights.bin")
        (tmp_path / "weights.bin").unlink()
        assert attach(source, bert_folder, tmp_path / "tagged.onnx") == 2
        assert "weights.bin" in capsys.readouterr().err
        assert not (tmp_path / "tagged.onnx").exists()

    @pytest.mark.parametrize("outside", [False, True])
    def test_onto_itself(self, outside: bool, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path) -> None:
        plain, source = plain_exports("torchscript"), tmp_path / "plain.onnx"
        if outside:
            _outside(plain, source, "weights.bin")
        else:
            shutil.copy(plain, source)
        assert attach(source, bert_folder, source, "-q") == 0
        assert len(mx.load(source).nodes) == len(onnx.load(plain).graph.node)
        assert _weights(source) == _weights(plain)
        assert run("validate", source) == 0
        for was, now in zip(outputs(plain), outputs(source), strict=True):
            np.testing.assert_array_equal(was, now)

    def test_a_file_that_is_no_model_is_left_alone(
        self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        notes = tmp_path / "notes.txt"
        notes.write_text("keep me")
        assert attach(plain_exports("torchscript"), bert_folder, notes) == 2
        assert "is not an ONNX model" in capsys.readouterr().err
        assert notes.read_text() == "keep me"
        assert _files(tmp_path) == ["notes.txt"]

    def test_a_folder_that_is_not_there(
        self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        assert attach(plain_exports("torchscript"), bert_folder, tmp_path / "no" / "tagged.onnx") == 2
        assert "does not exist" in capsys.readouterr().err


class TestWrongModels:
    @pytest.mark.parametrize("exporter", EXPORTERS)
    @pytest.mark.parametrize("strategy", ["all", "usage_based", "universal"])
    def test_other_weights(
        self,
        exporter: str,
        strategy: str,
        plain_exports: PlainExports,
        other_weights: Path,
        tmp_path: Path,
        capsys: Captured,
    ) -> None:
        assert attach(plain_exports(exporter), other_weights, tmp_path / "tagged.onnx", "--strategy", strategy) == 2
        error = capsys.readouterr().err
        assert "was not made from" in error
        assert error.startswith("error: ")
        assert " 0 of " in error
        assert "of the file were found in the model" in error
        assert _files(tmp_path) == []

    def test_a_model_that_takes_other_inputs(
        self, plain_exports: PlainExports, tmp_path: Path, capsys: Captured
    ) -> None:
        wrong = "tests.support.nets:CalledThrice"
        assert attach(plain_exports("torchscript"), wrong, tmp_path / "a.onnx", "--input", "x=2x4:float32") == 2
        error = capsys.readouterr().err
        assert "the graph takes an input 'input_ids' (2x8 int64)" in error
        assert "x (2x4 float32)" in error
        assert _files(tmp_path) == []


class TestInputs:
    def test_inputs_have_the_shape_that_the_file_fixes(
        self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path
    ) -> None:
        model = onnx.load(plain_exports("torchscript", dynamic=True))
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, (3, 5), strict=True):
                dim.dim_value = size
        onnx.save(model, tmp_path / "fixed.onnx")
        assert attach(tmp_path / "fixed.onnx", bert_folder, tmp_path / "tagged.onnx", "-q") == 0
        found, truth = mx.load(tmp_path / "tagged.onnx"), issuers(model)
        assert {key: found.attribution(key).module for key in truth} == truth

    def test_given_inputs_of_another_shape(
        self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        wrong = ["--input", "input_ids=3x9:int64"]
        assert attach(plain_exports("torchscript"), bert_folder, tmp_path / "tagged.onnx", *wrong) == 2
        assert "takes 'input_ids' as 2x8 int64; the model was run with 3x9 int64" in capsys.readouterr().err
        assert _files(tmp_path) == []

    def test_given_inputs_that_fit(self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path) -> None:
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in INPUTS.items()}
        np.savez(tmp_path / "inputs.npz", **arrays)
        given = ["--inputs", tmp_path / "inputs.npz"]
        assert attach(plain_exports("torchscript"), bert_folder, tmp_path / "tagged.onnx", "-q", *given) == 0

    def test_an_input_that_the_model_does_not_take(
        self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        model = onnx.load(plain_exports("torchscript"))
        for values, name in ((model.graph.input, "extra"), (model.graph.output, "more")):
            values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 5]))
        model.graph.node.append(helper.make_node("Relu", ["extra"], ["more"]))
        onnx.save(model, tmp_path / "extra.onnx")
        assert attach(tmp_path / "extra.onnx", bert_folder, tmp_path / "tagged.onnx") == 2
        error = capsys.readouterr().err
        assert "takes an input 'extra' (3x5 float" in error
        assert "input_ids (2x8 int64), attention_mask (2x8 int64)" in error
        assert _files(tmp_path) == ["extra.onnx"]


def test_an_operator_that_onnxruntime_lacks(
    plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    model = onnx.load(plain_exports("torchscript"))
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    place = next(place for place, node in enumerate(model.graph.node) if "layer.1/attention/self/Softmax" in node.name)
    scores = model.graph.node[place].input[0]
    model.graph.node[place].input[0] = "odd"
    model.graph.node.insert(place, helper.make_node("Odd", [scores], ["odd"], name="odd", domain="my.ops"))
    onnx.save(model, tmp_path / "custom.onnx")
    tagged = tmp_path / "tagged.onnx"
    assert attach(tmp_path / "custom.onnx", bert_folder, tagged, "--strategy", "htp") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "my.ops:Odd" in text
    assert "judged by weights and order alone, one step less sure" in text
    found = mx.load(tagged)
    assert found.attribution("odd").module == "encoder.layer.1.attention.self"
    assert max(entry.attribution.confidence for entry in found.nodes.values()) < Confidence.EXACT
    assert {node.domain for node in onnx.load(tagged).graph.node} == {"", "my.ops"}


class TestWords:
    def test_an_unknown_strategy(self, bert_folder: Path, tmp_path: Path, capsys: Captured) -> None:
        assert attach(tmp_path / "a.onnx", bert_folder, tmp_path / "b.onnx", "--strategy", "usage-based") == 2
        assert "Did you mean 'usage_based'?" in capsys.readouterr().err

    def test_a_file_that_is_not_there(self, bert_folder: Path, tmp_path: Path, capsys: Captured) -> None:
        assert attach(tmp_path / "a.onnx", bert_folder, tmp_path / "b.onnx") == 2
        assert "cannot read" in capsys.readouterr().err

    def test_a_file_that_is_no_model(self, bert_folder: Path, tmp_path: Path, capsys: Captured) -> None:
        (tmp_path / "a.txt").write_text("no model")
        assert attach(tmp_path / "a.txt", bert_folder, tmp_path / "b.onnx") == 2
        assert "is not an ONNX model" in capsys.readouterr().err
        assert _files(tmp_path) == ["a.txt"]

    def test_every_option_is_a_keyword_of_the_api(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        asked: dict[str, Any] = {}
        real = inspect.signature(api.attach).parameters

        def recorder(file: Path, model: str, output: Path, **options: Any) -> ExportResult:
            asked.update(options, file=file, model=model, output=output)
            return ExportResult(output, (), _nothing(), None, (), {})

        monkeypatch.setattr(api, "attach", recorder)
        assert attach(tmp_path / "a.onnx", "my-bert", tmp_path / "b.onnx", "-q") == 0
        assert set(asked) == set(real)
        defaults = {name: found.default for name, found in real.items() if found.default is not found.empty}
        assert {name: asked[name] for name in defaults} == defaults

    def test_json(self, plain_exports: PlainExports, bert_folder: Path, tmp_path: Path, capsys: Captured) -> None:
        options = ["--format", "json", "--names", "hierarchical", "--embed", "lean", "--strategy", "htp"]
        plain, tagged = plain_exports("torchscript"), tmp_path / "tagged.onnx"
        assert attach(plain, bert_folder, tagged, *options) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["files"] == [str(tagged), str(tmp_path / "tagged.hierarchy.json")]
        assert (document["exporter"], document["strategy"], document["check"]) == ("unknown", "htp", None)
        assert document["nodes"] == sum(document["by_confidence"].values()) == len(onnx.load(plain).graph.node)
        assert not any(node.metadata_props for node in onnx.load(tagged).graph.node)
        assert any("/encoder/layer.0/attention/self/query/" in node.name for node in onnx.load(tagged).graph.node)


def _outside(path: Path, target: Path, data: str) -> Path:
    """The model with its weights in a file beside it."""
    target.parent.mkdir(exist_ok=True)
    onnx.save(onnx.load(path), target, save_as_external_data=True, location=data, size_threshold=64)
    return target


def _weights(path: Path) -> dict[str, bytes]:
    return {tensor.name: tensor.raw_data for tensor in onnx.load(path).graph.initializer}


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in _walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _nothing() -> mx.Provenance:
    from tests.support.small_file import SmallFile

    return SmallFile().provenance()
