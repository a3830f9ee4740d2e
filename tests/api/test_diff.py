"""Two files of one model: exporters, tools, layers, planted changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tests.support.exports import Exports
from tests.support.planted_changes import KINDS, is_told, plant
from tests.support.scrambling import scrambled

import modelexport as mx
from modelexport.graph.file.metadata import PREFIX, strip_metadata
from modelexport.record.results.diff import Change, Source, WeightForm

EXPORTERS = ("dynamo", "torchscript")


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("notes", [True, False])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_model_under_other_names(exports: Exports, tmp_path: Path, name: str, exporter: str, notes: bool) -> None:
    path = exports(name, exporter).path
    onnx.save(scrambled(onnx.load(path), notes=notes), tmp_path / "other.onnx")
    for left, right in ((path, tmp_path / "other.onnx"), (tmp_path / "other.onnx", path)):
        found = mx.diff(left, right)
        assert found.identical
        assert Source.RECORD in (found.left.source, found.right.source)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_planted_change_is_told_where_it_is(
    exports: Exports, tmp_path: Path, name: str, exporter: str, what: str
) -> None:
    path = exports(name, exporter).path
    record = mx.load(path)
    for seed in range(2):
        planted = plant(what, onnx.load(path), record, seed)
        if planted is None:
            assert what == "layer"  # of two layers, the first gets something else than the second, and the last returns
            pytest.skip("no layer can be taken out")
        for place, model in enumerate((planted.model, scrambled(planted.model, seed, notes=bool(seed)))):
            target = tmp_path / f"{seed}{place}.onnx"
            onnx.save(model, target)
            assert is_told(planted, mx.diff(path, target)) == ""


def test_exporters_agree_on_modules(exports: Exports) -> None:
    found = mx.diff(exports("bert", "dynamo").path, exports("bert", "torchscript").path)
    assert not found.identical
    assert all(module.change is Change.CHANGED and not module.class_changed for module in found.modules)
    assert found.aligned["encoder.layer.1.attention.self.query"] == "encoder.layer.1.attention.self.query"
    assert not [one for one in found.renamed if one.what == "module"]
    assert found.same_weights == 1.0


def test_weights_that_one_exporter_stores_once(tmp_path: Path) -> None:
    """Norms as they come hold the same; TorchScript then keeps one of them and gives it to all."""
    torch.manual_seed(0)
    layers = [(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)) for _ in range(2)]
    net = torch.nn.Sequential(*(module for layer in layers for module in layer)).eval()
    paths = [
        mx.export(net, tmp_path / f"{exporter}.onnx", inputs=torch.randn(3, 16), exporter=exporter, no_check=True).path
        for exporter in EXPORTERS
    ]
    for found in (mx.diff(*paths), mx.diff(*reversed(paths))):
        assert {one.path for one in found.modules} >= {"3"}
        assert all(one.change is Change.CHANGED for one in found.modules)


def test_a_quantized_file(bert: Path, tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    mx.run_tool(bert, "int8", target, check=False)
    found = mx.diff(bert, target)
    query = next(one for one in found.modules if one.path == "encoder.layer.0.attention.self.query")
    [weight] = query.weights
    assert weight.form is WeightForm.QUANTIZED
    assert weight.relative is not None
    assert weight.relative < 0.02
    quantized = [one for _, one in found.weight_changes() if one.form is WeightForm.QUANTIZED]
    # The pooler's is square, and was turned.
    assert all(one.relative is not None and one.relative < 0.05 for one in quantized)
    assert [[node.op_type for node in change.left] for change in query.changes] == [["MatMul"]]
    assert query.cost is not None
    before, after = query.cost.amounts["weight_bytes"]
    assert after.value < before.value  # type: ignore[operator] # weights have a size


def test_two_layers_of_one_model(bert: Path) -> None:
    assert mx.diff(bert, bert, left_module="(model)").left.module == ""
    same = mx.diff(bert, bert, left_module="encoder.layer.1")
    assert same.identical
    found = mx.diff(bert, bert, left_module="encoder.layer.0", right_module="encoder.layer.1")
    assert not list(found.node_changes())
    assert not found.renamed
    assert {one.form for _, one in found.weight_changes()} == {WeightForm.VALUES}
    assert found.aligned["encoder.layer.0.output"] == "encoder.layer.1.output"
    assert found.left.nodes == found.right.nodes


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_two_calls_of_one_module(tmp_path: Path, exporter: str) -> None:
    block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), block, block, block).eval()
    path = mx.export(net, tmp_path / "net.onnx", inputs=torch.randn(3, 4), exporter=exporter, no_check=True).path
    for left, right in (("1#0", "1#1"), ("1#1", "1#2"), ("1.0#0", "1.0#2")):
        assert mx.diff(path, path, left_module=left, right_module=right).identical


def test_a_module_that_does_not_exist(bert: Path) -> None:
    with pytest.raises(mx.UserError, match=r"unknown module 'encoder.layer.9'"):
        mx.diff(bert, bert, left_module="encoder.layer.9")


def test_a_layer_that_is_gone_and_numbered_anew(bert: Path, tmp_path: Path) -> None:
    """The last layers of a longer model keep their weights under smaller numbers."""
    import transformers

    def model(layers: int) -> torch.nn.Module:
        config = transformers.BertConfig(
            hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=24, vocab_size=40
        )
        made: torch.nn.Module = transformers.BertModel._from_config(config)  # type: ignore[no-untyped-call]
        return made.eval()

    whole, short = model(4), model(3)
    state = dict(whole.state_dict())
    kept = {}
    for name, value in state.items():
        parts = name.split(".")
        if name.startswith("encoder.layer."):
            number = int(parts[2])
            if number == 1:
                continue
            parts[2] = str(number - (number > 1))
        kept[".".join(parts)] = value
    short.load_state_dict(kept)
    paths = [
        mx.export(one, tmp_path / f"{name}.onnx", no_check=True).path
        for name, one in (("whole", whole), ("short", short))
    ]
    found = mx.diff(*paths)
    assert [(one.change, one.left) for one in found.modules] == [(Change.REMOVED, "encoder.layer.1")]
    assert ("module", "encoder.layer.2", "encoder.layer.1") in {
        (one.what, one.left, one.right) for one in found.renamed
    }
    assert found.aligned["encoder.layer.3.attention.self.query"] == "encoder.layer.2.attention.self.query"
    backwards = mx.diff(*reversed(paths))
    assert [(one.change, one.right) for one in backwards.modules] == [(Change.ADDED, "encoder.layer.1")]


def test_files_without_a_record(bert: Path, tmp_path: Path) -> None:
    plain = onnx.load(bert)
    strip_metadata(plain, (PREFIX,), ())
    for name in ("a.onnx", "b.onnx"):
        onnx.save(scrambled(plain), tmp_path / name)
    found = mx.diff(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert found.identical
    assert found.left.source is not Source.RECORD
    assert any("record" in note for note in found.notes)
    assert mx.diff(bert, tmp_path / "b.onnx").right.source is Source.OTHER


def test_models_that_have_nothing_in_common(exports: Exports, bert: Path) -> None:
    with pytest.raises(mx.UserError, match="little in common"):
        mx.diff(bert, exports("gpt2", "dynamo").path)


def test_a_folded_file_is_what_it_was(bert: Path, tmp_path: Path) -> None:
    folded = tmp_path / "folded.onnx"
    mx.fold(bert, folded)
    assert mx.diff(bert, folded).identical
    assert mx.diff(folded, bert, left_module="encoder.layer.1").identical
    found = mx.diff(folded, folded, left_module="encoder.layer.0", right_module="encoder.layer.1")
    flat = mx.diff(bert, bert, left_module="encoder.layer.0", right_module="encoder.layer.1")
    assert found.left.nodes == flat.left.nodes
    assert [(one.left, one.right, len(one.weights)) for one in found.modules] == [
        (one.left, one.right, len(one.weights)) for one in flat.modules
    ]


def test_a_part_and_the_module_that_it_was_cut_from(bert: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.onnx"
    mx.extract(bert, "encoder.layer.0.output", part)
    found = mx.diff(part, bert, left_module="", right_module="encoder.layer.0.output")
    assert found.identical
    assert found.aligned[""] == "encoder.layer.0.output"


def test_a_deeper_model_with_other_weights(tmp_path: Path) -> None:
    """Names tell which layers are the same, where weights do not."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act, self.norm = torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.norm(x + self.act(self.fc(x)))
            return found

    paths = []
    for depth in (3, 5):
        torch.manual_seed(depth)
        model = torch.nn.Sequential(*(Block() for _ in range(depth))).eval()
        path = tmp_path / f"{depth}.onnx"
        mx.export(model, path, inputs=(torch.randn(2, 8),), exporter="torchscript", no_check=True)
        paths.append(path)
    found = mx.diff(*paths)
    assert {one.right for one in found.modules if one.change is Change.ADDED} == {"3", "4"}
    assert {one.left for one in found.modules if one.change is Change.CHANGED} == {"0.fc", "1.fc", "2.fc"}
    assert not list(found.node_changes())
    assert {one.left for one in mx.diff(*reversed(paths)).modules if one.change is Change.REMOVED} == {"3", "4"}


