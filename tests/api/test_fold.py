"""What folding and flattening do to files: records, weights, bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from tests.support.exports import Exports
from tests.support.foldable_graphs import Made, layers, results, saved

import modelexport as mx
from modelexport.errors import FileUnreadable, FileUnwritable, UnknownName, UserError
from modelexport.graph.file.metadata import FOLDED_KEY, ensure_flat, strip_own_metadata
from modelexport.graph.file.reading import open_model
from modelexport.graph.functions import inline_graph


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return saved(layers(3), tmp_path / "flat.onnx")


@pytest.fixture
def folded(flat: Path, tmp_path: Path) -> Path:
    return mx.fold(flat, tmp_path / "folded.onnx").path


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["bert", "albert"])
def test_real_exports_come_back_bit_by_bit(exports: Exports, tmp_path: Path, name: str, exporter: str) -> None:
    source = exports(name, exporter).path
    found = mx.fold(source, tmp_path / "folded.onnx")
    assert found.folding.functions
    mx.flatten(tmp_path / "folded.onnx", tmp_path / "flat.onnx")
    assert (tmp_path / "flat.onnx").read_bytes() == source.read_bytes()
    onnx.checker.check_model(str(tmp_path / "folded.onnx"), full_check=True)
    assert mx.validate(tmp_path / "folded.onnx", check_consistency=True).findings == ()
    assert mx.diff(source, tmp_path / "folded.onnx").identical


def test_a_node_of_a_function_belongs_to_all_who_call_it(folded: Path) -> None:
    record = mx.load(folded)
    inside = record.attribution("pkg.modelexport.modules::Linear|mul")
    assert inside.modules == ("layers.0.fc", "layers.1.fc", "layers.2.fc")
    assert inside.module == ""
    call = record.attribution("/layers.1/out")
    assert (call.modules, str(call.evidence[0])) == (("layers.1",), "lineage:fold (5 nodes)")
    nested = record.attribution("pkg.modelexport.modules::Layer|fc/add")
    assert nested.modules == ("layers.0.fc", "layers.1.fc", "layers.2.fc")


def test_queries_find_shared_nodes_and_calls(folded: Path) -> None:
    found = {entry.op_type for entry in mx.query(folded, "module=layers.2.**")}
    assert found == {"Layer", "Linear", "Mul", "Add", "Constant"}
    assert mx.validate(folded, check_consistency=True).findings == ()
    assert mx.analyze(folded).file.matches_record


def test_a_folded_file_is_refused_where_a_flat_one_is_needed(folded: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="modelexport flatten"):
        ensure_flat(open_model(folded).proto, str(folded))
    with pytest.raises(UserError, match="modelexport flatten"):
        mx.fold(folded, tmp_path / "twice.onnx")
    assert not (tmp_path / "twice.onnx").exists()


def test_classes_restrict_what_is_folded(flat: Path, tmp_path: Path) -> None:
    found = mx.fold(flat, tmp_path / "folded.onnx", classes=["Layer"])
    assert [(one.name, one.nodes) for one in found.folding.functions] == [("Layer", 5)]
    with pytest.raises(UnknownName, match="Did you mean 'Layer'"):
        mx.fold(flat, tmp_path / "other.onnx", classes=["Layr"])
    with pytest.raises(UserError, match="no Net can become a function: it is the model itself"):
        mx.fold(flat, tmp_path / "other.onnx", classes=["Net"])
    assert not (tmp_path / "other.onnx").exists()


def test_a_class_that_has_no_nodes_says_so(tmp_path: Path) -> None:
    made = layers(2)
    flat = saved(Made(made.proto, {**made.classes, "drop": "Dropout"}, made.owners), tmp_path / "flat.onnx")
    with pytest.raises(UserError, match="no Dropout can become a function: it has no nodes"):
        mx.fold(flat, tmp_path / "folded.onnx", classes=["Dropout"])


def test_a_module_that_is_called_once_is_folded_if_it_is_asked_for(tmp_path: Path) -> None:
    flat = saved(layers(1), tmp_path / "flat.onnx")
    assert not mx.fold(flat, tmp_path / "as-it-was.onnx").folding.functions
    assert (tmp_path / "as-it-was.onnx").read_bytes() == flat.read_bytes()
    found = mx.fold(flat, tmp_path / "folded.onnx", classes=["Layer", "Linear"])
    assert [one.name for one in found.folding.functions] == ["Linear", "Layer"]
    assert found.folding.note == "folding made the file larger: 8 nodes, 6 before"


def test_inputs_are_not_overwritten(flat: Path, folded: Path) -> None:
    for call in (lambda: mx.fold(flat, flat), lambda: mx.flatten(folded, folded)):
        with pytest.raises(FileUnwritable):
            call()


def test_weights_outside_are_copied_and_not_read(tmp_path: Path) -> None:
    flat = saved(layers(3), tmp_path / "inside.onnx")
    model = onnx.load(flat)
    external_data_helper.convert_model_to_external_data(model, size_threshold=0, location="weights.bin")
    onnx.save(model, tmp_path / "flat.onnx")
    mx.fold(tmp_path / "flat.onnx", tmp_path / "folded.onnx")
    mx.flatten(tmp_path / "folded.onnx", tmp_path / "back.onnx")
    before, after = (onnx.load(tmp_path / f"{name}.onnx", load_external_data=False) for name in ("flat", "back"))
    for one in (before, after):
        for tensor in one.graph.initializer:
            tensor.ClearField("external_data")
    assert before == after
    np.testing.assert_array_equal(results(tmp_path / "flat.onnx"), results(tmp_path / "folded.onnx"))
    np.testing.assert_array_equal(results(tmp_path / "flat.onnx"), results(tmp_path / "back.onnx"))


def test_weights_may_be_trained_further_while_it_is_folded(folded: Path, tmp_path: Path) -> None:
    model = onnx.load(folded)
    model.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.full(3, 9, np.float32), model.graph.initializer[0].name)
    )
    onnx.save(model, folded)
    assert mx.flatten(folded, tmp_path / "back.onnx").flattening.exact
    np.testing.assert_array_equal(results(folded), results(tmp_path / "back.onnx"))


def _without_recipe(path: Path) -> None:
    model = onnx.load(path)
    kept = [entry for entry in model.metadata_props if entry.key != FOLDED_KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, path)


def test_without_what_folding_wrote_down_names_are_made_up(flat: Path, folded: Path, tmp_path: Path) -> None:
    _without_recipe(folded)
    found = mx.flatten(folded, tmp_path / "back.onnx")
    assert not found.flattening.exact
    assert found.flattening.note == "what folding wrote down is no longer in the file"
    back = onnx.load(tmp_path / "back.onnx")
    assert not back.functions
    assert len({node.name for node in back.graph.node}) == len(back.graph.node)
    onnx.checker.check_model(back, full_check=True)
    np.testing.assert_array_equal(results(flat), results(tmp_path / "back.onnx"))
    owners = [sorted(map(_owner, mx.load(path).nodes.values())) for path in (flat, tmp_path / "back.onnx")]
    assert owners[0] == owners[1]


def _owner(entry: mx.NodeEntry) -> tuple[str, tuple[str, ...]]:
    return entry.op_type, entry.attribution.modules


def test_a_graph_that_was_changed_since_is_not_what_was_folded(folded: Path, tmp_path: Path) -> None:
    model = onnx.load(folded)
    model.graph.node[-1].op_type = "Sin"
    onnx.save(model, folded)
    found = mx.flatten(folded, tmp_path / "back.onnx")
    assert found.flattening.note == "the graph was changed after it was folded"
    np.testing.assert_array_equal(results(folded), results(tmp_path / "back.onnx"))


def test_a_damaged_recipe_is_no_more_than_a_missing_one(folded: Path, tmp_path: Path) -> None:
    model = onnx.load(folded)
    recipe = next(entry for entry in model.metadata_props if entry.key == FOLDED_KEY)
    recipe.value = recipe.value[:-40]
    onnx.save(model, folded)
    found = mx.flatten(folded, tmp_path / "back.onnx")
    assert "damaged" in found.flattening.note
    np.testing.assert_array_equal(results(folded), results(tmp_path / "back.onnx"))


def test_functions_of_others_are_put_in_the_place_of_their_calls(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "inner"], ["sum"])],
        "body",
        [],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, [3])],
    )
    scaled = helper.make_function(
        "other",
        "Scaled",
        ["a", "condition"],
        ["b", "a"],
        [
            helper.make_node("Constant", [], ["alpha"]),
            helper.make_node("Mul", ["a", "alpha"], ["inner"]),
            helper.make_node("If", ["condition"], ["b"], then_branch=body, else_branch=body),
        ],
        [helper.make_opsetid("", 20)],
        ["alpha"],
    )
    scaled.node[0].attribute.add(name="value_float", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    nodes = [
        helper.make_node("Scaled", ["x", "yes"], ["h", "same"], domain="other", alpha=2.0),
        helper.make_node("Scaled", ["h", "yes"], ["k"], domain="other", alpha=3.0),
        helper.make_node("Add", ["k", "same"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 1, [3])],
        [value("y", 1, [3])],
        [numpy_helper.from_array(np.array(1, bool), "yes")],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("other", 1)]
    onnx.save(helper.make_model(graph, functions=[scaled], opset_imports=imports, ir_version=10), tmp_path / "a.onnx")
    found = mx.flatten(tmp_path / "a.onnx", tmp_path / "b.onnx")
    flat = onnx.load(tmp_path / "b.onnx")
    assert found.flattening.inlined == ("other::Scaled",)
    assert [entry.domain for entry in flat.opset_import] == [""]
    onnx.checker.check_model(flat, full_check=True)
    x = np.linspace(-1, 1, 3, dtype=np.float32)
    np.testing.assert_allclose(results(tmp_path / "b.onnx")[0], x * 3 * 4 + x, rtol=1e-6)


def test_a_function_for_another_opset_stays_one(tmp_path: Path) -> None:
    old = helper.make_function(
        "other", "Old", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    made = layers(1)
    made.proto.functions.append(old)
    made.proto.opset_import.append(helper.make_opsetid("other", 1))
    made.proto.graph.node[-1].op_type, made.proto.graph.node[-1].domain = "Old", "other"
    onnx.save(made.proto, tmp_path / "a.onnx")
    found = mx.flatten(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert found.flattening.kept == {"other::Old": "it is written for ai.onnx 13, the model for 20"}
    assert [one.name for one in onnx.load(tmp_path / "b.onnx").functions] == ["Old"]


def test_a_function_that_calls_itself_stays_one(tmp_path: Path) -> None:
    endless = helper.make_function(
        "other",
        "Endless",
        ["a"],
        ["b"],
        [helper.make_node("Endless", ["a"], ["b"], domain="other")],
        [helper.make_opsetid("other", 1)],
    )
    made = layers(1)
    made.proto.functions.append(endless)
    made.proto.opset_import.append(helper.make_opsetid("other", 1))
    made.proto.graph.node[-1].op_type, made.proto.graph.node[-1].domain = "Endless", "other"
    onnx.save(made.proto, tmp_path / "a.onnx")
    found = mx.flatten(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert found.flattening.kept == {"other::Endless": "it calls itself, or a function that does"}
    written = onnx.load(tmp_path / "b.onnx")
    strip_own_metadata(written, frozenset())
    assert written == made.proto


def test_a_file_without_functions_is_copied(flat: Path, tmp_path: Path) -> None:
    found = mx.flatten(flat, tmp_path / "copy.onnx")
    assert not found.flattening.inlined
    assert (tmp_path / "copy.onnx").read_bytes() == flat.read_bytes()


def test_many_layers_take_seconds(tmp_path: Path) -> None:
    """Folding that took the square of the nodes would take minutes."""
    import time

    flat = saved(layers(2000), tmp_path / "flat.onnx")
    began = time.process_time()
    found = mx.fold(flat, tmp_path / "folded.onnx")
    assert found.folding.before > 10_000
    assert time.process_time() - began < 30


def test_every_call_of_a_function_inside_of_a_function_is_one_of_its_own(flat: Path, folded: Path) -> None:
    assert mx.diff(flat, folded).identical
    graph = inline_graph(open_model(folded).graph).graph
    assert len(graph.by_key) == len(graph.nodes) == len(open_model(flat).graph.nodes)
    assert mx.cost(folded).total.activation_bytes == mx.cost(flat).total.activation_bytes


def test_quantizers_would_leave_out_what_is_in_functions(folded: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="modelexport flatten"):
        mx.quantize(folded, tmp_path / "int8.onnx")
    with pytest.raises(UserError, match="modelexport flatten"):
        mx.run_tool(folded, "int8", tmp_path / "int8.onnx")


def _edited(path: Path, edit: Callable[[onnx.ModelProto], object]) -> None:
    model = onnx.load(path)
    edit(model)
    onnx.save(model, path)


def _with_types(tmp_path: Path) -> Path:
    made = layers(3)
    for node in made.proto.graph.node[:-1]:
        made.proto.graph.value_info.append(helper.make_tensor_value_info(node.output[0], 1, [3]))
    return saved(made, tmp_path / "flat.onnx")


def test_types_that_a_tool_took_away_are_no_other_graph(tmp_path: Path) -> None:
    flat = _with_types(tmp_path)
    folded = mx.fold(flat, tmp_path / "folded.onnx").path
    _edited(folded, lambda model: model.graph.ClearField("value_info"))
    assert mx.flatten(folded, tmp_path / "back.onnx").flattening.exact
    before, after = onnx.load(flat), onnx.load(tmp_path / "back.onnx")
    assert before.graph.node == after.graph.node
    assert {value.name for value in after.graph.value_info} < {value.name for value in before.graph.value_info}


def test_types_inside_are_left_out_if_the_shapes_of_the_inputs_were_changed(tmp_path: Path) -> None:
    folded = mx.fold(_with_types(tmp_path), tmp_path / "folded.onnx").path

    def free(model: onnx.ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
            value.type.tensor_type.shape.dim[0].dim_param = "size"

    _edited(folded, free)
    assert mx.flatten(folded, tmp_path / "back.onnx").flattening.exact
    back = onnx.load(tmp_path / "back.onnx")
    shown = (*back.graph.input, *back.graph.output, *back.graph.value_info)
    assert {value.type.tensor_type.shape.dim[0].dim_param for value in shown} == {"size"}


def test_what_others_wrote_on_the_model_since_stays_on_it(flat: Path, folded: Path, tmp_path: Path) -> None:
    _edited(folded, lambda model: model.metadata_props.add(key="author", value="somebody"))
    assert mx.flatten(folded, tmp_path / "back.onnx").flattening.exact
    back = onnx.load(tmp_path / "back.onnx")
    assert (back.metadata_props[-1].key, back.metadata_props[-1].value) == ("author", "somebody")
    del back.metadata_props[-1]
    assert back == onnx.load(flat)


def test_operators_of_another_version_are_another_graph(folded: Path, tmp_path: Path) -> None:
    def newer(model: onnx.ModelProto) -> None:
        imports = [model.opset_import, *(function.opset_import for function in model.functions)]
        for entry in (entry for one in imports for entry in one if entry.domain == ""):
            entry.version = 21

    _edited(folded, newer)
    found = mx.flatten(folded, tmp_path / "back.onnx")
    assert found.flattening.note == "the graph was changed after it was folded"
    assert [entry.version for entry in onnx.load(tmp_path / "back.onnx").opset_import] == [21]


def test_calls_without_their_functions_are_told(folded: Path, tmp_path: Path) -> None:
    _edited(folded, lambda model: model.ClearField("functions"))
    for verb in (mx.flatten, mx.fold):
        with pytest.raises(FileUnreadable, match="calls functions that are not in it: Layer"):
            verb(folded, tmp_path / "back.onnx")
    assert not (tmp_path / "back.onnx").exists()


def test_what_an_earlier_folding_wrote_down_is_not_taken_for_that_of_a_later_one(flat: Path, tmp_path: Path) -> None:
    """A runtime puts functions in their places, and keeps what is written on the model."""
    record = flat.with_suffix(".hierarchy.json").read_text()
    mx.strip(flat, tmp_path / "bare.onnx")
    (tmp_path / "bare.hierarchy.json").write_text(record)
    _edited(tmp_path / "bare.onnx", lambda model: model.metadata_props.add(key=FOLDED_KEY, value="stale"))
    assert mx.flatten(tmp_path / "bare.onnx", tmp_path / "same.onnx").flattening.note == ""
    mx.fold(tmp_path / "bare.onnx", tmp_path / "folded.onnx")
    assert mx.flatten(tmp_path / "folded.onnx", tmp_path / "back.onnx").flattening.exact
    assert (tmp_path / "back.onnx").read_bytes() == (tmp_path / "bare.onnx").read_bytes()


def test_a_record_for_another_graph_is_told(flat: Path, tmp_path: Path) -> None:
    assert mx.fold(flat, tmp_path / "folded.onnx").folding.note == ""

    def rename(model: onnx.ModelProto) -> None:
        model.graph.node[-2].output[0] = model.graph.node[-1].input[0] = "renamed"

    _edited(flat, rename)
    note = mx.fold(flat, tmp_path / "folded.onnx").folding.note
    assert "1 of its 16 nodes have no module: `modelexport relink` first" in note


def test_attributes_are_handed_on_to_functions_inside_of_functions(tmp_path: Path) -> None:
    """Where nobody gives one, the inner function's own default holds."""
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("other", 1)]
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    inner = helper.make_function(
        "other", "Inner", ["a"], ["b"], [leaky], imports, [], [helper.make_attribute("slope", 0.5)]
    )
    call = helper.make_node("Inner", ["a"], ["b"], domain="other")
    call.attribute.add(name="slope", ref_attr_name="given", type=onnx.AttributeProto.FLOAT)
    outer = helper.make_function("other", "Outer", ["a"], ["b"], [call], imports, ["given"])
    nodes = [
        helper.make_node("Outer", ["x"], ["h"], domain="other", given=0.25),
        helper.make_node("Outer", ["x"], ["k"], domain="other"),
        helper.make_node("Add", ["h", "k"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [3])], [value("y", 1, [3])])
    made = helper.make_model(graph, functions=[inner, outer], opset_imports=imports, ir_version=10)
    onnx.save(made, tmp_path / "a.onnx")
    mx.flatten(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert not onnx.load(tmp_path / "b.onnx").functions
    np.testing.assert_array_equal(results(tmp_path / "b.onnx")[0], np.array([-0.75, 0, 2], np.float32))


def test_functions_of_one_name_are_told_by_their_overload(tmp_path: Path) -> None:
    functions = [
        helper.make_function(
            "other", "F", ["a"], ["b"], [helper.make_node(op, ["a"], ["b"])], [helper.make_opsetid("", 20)], overload=op
        )
        for op in ("Neg", "Abs")
    ]
    nodes = [
        helper.make_node("F", ["x"], ["h"], domain="other", overload="Abs"),
        helper.make_node("F", ["h"], ["y"], domain="other", overload="Neg"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [3])], [value("y", 1, [3])])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("other", 1)]
    onnx.save(helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10), tmp_path / "a.onnx")
    assert mx.flatten(tmp_path / "a.onnx", tmp_path / "b.onnx").flattening.inlined == ("other::F:Neg", "other::F:Abs")
    assert [node.op_type for node in onnx.load(tmp_path / "b.onnx").graph.node] == ["Abs", "Neg"]
    assert mx.diff(tmp_path / "a.onnx", tmp_path / "b.onnx").identical


