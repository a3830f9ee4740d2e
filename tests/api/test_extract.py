"""Files that are cut out of real exports equal the PyTorch module, and stand alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tests.support.architectures import build
from tests.support.exports import Exports
from tests.support.nets import Branching, ConstantTable, FoldedNorm, Functional, Repeated, Twins, perturbed

import modelexport as mx
from modelexport.api.environment import Clock
from modelexport.api.extract import write_part
from modelexport.api.extract_check import check_extracted
from modelexport.errors import CutImpossible, FileUnwritable, QueryInvalid, UnknownName, UserError
from modelexport.graph.file.metadata import CUT_KEY
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Attribution, Confidence
from modelexport.record.results.files import Feed
from modelexport.show.text.written_files import extraction_lines
from modelexport.transform.extract.cut import Cutter
from modelexport.transform.extract.selection import select_modules

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


def test_nodes_of_a_module_need_not_return_what_it_returns(bert: Path, tmp_path: Path) -> None:
    found = mx.extract(bert, "op=Softmax & layer=0", tmp_path / "part.onnx", model=build("bert"))
    assert found.check is not None
    assert found.ok
    assert {one.against for one in found.check.outputs} == {"file"}


class Between(torch.nn.Module):
    """What lies between two modules reads an input of the model, which comes near to what one of them is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.last = (torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.last(self.b(self.a(self.first(x).relu()) + y))


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_what_lies_between_modules_may_read_an_input_of_the_model(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, inputs = Between().eval(), (torch.randn(2, 4, 16), torch.randn(2, 4, 16))
    path = exported(net, inputs, tmp_path / "net.onnx", exporter)
    found = mx.extract(path, ["a", "b"], tmp_path / "part.onnx", model=net, inputs=inputs)
    assert found.check is not None
    assert found.check.ok
    assert set(found.check.fed.values()) == {Feed.GIVEN, Feed.RUN}


class BatchFirst(torch.nn.Module):
    """Between the two, the graph has time before the batch: what one transposes, the other transposes back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.LSTM(6, 5, batch_first=True)
        self.last = torch.nn.GRU(5, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.last(self.first(x)[0])[0]
        return states


def test_a_border_that_has_the_axes_in_another_order(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, inputs = BatchFirst().eval(), (torch.randn(2, 7, 6),)
    path = exported(net, inputs, tmp_path / "net.onnx")
    parts = {
        name: mx.extract(path, name, tmp_path / f"{name}.onnx", model=net, inputs=inputs) for name in ("first", "last")
    }
    for found in parts.values():
        ensure_sound(found)
        assert found.check is not None
        assert set(found.check.fed.values()) == {Feed.GIVEN}
    orders = [[output.reordered for output in found.check.outputs] for found in parts.values() if found.check]
    assert orders == [[True], [False]]
    with torch.no_grad():
        net.first.get_parameter("weight_ih_l0")[0] *= 1.5
    wrong = mx.extract(path, "first", tmp_path / "wrong.onnx", model=net, inputs=inputs).check
    assert wrong is not None
    assert not wrong.ok


class Either(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.yes, self.no = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taken: torch.Tensor = torch.cond(x[0, 0] > 0, lambda y: self.yes(y) * 2, lambda y: self.no(y) + 1, (x,))
        return taken


def test_a_branch_that_the_inputs_do_not_take_is_not_compared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, inputs = Either().eval(), (torch.rand(2, 8) + 0.1,)
    others = (-inputs[0],)
    path = exported(net, others, tmp_path / "net.onnx")
    ensure_sound(mx.extract(path, "no", tmp_path / "taken.onnx", model=net, inputs=others))
    found = mx.extract(path, "no", tmp_path / "no.onnx", model=net, inputs=inputs)
    assert found.check is not None
    assert (found.check.ok, found.check.runs, found.check.outputs) == (False, False, ())
    told = [str(line) for line in extraction_lines(found)]
    assert told[-1] == "not compared: the module does not run for these inputs; give inputs that take it"


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
        part = mx.extract(source, module, tmp_path / "part.onnx", model=net, inputs=(x,))
        ensure_sound(part)
        assert part.shared > 0


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


class Heads(torch.nn.Module):
    """Returns the results of two modules."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.both = Both()
        self.last = torch.nn.Linear(4, 4)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = self.both(x)
        return self.last(first), second


class Both(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x).tanh(), self.second(x)


@pytest.mark.parametrize("weight", ["both.first.weight", "both.second.weight"])
@pytest.mark.parametrize("factor", [1.0005, 10, -1])
def test_a_wrong_weight_behind_one_of_two_outputs_is_found(weight: str, factor: float, tmp_path: Path) -> None:
    net, x = Heads(), torch.randn(5, 4)
    source = exported(net, (x,), tmp_path / "whole.onnx")
    ensure_sound(mx.extract(source, "both", tmp_path / "part.onnx", model=net, inputs=(x,)))
    with torch.no_grad():
        net.get_parameter(weight).mul_(factor)
    assert not mx.extract(source, "both", tmp_path / "part.onnx", model=net, inputs=(x,)).ok


def test_a_result_that_was_left_outside_is_found(tmp_path: Path) -> None:
    net, x = Heads(), torch.randn(5, 4)
    opened = open_tagged(exported(net, (x,), tmp_path / "whole.onnx"))
    nodes = dict(opened.provenance.nodes)
    last = next(key for key, entry in nodes.items() if entry.op_type == "Tanh")
    root = ModuleCall("")
    nodes[last] = replace(nodes[last], attribution=Attribution((root,), root, Confidence.EXACT))
    cutter = Cutter(opened, replace(opened.provenance, nodes=nodes))
    cut = cutter.cut(select_modules(cutter.provenance, ["both"]))
    found = write_part(opened, cutter, cut, tmp_path / "part.onnx")
    check = check_extracted(opened, cut, found, ModelSource(net, (x,)), None, Clock(None))
    assert {one.against for one in check.outputs} == {"returned", "run"}
    assert all(one.difference.agrees for one in check.outputs)
    assert check.lost == 1
    assert not check.ok


def test_a_coarse_type_is_compared_as_coarsely_unless_a_tolerance_was_given(tmp_path: Path) -> None:
    net, x = perturbed(Heads(torch.float16)), (torch.randn(64, 4) * 9).half()
    source = exported(net, (x,), tmp_path / "whole.onnx")
    assert mx.extract(source, "both", tmp_path / "part.onnx", model=net, inputs=(x,)).ok
    with torch.no_grad():
        net.get_parameter("both.second.weight").mul_(1.5)
    assert not mx.extract(source, "both", tmp_path / "part.onnx", model=net, inputs=(x,)).ok


class Doubtful(torch.nn.Module):
    """Hands on tensors of several shapes, none of which an operator in the file tells."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.Linear(4, 4)
        self.flat, self.folded = torch.nn.Dropout(), torch.nn.Dropout()
        self.after = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x).reshape(2, 3, 2, 2).transpose(1, 2).neg()
        flat: torch.Tensor = self.flat(h.transpose(1, 2).reshape(6, 4))
        result: torch.Tensor = self.after(flat.reshape(2, 3, 4)) + self.folded(self.before.weight)[0]
        return result


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("module", ["flat", "folded"])
def test_what_went_through_a_module_without_nodes(module: str, exporter: str, tmp_path: Path) -> None:
    net, x = perturbed(Doubtful()), torch.randn(2, 3, 4)
    source = exported(net, (x,), tmp_path / "whole.onnx", exporter)
    ensure_sound(mx.extract(source, module, tmp_path / "part.onnx", model=net, inputs=(x,)))


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


def test_a_file_without_a_record_is_asked_for_its_modules(bert: Path, tmp_path: Path) -> None:
    model = onnx.load(bert)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "plain.onnx")
    extraction = mx.extract(tmp_path / "plain.onnx", "pooler", tmp_path / "part.onnx")
    assert extraction.provenance.origin.strategy == "file"
    assert any("no record in" in note for note in extraction.notes)


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
