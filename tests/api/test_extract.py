"""Files that are cut out of real exports equal the PyTorch module, and stand alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tests.architectures import build
from tests.conftest import Exports
from tests.nets import Branching, ConstantTable, FoldedNorm, Functional, Repeated, Twins, perturbed

import modelexport as mx
from modelexport.errors import CutImpossible, FileUnwritable, QueryInvalid, RecordMissing, UnknownName, UserError
from modelexport.graph.embed import CUT_KEY
from modelexport.record.extraction import Feed

EXPORTERS = ("dynamo", "torchscript")


def exported(net: torch.nn.Module, inputs: tuple[torch.Tensor, ...], path: Path, exporter: str = "dynamo") -> Path:
    return mx.export(net, path, inputs=inputs, exporter=exporter, no_check=True).path


def ensure_sound(found: mx.Extraction) -> None:
    """It equals the module, is valid for ONNX, and its record is valid for us."""
    assert found.check is not None
    assert found.check.ok, found.check
    assert found.check.max_abs <= 1e-4
    onnx.checker.check_model(str(found.path), full_check=True)
    assert mx.validate(found.path, check_consistency=True).ok


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("bert", "encoder.layer.0.attention"),
        ("bert", "encoder.layer.1"),
        ("bert", "encoder.layer"),
        ("bert", "embeddings.dropout"),
        ("albert", "encoder.albert_layer_groups.0.albert_layers.0#2"),
    ],
)
def test_a_module_of_a_real_model(exports: Exports, exporter: str, name: str, module: str, tmp_path: Path) -> None:
    source = exports(name, exporter).path
    found = mx.extract(source, module, tmp_path / "part.onnx", model=build(name))
    ensure_sound(found)
    assert found.check is not None
    assert Feed.GIVEN in found.check.fed.values()
    assert found.path.stat().st_size < source.stat().st_size


def test_the_record_begins_with_the_module(bert: Path, tmp_path: Path) -> None:
    path = mx.extract(bert, "encoder.layer.0.attention", tmp_path / "part.onnx").path
    record = mx.load(path)
    assert record.hierarchy.modules[""].class_name == "BertAttention"
    assert {record.tag(entry.attribution).split("/")[1] for entry in record.nodes.values()} == {"BertAttention"}
    queries = mx.query(path, "module=self.query")
    assert [entry.op_type for entry in queries] == ["MatMul", "Add"]
    assert [name for name in record.initializers if name.startswith("self.query")] == []
    assert "encoder.layer.0.attention.self.query.bias" in record.initializers


def test_the_file_says_what_it_was_cut_from(bert: Path, tmp_path: Path) -> None:
    found = mx.extract(bert, "encoder.layer.0.attention", tmp_path / "part.onnx")
    keys = {one.key: one.value for one in onnx.load(found.path).metadata_props}
    told = json.loads(keys[CUT_KEY])
    assert (told["file"], told["modules"]) == (bert.name, ["encoder.layer.0.attention"])
    assert set(told["values"]) == {end.name for end in (*found.inputs, *found.outputs)}


def test_a_query(bert: Path, tmp_path: Path) -> None:
    found = mx.extract(bert, "role=attention.* & layer=0", tmp_path / "part.onnx", model=build("bert"))
    ensure_sound(found)
    asked = {entry.key for entry in mx.query(bert, "role=attention.* & layer=0")}
    assert asked <= set(found.provenance.nodes)


def test_what_a_query_does_not_find(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no node matches"):
        mx.extract(bert, "class=BertPooler & layer=0", tmp_path / "part.onnx")
    with pytest.raises(QueryInvalid):
        mx.extract(bert, "role=", tmp_path / "part.onnx")
    assert not list(tmp_path.iterdir())


def test_all_calls_of_a_repeated_module(tmp_path: Path) -> None:
    net, x = perturbed(Repeated()), torch.randn(2, 4)
    source = exported(net, (x,), tmp_path / "whole.onnx")
    for call in mx.load(source).hierarchy.calls:
        ensure_sound(mx.extract(source, str(call.call), tmp_path / "part.onnx", model=net, inputs=(x,)))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_fused_modules_say_so_and_name_what_can_be_cut(exporter: str, tmp_path: Path) -> None:
    net, x = perturbed(FoldedNorm()).eval(), torch.randn(2, 3, 12, 12)
    source = exported(net, (x,), tmp_path / "whole.onnx", exporter)
    with pytest.raises(CutImpossible, match="conv was fused with bn") as refused:
        mx.extract(source, "conv", tmp_path / "part.onnx")
    assert refused.value.instead == ("conv", "bn")
    ensure_sound(mx.extract(source, refused.value.instead, tmp_path / "part.onnx", model=net, inputs=(x,)))


def test_modules_that_share_a_node_both_have_it(tmp_path: Path) -> None:
    net, x = Twins(), torch.randn(2, 4)
    source = exported(net, (x,), tmp_path / "whole.onnx")
    for module in ("left", "right"):
        ensure_sound(mx.extract(source, module, tmp_path / "part.onnx", model=net, inputs=(x,)))


def test_a_module_in_a_branch(tmp_path: Path) -> None:
    net, x = perturbed(Branching()), torch.ones(2, 4)
    source = exported(net, (x,), tmp_path / "whole.onnx")
    found = mx.extract(source, "yes", tmp_path / "part.onnx", model=net, inputs=(x,))
    ensure_sound(found)
    assert list(found.provenance.hierarchy.modules) == [""]


def test_a_tied_weight_comes_along(tmp_path: Path) -> None:
    net, ids = perturbed(Functional()), torch.tensor([[1, 2, 3]])
    source = exported(net, (ids,), tmp_path / "whole.onnx")
    found = mx.extract(source, "table", tmp_path / "part.onnx", model=net, inputs=(ids,))
    ensure_sound(found)
    assert found.weights == 160


def test_a_module_that_became_a_constant(tmp_path: Path) -> None:
    net, x = perturbed(ConstantTable()), torch.randn(2, 5, 4)
    source = exported(net, (x,), tmp_path / "whole.onnx")
    found = mx.extract(source, "position", tmp_path / "part.onnx", model=net, inputs=(x,))
    ensure_sound(found)


def test_weights_beside_a_file_are_only_its_own(bert: Path, tmp_path: Path) -> None:
    model = onnx.load(bert)
    onnx.save(model, tmp_path / "whole.onnx", save_as_external_data=True, location="whole.bin", size_threshold=0)
    found = mx.extract(tmp_path / "whole.onnx", "encoder.layer.0.output", tmp_path / "part.onnx", model=build("bert"))
    ensure_sound(found)
    assert sum(path.stat().st_size for path in found.files) < (tmp_path / "whole.bin").stat().st_size


def test_large_weights_stay_beside(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelexport.api.extract._INSIDE", 100)
    onnx.save(onnx.load(bert), tmp_path / "whole.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    found = mx.extract(tmp_path / "whole.onnx", "pooler", tmp_path / "part.onnx", model=build("bert"))
    ensure_sound(found)
    assert tmp_path / "part.onnx.data" in found.files


def test_a_wrong_weight_is_found(bert: Path, tmp_path: Path) -> None:
    net = build("bert")
    with torch.no_grad():
        net.encoder.layer[0].attention.self.query.weight.mul_(5)  # type: ignore[union-attr, index]
    found = mx.extract(bert, "encoder.layer.0.attention", tmp_path / "part.onnx", model=net)
    assert found.check is not None
    assert not found.ok
    assert found.check.max_abs > 1e-3


def test_bad_requests_write_nothing(bert: Path, tmp_path: Path) -> None:
    target = tmp_path / "part.onnx"
    with pytest.raises(UnknownName, match=r"unknown module 'encoder\.layr\.0'"):
        mx.extract(bert, "encoder.layr.0", target)
    with pytest.raises(UserError, match="there is no call pooler#1"):
        mx.extract(bert, "pooler#1", target)
    with pytest.raises(UserError, match="nothing was asked for"):
        mx.extract(bert, [], target)
    with pytest.raises(UserError, match="no tolerance"):
        mx.extract(bert, "pooler", target, tolerance=float("nan"))
    with pytest.raises(FileUnwritable, match="would be lost"):
        mx.extract(bert, "pooler", bert)
    assert not list(tmp_path.iterdir())


def test_a_file_without_a_record(bert: Path, tmp_path: Path) -> None:
    model = onnx.load(bert)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "plain.onnx")
    with pytest.raises(RecordMissing):
        mx.extract(tmp_path / "plain.onnx", "pooler", tmp_path / "part.onnx")


def test_a_part_of_a_part(bert: Path, tmp_path: Path) -> None:
    """A file that was cut out can be cut again, and gives the same as one cut."""
    mx.extract(bert, "encoder.layer.0", tmp_path / "layer.onnx")
    twice = mx.extract(tmp_path / "layer.onnx", "attention.output", tmp_path / "twice.onnx")
    once = mx.extract(bert, "encoder.layer.0.attention.output", tmp_path / "once.onnx")
    assert twice.provenance.hierarchy == once.provenance.hierarchy
    graphs = [onnx.load(path).graph for path in (twice.path, once.path)]
    assert [node.op_type for node in graphs[0].node] == [node.op_type for node in graphs[1].node]
    feed = {end.name: np.random.default_rng(0).random((2, 3, 32), np.float32) for end in once.inputs}
    assert np.array_equal(_run(twice.path, feed), _run(once.path, feed))


def _run(path: Path, feed: dict[str, np.ndarray]) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime")
    found: np.ndarray = runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)[0]
    return found
