"""A file that is folded and made flat again is the file that it was, and runs as it did in between."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import pytest
from hypothesis import given, settings
from onnx import helper
from tests.support.foldable_graphs import Made, layers, random_graphs, results, saved

import modelexport as mx
from modelexport.graph.file.metadata import FOLDED_DOMAIN, Level
from modelexport.graph.file.reading import open_model


def check_round_trip(flat: Path, folder: Path) -> mx.FoldResult:
    """Fold, run, flatten: bytes and results are the same."""
    found = mx.fold(flat, folder / "folded.onnx")
    back = mx.flatten(folder / "folded.onnx", folder / "back.onnx")
    assert back.flattening.exact
    assert (folder / "back.onnx").read_bytes() == flat.read_bytes()
    before, after = (path.with_suffix(".hierarchy.json").read_text() for path in (flat, folder / "back.onnx"))
    assert before == after
    onnx.checker.check_model(str(folder / "folded.onnx"), full_check=True)
    for one, other in zip(results(flat), results(folder / "folded.onnx"), strict=True):
        np.testing.assert_array_equal(one, other)
    return found


@settings(max_examples=25)
@given(random_graphs())
def test_any_graph_comes_back_as_it_was(made: Made) -> None:
    with tempfile.TemporaryDirectory() as name:
        check_round_trip(saved(made, Path(name) / "flat.onnx"), Path(name))


def test_layers_that_are_alike_share_one_body(tmp_path: Path) -> None:
    found = check_round_trip(saved(layers(5), tmp_path / "flat.onnx"), tmp_path)
    functions = {one.name: (one.calls, one.nodes) for one in found.folding.functions}
    assert functions == {"Linear": (5, 2), "Layer": (5, 4)}
    folded = open_model(tmp_path / "folded.onnx").proto
    assert [node.op_type for node in folded.graph.node] == ["Layer"] * 5 + ["Tanh"]
    layer = next(one for one in folded.functions if one.name == "Layer")
    assert [node.op_type for node in layer.node] == ["Constant", "Linear", "Add", "Add"]
    assert "fc.weight" in layer.input


def test_control_flow_in_a_layer_gets_what_it_reads_from_outside_as_inputs(tmp_path: Path) -> None:
    found = check_round_trip(saved(layers(3, branch=True), tmp_path / "flat.onnx"), tmp_path)
    assert {one.name: one.calls for one in found.folding.functions} == {"Linear": 3, "Layer": 3}
    layer = next(one for one in open_model(tmp_path / "folded.onnx").proto.functions if one.name == "Layer")
    branch = next(node for node in layer.node if node.op_type == "If")
    body = next(one.g for one in branch.attribute if one.name == "then_branch")
    known = {*layer.input, *(name for node in layer.node for name in node.output)}
    assert set(body.node[0].input) <= known


def test_a_layer_that_does_more_calls_the_body_of_the_others(tmp_path: Path) -> None:
    found = check_round_trip(saved(layers(4, first_differs=True), tmp_path / "flat.onnx"), tmp_path)
    functions = {one.name: (one.calls, one.nodes) for one in found.folding.functions}
    assert functions == {"Linear": (4, 2), "Layer": (4, 4), "Layer_2": (3, 3)}


def test_constants_that_differ_are_given_to_the_function(tmp_path: Path) -> None:
    made = layers(3)
    other = next(node for node in made.proto.graph.node if node.output[0] == "/layers.1/one")
    other.attribute[0].t.raw_data = np.full(3, 7, np.float32).tobytes()
    check_round_trip(saved(made, tmp_path / "flat.onnx"), tmp_path)
    folded = open_model(tmp_path / "folded.onnx").proto
    assert sum(node.op_type == "Constant" for node in folded.graph.node) == 3
    assert [one.calls for one in mx.fold(tmp_path / "flat.onnx", tmp_path / "again.onnx").folding.functions] == [3, 3]


def test_attributes_that_differ_make_another_function(tmp_path: Path) -> None:
    made = layers(4)
    for number in (1, 3):
        moved = next(node for node in made.proto.graph.node if node.output[0] == f"/layers.{number}/moved")
        moved.op_type = "Mul"
    found = check_round_trip(saved(made, tmp_path / "flat.onnx"), tmp_path)
    assert [(one.name, one.calls) for one in found.folding.functions] == [("Linear", 4), ("Layer", 2), ("Layer_2", 2)]


def test_a_value_that_others_read_and_the_graph_returns_is_an_output(tmp_path: Path) -> None:
    made = layers(3)
    made.proto.graph.output.append(helper.make_tensor_value_info("/layers.1/fc/add", 1, [3]))
    found = check_round_trip(saved(made, tmp_path / "flat.onnx"), tmp_path)
    assert [one.calls for one in found.folding.functions] == [3, 3]
    assert all(len(one.output) <= 2 for one in open_model(tmp_path / "folded.onnx").proto.functions)


def test_what_goes_out_and_comes_back_stays_outside(tmp_path: Path) -> None:
    """A node of the model itself between two of a layer: the layer cannot be one call with both of them."""
    made = layers(3)
    for number in range(3):
        owner = dict(made.owners)
        owner[f"/layers.{number}/fc/mul"] = ""
        made = Made(made.proto, made.classes, owner)
        moved = next(node for node in made.proto.graph.node if node.output[0] == f"/layers.{number}/fc/mul")
        negated = helper.make_node("Neg", [moved.input[0]], [f"/layers.{number}/early"], name=f"early{number}")
        moved.input[0] = f"/layers.{number}/early"
        place = list(made.proto.graph.node).index(moved)
        made.proto.graph.node.insert(place, negated)
        made = Made(made.proto, made.classes, {**made.owners, f"/layers.{number}/early": f"layers.{number}"})
    found = check_round_trip(saved(made, tmp_path / "flat.onnx"), tmp_path)
    assert found.folding.outside == {"Layer": 3}
    assert [(one.name, one.calls) for one in found.folding.functions] == [("Layer", 3)]


def test_hostile_class_names_become_identifiers(tmp_path: Path) -> None:
    made = layers(2)
    classes = {path: {"Layer": "<script>9 é", "Linear": "9::"}.get(name, name) for path, name in made.classes.items()}
    found = check_round_trip(saved(Made(made.proto, classes, made.owners), tmp_path / "flat.onnx"), tmp_path)
    assert [one.name for one in found.folding.functions] == ["_9", "script_9"]


def test_functions_of_others_stay_what_they_are(tmp_path: Path) -> None:
    made = layers(3)
    double = helper.make_function(
        "other", "Layer", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    made.proto.functions.append(double)
    made.proto.opset_import.append(helper.make_opsetid("other", 1))
    for node in made.proto.graph.node:
        if node.output[0].endswith("/moved"):
            node.op_type, node.domain = "Layer", "other"
            del node.input[1:]
    check_round_trip(saved(made, tmp_path / "flat.onnx"), tmp_path)
    functions = [(one.domain, one.name) for one in open_model(tmp_path / "folded.onnx").proto.functions]
    assert functions == [("other", "Layer"), (FOLDED_DOMAIN, "Linear"), (FOLDED_DOMAIN, "Layer")]


@pytest.mark.parametrize("level", [Level.LEAN, Level.NONE])
def test_files_with_less_of_a_record_come_back_with_as_much(tmp_path: Path, level: Level) -> None:
    check_round_trip(saved(layers(3), tmp_path / "flat.onnx", level), tmp_path)
    folded = open_model(tmp_path / "folded.onnx").proto
    assert not any(
        entry.key.startswith("pkg.modelexport.") for node in folded.graph.node for entry in node.metadata_props
    )
    assert mx.load(tmp_path / "folded.onnx").origin.graph == open_model(tmp_path / "folded.onnx").graph.fingerprint


def test_nodes_in_another_order_than_they_can_run_come_back_in_it(tmp_path: Path) -> None:
    made = layers(3)
    nodes = list(made.proto.graph.node)[::-1]
    del made.proto.graph.node[:]
    made.proto.graph.node.extend(nodes)
    flat = saved(made, tmp_path / "flat.onnx")
    assert mx.fold(flat, tmp_path / "folded.onnx").folding.after == 4 + 2 + 4
    mx.flatten(tmp_path / "folded.onnx", tmp_path / "back.onnx")
    assert (tmp_path / "back.onnx").read_bytes() == flat.read_bytes()


def test_folding_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    flat = saved(layers(4, branch=True, first_differs=True), tmp_path / "flat.onnx")
    for name in ("one", "two"):
        mx.fold(flat, tmp_path / f"{name}.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_types_of_values_come_back_where_they_were(tmp_path: Path) -> None:
    made = layers(3)
    names = [node.output[0] for node in made.proto.graph.node][::-1]
    for name in (*names[1:4], *names[6:]):
        made.proto.graph.value_info.append(helper.make_tensor_value_info(name, 1, [3], f"{name} is a value"))
    check_round_trip(saved(made, tmp_path / "flat.onnx"), tmp_path)
    linear = next(one for one in open_model(tmp_path / "folded.onnx").proto.functions if one.name == "Linear")
    assert [value.type.tensor_type.elem_type for value in linear.value_info] != []


def test_shapes_in_bodies_may_differ_from_call_to_call(tmp_path: Path) -> None:
    """Exporters name the axes that they do not know, each by a name of its own."""
    made = layers(3, branch=True)
    branches = [node for node in made.proto.graph.node if node.op_type == "If"]
    for number, node in enumerate(branches):
        for attribute in node.attribute:
            attribute.g.output[0].type.tensor_type.shape.dim[0].dim_param = f"axis_{number}"
            inner = attribute.g.node[0].output[0]
            attribute.g.value_info.append(helper.make_tensor_value_info(inner, 1, [f"axis_{number}"]))
    found = check_round_trip(saved(made, tmp_path / "flat.onnx"), tmp_path)
    assert {one.name: one.calls for one in found.folding.functions} == {"Linear": 3, "Layer": 3}
    layer = next(one for one in open_model(tmp_path / "folded.onnx").proto.functions if one.name == "Layer")
    shared = next(node for node in layer.node if node.op_type == "If")
    assert not shared.attribute[0].g.output[0].type.tensor_type.HasField("shape")
    assert not shared.attribute[0].g.value_info


def test_types_inside_are_known_also_where_axes_have_other_names(tmp_path: Path) -> None:
    made = layers(3)
    for number in range(3):
        made.proto.graph.value_info.append(helper.make_tensor_value_info(f"/layers.{number}/fc/mul", 1, [f"a{number}"]))
    check_round_trip(saved(made, tmp_path / "flat.onnx"), tmp_path)
    linear = next(one for one in open_model(tmp_path / "folded.onnx").proto.functions if one.name == "Linear")
    known = [value.type.tensor_type for value in linear.value_info]
    assert [(one.elem_type, len(one.shape.dim), one.shape.dim[0].dim_param) for one in known] == [(1, 1, "")]
