"""Law: what is said of a file and itself, or a copy, without looking is what looking would say; and looking is cheap.

`diff` sees that two files are one from their bytes and records. Then no weight is read and no node is paired by search.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import helper, numpy_helper
from tests.support.foldable_graphs import Made, layers, random_graphs, saved
from tests.support.stacks import Save, stack

import modelexport as mx
from modelexport.errors import FileUnreadable
from modelexport.graph import functions
from modelexport.graph.file.metadata import Level
from modelexport.inspect.diff import sides

EQUAL = "modelexport.api.diff._are_equal"


def the_long_way(monkeypatch: pytest.MonkeyPatch, run: Callable[[], mx.Diff]) -> mx.Diff:
    with monkeypatch.context() as patched:
        patched.setattr(EQUAL, lambda *_: False)
        return run()


def assert_same(found: mx.Diff, wanted: mx.Diff) -> None:
    for field in fields(wanted):
        assert getattr(found, field.name) == getattr(wanted, field.name), field.name
    assert found.identical


def tagged(folder: Path) -> Path:
    return saved(layers(3, branch=True), folder / "tagged.onnx")


def untagged(folder: Path) -> Path:
    onnx.save(stack(), folder / "plain.onnx")
    return folder / "plain.onnx"


def hinted(folder: Path) -> Path:
    """Nodes say where they belong, and there is no record."""
    path = saved(layers(3), folder / "tagged.onnx")
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, folder / "hinted.onnx")
    return folder / "hinted.onnx"


def stale(folder: Path) -> Path:
    """The record was made for a graph with a node less."""
    path = saved(layers(3), folder / "tagged.onnx")
    model = onnx.load(path)
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Abs", ["before"], ["y"]))
    onnx.save(model, folder / "stale.onnx")
    return folder / "stale.onnx"


def beside(folder: Path) -> Path:
    """The record is in a sidecar."""
    return saved(layers(3), folder / "beside.onnx", Level.NONE)


FILES = [tagged, untagged, hinted, stale, beside]


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("make", FILES)
def test_a_file_and_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], weights: bool
) -> None:
    path = make(tmp_path)
    found = mx.diff(path, path, weights=weights)
    assert_same(found, the_long_way(monkeypatch, lambda: mx.diff(path, path, weights=weights)))


@pytest.mark.parametrize("make", [tagged, untagged, hinted, stale])
def test_a_file_and_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path]) -> None:
    path, copy = make(tmp_path), tmp_path / "elsewhere" / "copy.onnx"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    monkeypatch.setattr(sides.ConstantStore, "_raw", fail)
    found = mx.diff(path, copy)
    monkeypatch.undo()
    assert (found.left.path, found.right.path) == (str(path), str(copy))
    assert_same(found, the_long_way(monkeypatch, lambda: mx.diff(path, copy)))


def test_a_module_and_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tagged(tmp_path)
    found = mx.diff(path, path, left_module="layers.1")
    assert found.left.module == found.right.module == "layers.1"
    assert_same(found, the_long_way(monkeypatch, lambda: mx.diff(path, path, left_module="layers.1")))


def test_two_modules_of_one_file_are_still_compared(tmp_path: Path) -> None:
    path = tagged(tmp_path)
    found = mx.diff(path, path, left_module="layers.0", right_module="layers.1")
    assert [change.form for _, change in found.weight_changes()]


@settings(deadline=None, max_examples=15)
@given(made=random_graphs())
def test_generated_graphs(made: Made) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = saved(made, Path(folder) / "made.onnx")
        found = mx.diff(path, path)
        assert_same(found, the_long_way(patch, lambda: mx.diff(path, path)))
        assert found.pairs == {key: key for key in found.pairs}


def fail(*_: object) -> None:
    raise AssertionError("nothing of this is needed")


def test_no_weight_is_read_and_no_node_is_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.onnx"
    model = stack()
    model.graph.initializer.append(numpy_helper.from_array(np.ones((256, 256), np.float32), "large"))
    onnx.save(model, path)
    monkeypatch.setattr(sides.ConstantStore, "_raw", fail)
    monkeypatch.setattr("modelexport.api.diff.find_differences", fail)
    assert mx.diff(path, path).identical


def test_a_copy_with_another_weight_of_equal_size_is_no_copy(save: Save) -> None:
    model = stack()
    one = save(model)
    array = numpy_helper.to_array(model.graph.initializer[0]).copy()
    array[-1, -1] += 1
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, model.graph.initializer[0].name))
    other = save(model)
    assert one.stat().st_size == other.stat().st_size
    [(_, change)] = mx.diff(one, other).weight_changes()
    assert change.changed == 1


def test_copies_that_read_other_weights_are_no_copies(tmp_path: Path) -> None:
    """Two graphs of equal bytes, each with a file of weights beside it."""
    paths = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        model = stack()
        array = numpy_helper.to_array(model.graph.initializer[0]) + number
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, model.graph.initializer[0].name))
        paths.append(folder / "model.onnx")
        onnx.save(model, paths[-1], save_as_external_data=True, location="weights", size_threshold=0)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [change.changed for _, change in mx.diff(*paths).weight_changes()] == [64]


def test_copies_with_other_records_beside_them_are_compared(tmp_path: Path) -> None:
    """Equal bytes, but the sidecars call the layers by other classes."""
    made = layers(2)
    one = saved(made, tmp_path / "one.onnx", Level.NONE)
    renamed = {path: "Block" if name == "Layer" else name for path, name in made.classes.items()}
    other = saved(Made(made.proto, renamed, made.owners), tmp_path / "other.onnx", Level.NONE)
    assert one.read_bytes() == other.read_bytes()
    found = mx.diff(one, other)
    assert {module.classes for module in found.modules} == {("Layer", "Block")}


def with_functions(operator: str) -> onnx.ModelProto:
    """Two calls of a function, and a node that may be another one."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    body = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Exp", ["b"], ["c"])]
    function = helper.make_function("mine", "Block", ["a"], ["c"], body, opsets[:1])
    nodes = [
        helper.make_node("Block", ["x"], ["first"], domain="mine"),
        helper.make_node("Block", ["first"], ["second"], domain="mine"),
        helper.make_node(operator, ["second"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)


@pytest.fixture
def inlined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every graph that is inlined, and every model whose attributes are resolved, while a test runs."""
    seen: list[Any] = []
    for kind, name in ((functions._Inliner, "inline"), (functions.InlinedModel, "__init__")):
        monkeypatch.setattr(kind, name, _counted(getattr(kind, name), seen))
    return seen


def _counted(original: Callable[..., Any], seen: list[Any]) -> Callable[..., Any]:
    def count_call(self: object, *arguments: object) -> Any:
        seen.append(type(self))
        return original(self, *arguments)

    return count_call


ONCE_EACH = [functions._Inliner, functions.InlinedModel] * 2


def test_each_graph_is_inlined_once(save: Save, inlined: list[Any]) -> None:
    """Not again for lineage, which is asked where nodes have no partner, nor for the cost of what differs."""
    found = mx.diff(save(with_functions("Tanh")), save(with_functions("Softmax")), cost=True)
    assert not found.identical
    assert sorted(inlined, key=str) == sorted(ONCE_EACH, key=str)


@pytest.mark.parametrize("operators", [("", "Abs"), ("Neg", "Abs"), ("Neg", "")])
def test_each_graph_is_inlined_once_with_a_record(
    tmp_path: Path, inlined: list[Any], operators: tuple[str, str]
) -> None:
    """Also a graph that got another operator at its end after its record was made."""
    paths = []
    for number, operator in enumerate(operators):
        path = tmp_path / f"{number}.onnx"
        mx.fold(saved(layers(3), tmp_path / "flat.onnx"), path)
        model = onnx.load(path)
        assert model.functions
        if operator:
            model.graph.node[-1].output[0] = "before"
            model.graph.node.append(helper.make_node(operator, ["before"], ["y"]))
            onnx.save(model, path)
        paths.append(path)
    inlined.clear()
    assert not mx.diff(*paths, cost=True).identical
    assert sorted(inlined, key=str) == sorted(ONCE_EACH, key=str)


def test_weights_that_are_gone_are_not_said_to_be_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(stack(), path, save_as_external_data=True, location="weights", size_threshold=0)
    shutil.copy(path, tmp_path / "copy.onnx")
    assert mx.diff(path, path).weights_read
    (tmp_path / "weights").unlink()
    for other in (path, tmp_path / "copy.onnx"):
        with pytest.raises(FileUnreadable, match="cannot read") as refused:
            mx.diff(path, other)
        with pytest.raises(FileUnreadable) as wanted:
            the_long_way(monkeypatch, lambda: mx.diff(path, tmp_path / "copy.onnx"))
        assert str(refused.value) == str(wanted.value)
        assert mx.diff(path, other, weights=False).identical