def test_calls_in_bodies_of_functions_are_put_where_the_body_is(tmp_path: Path) -> None:
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("other", 1)]
    value = helper.make_tensor_value_info
    double = helper.make_function(
        "other", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], imports
    )
    body = helper.make_graph(
        [
            helper.make_node("Double", ["sum"], ["twice"], domain="other"),
            helper.make_node("Add", ["twice", "a"], ["next"]),
            helper.make_node("Identity", ["going"], ["on"]),
        ],
        "body",
        [value("step", 7, []), value("going", 9, []), value("sum", 1, [3])],
        [value("on", 9, []), value("next", 1, [3])],
    )
    repeated = helper.make_function(
        "other", "Repeated", ["a", "n"], ["b"], [helper.make_node("Loop", ["n", "", "a"], ["b"], body=body)], imports
    )
    nodes = [
        helper.make_node("Repeated", ["x", "n"], ["h"], domain="other"),
        helper.make_node("Repeated", ["h", "n"], ["y"], domain="other"),
    ]
    number = numpy_helper.from_array(np.array(3), "n")
    graph = helper.make_graph(nodes, "g", [value("x", 1, [3])], [value("y", 1, [3])], [number])
    made = helper.make_model(graph, functions=[double, repeated], opset_imports=imports, ir_version=10)
    onnx.save(made, tmp_path / "a.onnx")
    mx.flatten(tmp_path / "a.onnx", tmp_path / "b.onnx")
    np.testing.assert_array_equal(results(tmp_path / "a.onnx"), results(tmp_path / "b.onnx"))
    assert mx.diff(tmp_path / "a.onnx", tmp_path / "b.onnx").identical
