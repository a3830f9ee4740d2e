from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
from onnx import helper
from tests.support.small_file import SmallFile, credited, small_hierarchy

from modelexport.api.read import compare
from modelexport.inspect.compare import CountPair, ModuleDifference


def only(differences: tuple[ModuleDifference, ...]) -> ModuleDifference:
    (difference,) = differences
    return difference


def test_a_file_equals_itself(small_path: Path) -> None:
    assert compare(small_path, small_path).identical


def test_no_weight_is_read(small_path: Path, tmp_path: Path) -> None:
    model = onnx.load(small_path)
    path = tmp_path / "b.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="b.data", size_threshold=0)
    (tmp_path / "b.data").unlink()
    assert compare(path, path).identical


def test_names_and_metadata_are_no_difference(small: SmallFile, small_path: Path, tmp_path: Path) -> None:
    assert compare(small_path, replace(small, names={"h0": "other"}).write(tmp_path / "b.onnx")).identical


def test_an_operator_that_was_replaced(small_path: Path, tmp_path: Path) -> None:
    model = onnx.load(small_path)
    model.graph.node[2].op_type = "Sigmoid"
    onnx.save(model, tmp_path / "b.onnx")
    difference = only(compare(small_path, tmp_path / "b.onnx").differences)
    assert difference.path == "layers.0"
    assert difference.operators == {"Relu": CountPair(1, 0), "Sigmoid": CountPair(0, 1)}
    assert difference.nodes == CountPair(1, 1)


def test_a_node_that_moved_between_modules(small: SmallFile, small_path: Path, tmp_path: Path) -> None:
    moved = small.but(r0=credited("")).write(tmp_path / "b.onnx")
    differences = {found.path: found for found in compare(small_path, moved).differences}
    assert differences[""].operators == {"Relu": CountPair(0, 1)}
    assert differences["layers.0"].operators == {"Relu": CountPair(1, 0)}


def test_an_edge_that_was_changed(small_path: Path, tmp_path: Path) -> None:
    model = onnx.load(small_path)
    model.graph.node[5].input[1] = "r1"
    onnx.save(model, tmp_path / "b.onnx")
    difference = only(compare(small_path, tmp_path / "b.onnx").differences)
    assert (difference.path, difference.changed, difference.operators) == ("", ("y",), {})


def test_weights_of_another_size(small_path: Path, tmp_path: Path) -> None:
    model = onnx.load(small_path)
    model.graph.initializer[0].CopyFrom(helper.make_tensor("emb.weight", 1, [12, 4], [0.0] * 48))
    onnx.save(model, tmp_path / "b.onnx")
    difference = only(compare(small_path, tmp_path / "b.onnx").differences)
    assert (difference.path, difference.parameters, difference.bytes) == ("emb", CountPair(40, 48), CountPair(160, 192))


def test_a_module_only_in_one_file(small: SmallFile, small_path: Path, tmp_path: Path) -> None:
    other = replace(small, hierarchy=small_hierarchy(without="drop")).write(tmp_path / "b.onnx")
    assert [module.path for module in compare(small_path, other).only_a] == ["drop"]
    assert [module.path for module in compare(other, small_path).only_b] == ["drop"]


def test_another_output(small_path: Path, tmp_path: Path) -> None:
    model = onnx.load(small_path)
    model.graph.output.append(helper.make_tensor_value_info("r0", 1, [2, 4]))
    onnx.save(model, tmp_path / "b.onnx")
    comparison = compare(small_path, tmp_path / "b.onnx")
    assert (comparison.outputs, comparison.identical) == (("+r0",), False)