@pytest.mark.parametrize("as_nodes", [False, True])
def test_weights_that_took_normalizations_in(as_nodes: bool, tmp_path: Path) -> None:
    """No weight of a Conv is equal then, and no Conv reads what it did; lineage tells which is which."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[TensorProto] = []
    value = "x"
    for number in range(6):
        names = [f"{kind}{number}" for kind in ("w", "scale", "bias", "mean", "variance")]
        arrays = [random.uniform(0.5, 1, shape).astype(np.float32) for shape in ([4, 4, 1, 1], [4], [4], [4], [4])]
        weights += [numpy_helper.from_array(array, name) for array, name in zip(arrays, names, strict=True)]
        nodes += [
            helper.make_node("Conv", [value, names[0]], [f"c{number}"]),
            helper.make_node("BatchNormalization", [f"c{number}", *names[1:]], [f"n{number}"]),
            helper.make_node("Erf", [f"n{number}"], [f"e{number}"]),
        ]
        value = f"e{number}"
    if as_nodes:
        nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in weights] + nodes
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 8, 8]) for name in ("x", value))
    graph = helper.make_graph(nodes, "g", [x], [y], [] if as_nodes else weights)
    source = tmp_path / "a.onnx"
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    source.write_bytes(model.SerializeToString())
    mx.run_tool(source, "ort:extended", tmp_path / "b.onnx")
    found = mx.diff(source, tmp_path / "b.onnx")
    assert found.same_weights == 0
    assert {f"e{number}" for number in range(6)} <= found.pairs.keys()
