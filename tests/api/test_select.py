"""`mx.select`: from a query to what another tool reads, checked by that tool where it is at hand."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.support.exports import Exports
from tests.support.small_file import SmallFile, small, small_path

import modelexport as mx
from modelexport.errors import FileUnreadable, FileUnwritable, SelectionInexpressible, UnknownName, UserError
from modelexport.graph.file.metadata import sidecar_path

__all__ = ["small", "small_path"]

# More nodes without a name than with one, and two of one name.
NAMELESS = {"e": "", "h0": "twin", "r0": "twin", "h1": "", "y": "all"}


def names_in(path: Path) -> list[str]:
    return [node.name for node in onnx.load(path, load_external_data=False).graph.node]


def test_names_are_those_of_the_query(small_path: Path) -> None:
    found = mx.select(small_path, "op=MatMul", "names")
    assert found.names == ("node_h0", "node_h1")
    assert found.nodes == mx.query(small_path, "op=MatMul")
    assert (found.text, found.files, found.queries) == ("node_h0\nnode_h1\n", (), ("op=MatMul",))


def test_several_queries_are_joined_where_groups_mean_nothing(small_path: Path) -> None:
    found = mx.select(small_path, ["op=Add", "op=MatMul", "tensor=y"], "ort-exclude")
    assert json.loads(found.text) == ["node_h0", "node_h1", "node_y"]


def test_a_query_that_selects_nothing_is_an_error(small_path: Path, tmp_path: Path) -> None:
    for dialect in ("names", "ort-exclude", "layer-ann", "olive-split", "modelopt", "tensorrt"):
        with pytest.raises(UserError, match="selects nothing"):
            mx.select(small_path, ["op=MatMul", "op=MatMul & op=Add"], dialect, output=tmp_path / "out")
    with pytest.raises(UnknownName):
        mx.select(small_path, "op=Matmul")
    with pytest.raises(UserError, match="no query"):
        mx.select(small_path, ())
    assert not (tmp_path / "out").exists()


class TestFilesWithoutNames:
    @pytest.mark.parametrize("dialect", ["names", "ort-exclude", "modelopt", "tensorrt"])
    def test_they_are_refused(self, small: SmallFile, tmp_path: Path, dialect: str) -> None:
        path = replace(small, names=NAMELESS).write(tmp_path / "a.onnx")
        with pytest.raises(SelectionInexpressible, match="has no name"):
            mx.select(path, "op=MatMul & layer!=9 | op=Gather", dialect)
        with pytest.raises(SelectionInexpressible, match="called twin as well"):
            mx.select(path, "op=MatMul & module=layers.0.**", dialect)

    def test_a_copy_has_names_for_all(self, small: SmallFile, tmp_path: Path) -> None:
        path = replace(small, names=NAMELESS).write(tmp_path / "a.onnx")
        before = path.read_bytes()
        copy, listed = tmp_path / "named.onnx", tmp_path / "list.json"
        found = mx.select(path, "op=MatMul", "ort-exclude", named=copy, output=listed)
        assert path.read_bytes() == before
        assert set(found.files) == {copy, sidecar_path(copy), listed}
        names = names_in(copy)
        assert len(set(names)) == len(names) == 6
        assert (names[1], names[5]) == ("twin", "all")  # who has a name keeps it
        assert found.names == (names[1], names[3])
        assert json.loads(listed.read_text()) == list(found.names)
        assert mx.select(copy, "op=MatMul", "ort-exclude").text == found.text
        assert mx.validate(copy).ok

    def test_the_copy_has_names_that_the_tool_can_read(self, small: SmallFile, tmp_path: Path) -> None:
        path = replace(small, names={"h0": "a,b", "h1": "a*"}).write(tmp_path / "a.onnx")
        found = mx.select(path, "op=MatMul", "tensorrt", named=tmp_path / "named.onnx")
        assert found.text.splitlines()[1] == "--layerPrecisions=/layers.0/fc/MatMul:fp32,/layers.1/fc/MatMul:fp32"


class TestWriting:
    def test_nothing_is_written_over_what_is_read(self, small_path: Path) -> None:
        before = small_path.read_bytes()
        for output, named in ((small_path, None), (None, small_path), (sidecar_path(small_path), None)):
            with pytest.raises(FileUnwritable):
                mx.select(small_path, "op=MatMul", "ort-exclude", output=output, named=named)
        with pytest.raises(FileUnwritable):
            mx.select(small_path, "op=MatMul", "layer-ann", output=small_path)
        assert small_path.read_bytes() == before

    def test_a_list_and_a_model_in_one_file(self, small_path: Path, tmp_path: Path) -> None:
        with pytest.raises(FileUnwritable):
            mx.select(small_path, "op=MatMul", "names", output=tmp_path / "x.onnx", named=tmp_path / "x.onnx")

    def test_what_cannot_be_told_leaves_nothing_behind(self, small: SmallFile, tmp_path: Path) -> None:
        path = replace(small, names={"h0": ""}).write(tmp_path / "a.onnx")
        before = sorted(tmp_path.iterdir())
        with pytest.raises(SelectionInexpressible):
            mx.select(path, "op=MatMul", "names", output=tmp_path / "list.txt")
        assert sorted(tmp_path.iterdir()) == before

    def test_settings_of_another_tool(self, small_path: Path) -> None:
        with pytest.raises(UserError, match="--precision means nothing for names"):
            mx.select(small_path, "op=MatMul", "names", precision="fp16")
        with pytest.raises(UserError, match="--device means nothing for tensorrt"):
            mx.select(small_path, "op=MatMul", "tensorrt", device="gpu")
        with pytest.raises(UserError, match="-o FILE"):
            mx.select(small_path, "op=MatMul", "layer-ann")
        with pytest.raises(UserError, match="needs no names"):
            mx.select(small_path, "op=MatMul", "layer-ann", output="a.onnx", named="b.onnx")
        with pytest.raises(UnknownName, match="ort-exclud"):
            mx.select(small_path, "op=MatMul", "ort-exclud")
        with pytest.raises(FileUnreadable):
            mx.select(sidecar_path(small_path), "op=MatMul")


class TestOnnxRuntime:
    def test_it_takes_the_annotated_file_and_the_option(self, small_path: Path, tmp_path: Path) -> None:
        ort = pytest.importorskip("onnxruntime")
        target = tmp_path / "annotated.onnx"
        found = mx.select(
            small_path, ["op=MatMul", "op=Relu"], "layer-ann", output=target, device=["cpu"], label=["products", "rest"]
        )
        assert found.text == "cpu(=products, =rest)\n"
        model = onnx.load(target)
        labels = {
            node.name: entry.value
            for node in model.graph.node
            for entry in node.metadata_props
            if entry.key == "layer_ann"
        }
        assert labels == {"node_h0": "products", "node_h1": "products", "node_r0": "rest", "node_r1": "rest"}
        _placed(ort, target, found.text)
        with pytest.raises(Exception, match="Invalid layering config"):
            _placed(ort, target, found.text.replace("(", ""))  # it does read the option
        assert mx.load(target).nodes.keys() == mx.load(small_path).nodes.keys()

    @pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
    def test_its_quantizer_leaves_these_nodes_in_float_and_no_others(
        self, exports: Exports, exporter: str, tmp_path: Path
    ) -> None:
        quantization = pytest.importorskip("onnxruntime.quantization")
        path, target = exports("bert", exporter).path, tmp_path / "int8.onnx"
        model = onnx.load(path)
        stored = {tensor.name for tensor in model.graph.initializer}
        kept = [value for value in model.graph.value_info if value.name not in stored]
        del model.graph.value_info[:]
        model.graph.value_info.extend(kept)  # dynamo states shapes of weights, which this quantizer cannot bear

        def products(names: list[str]) -> set[str]:
            quantization.quantize_dynamic(model, target, nodes_to_exclude=names)
            there = {
                node.name.removesuffix("_MatMul") for node in onnx.load(target).graph.node if node.op_type == "MatMul"
            }
            return there & {node.name for node in model.graph.node}

        logging.disable()
        try:
            for query in ("role=attention.*", "layer=1 & op=MatMul", "within=*Pooler"):
                found = mx.select(path, query, "ort-exclude")
                float_now = products(json.loads(found.text)) - products([])
                wanted = {entry.name for entry in found.nodes if entry.op_type in ("MatMul", "Gemm")}
                assert float_now, query
                assert float_now == wanted - products([])
        finally:
            logging.disable(logging.NOTSET)


def _placed(ort: Any, path: Path, settings: str) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.layer_assignment_settings", settings)
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
