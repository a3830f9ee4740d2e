from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.any_files import with_bodies
from tests.support.building import body, graph, model, node, set_metadata, weight

from modelexport.graph.index import MAIN, index_model, walk_nodes
from modelexport.graph.types import dynamic_axes_of


def branching() -> onnx.ModelProto:
    """A value of the same name inside and outside; a body inside a body; a function."""
    inner = body(node("Neg", "t", "z"), outputs="z")
    branch = body(
        node("Mul", "x w", "t", "inside"),
        node("If", "c", "u", else_branch=inner),
        outputs="u",
        weights=[weight("w", 1)],
    )
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", "a a", "b", "f")], [helper.make_opsetid("", 20)]
    )
    return model(
        node("Relu", "x", "t", "outside"),
        node("If", "c", "y", "choice", then_branch=branch),
        node("Twice", "t", "d", domain="local"),
        inputs="x c",
        functions=[function],
    )


def test_a_node_is_known_by_its_first_output() -> None:
    made = graph(node("Split", "x", "a b", "s"), node("Dropout", "a", "_ mask"), node("Relu", "b", "y"))
    assert [item.key for item in made.nodes] == ["a", "mask", "y"]
    assert [item.name for item in made.nodes] == ["s", "", ""]
    assert [item.position for item in made.nodes] == [0, 1, 2]


def test_bodies_come_right_after_the_node_that_holds_them() -> None:
    keys = [item.key for item in index_model(branching()).nodes]
    assert keys == [
        "t",
        "y",
        "y|then_branch|t",
        "y|then_branch|u",
        "y|then_branch|u|else_branch|z",
        "d",
        "local::Twice|b",
    ]


def test_functions_of_one_name_are_told_apart_by_their_overload() -> None:
    proto = branching()
    proto.functions.append(proto.functions[0])
    proto.functions[1].overload = "other"
    proto.graph.node.append(node("Twice", "d", "e", domain="local"))
    proto.graph.node[-1].overload = "other"
    made = index_model(proto)
    assert [item.key for item in made.nodes][-2:] == ["local::Twice|b", "local::Twice:other|b"]
    assert (made.callers["local::Twice"], made.callers["local::Twice:other"]) == (("d",), ("e",))


def test_keys_are_unique_and_those_of_the_file() -> None:
    proto = branching()
    made = index_model(proto)
    assert len(made.by_key) == len(made.nodes)
    assert [(key, item.op_type) for key, item in walk_nodes(proto)] == [(item.key, item.op_type) for item in made.nodes]


def test_a_body_sees_its_own_values_before_those_around_it() -> None:
    made = index_model(branching())
    assert made.by_key["y|then_branch|t"].inputs == ("x", "y|then_branch|w")
    assert made.by_key["y|then_branch|u|else_branch|z"].inputs == ("y|then_branch|t",)
    assert made.by_key["d"].inputs == ("t",)
    assert made.by_key["local::Twice|b"].inputs == ("local::Twice|a", "local::Twice|a")
    assert set(made.initializers) == {"y|then_branch|w"}


def test_a_body_names_its_owner_and_what_it_returns() -> None:
    made = index_model(branching())
    assert made.body_owner == {"y|then_branch": "y", "y|then_branch|u|else_branch": "y|then_branch|u"}
    assert made.body_outputs["y|then_branch"] == ("y|then_branch|u",)
    assert made.by_key["y"].graph == MAIN
    assert made.by_key["y|then_branch|t"].graph == "y|then_branch"


def test_several_bodies_in_one_attribute_are_told_apart() -> None:
    holder = node("Cases", "x", "y", domain="local")
    holder.attribute.append(
        helper.make_attribute(
            "cases", [body(node("Neg", "x", "t"), outputs="t"), body(node("Abs", "x", "t"), outputs="t")]
        )
    )
    assert [item.key for item in graph(holder).nodes] == ["y", "y|cases[0]|t", "y|cases[1]|t"]


def test_neighbours() -> None:
    made = index_model(branching())
    assert [item.key for item in made.successors(made.by_key["t"])] == ["d"]
    assert [item.key for item in made.successors(made.by_key["y|then_branch|u"])] == ["y"]
    assert [item.key for item in made.successors(made.by_key["y|then_branch|t"])] == ["y|then_branch|u|else_branch|z"]
    assert [item.key for item in made.predecessors(made.by_key["d"])] == ["t"]
    assert list(made.successors(made.by_key["local::Twice|b"])) == []


def test_a_node_that_reads_a_value_twice_is_one_consumer() -> None:
    made = graph(node("Mul", "x x", "h"), node("Add", "h _", "y"))
    assert [item.key for item in made.consumers["x"]] == ["h"]
    assert "" not in made.consumers
    assert set(made.producers) == {"h", "y"}


def test_what_depends_on_data_and_what_on_shapes_alone() -> None:
    made = graph(
        node("Shape", "x", "s"),
        node("Gather", "s i", "g"),
        node("Relu", "x", "h"),
        node("Reshape", "h g", "r"),
        node("Transpose", "w", "t"),
        node("MatMul", "r t", "y"),
        weights=["w", "i"],
    )
    assert made.computed == {"x", "h", "r", "y"}


def test_tables_are_numbered_from_sizes_of_what_the_model_is_fed() -> None:
    made = graph(
        node("Shape", "x", "s"),
        node("Range", "zero s one", "r"),
        node("Neg", "r", "n"),
        node("Range", "zero ten one", "fixed"),
        node("Range", "zero x one", "of_data"),
        node("Add", "n fixed", "t"),
        node("Add", "t x", "y"),
        weights=["zero", "ten", "one"],
    )
    assert made.tables == {"r", "n", "t"}


def test_a_weight_that_is_listed_as_an_input_is_no_data() -> None:
    made = graph(node("Transpose", "w", "t"), node("MatMul", "x t", "y"), inputs="x w", weights=["w"])
    assert made.computed == {"x", "y"}


def test_what_runs_under_a_condition_depends_on_the_condition() -> None:
    branch = body(node("Constant", "", "t", value_float=1.0), outputs="t")
    made = graph(node("If", "c", "y", then_branch=branch), inputs="c")
    assert made.computed == {"c", "y", "y|then_branch|t"}


def test_a_node_depends_on_what_its_body_reads_from_outside() -> None:
    branch = body(node("Neg", "x", "t"), outputs="t")
    inner = body(node("If", "yes", "u", then_branch=branch), outputs="u")
    made = graph(node("If", "yes", "h", then_branch=inner), node("Relu", "h", "y"), weights=[weight("yes", 1)])
    assert {"h", "y", "h|then_branch|u"} <= made.computed


def test_equal_constants_are_equal_however_they_are_stored() -> None:
    raw = weight("raw", 1, 2)
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [2], [1.0, 2.0])
    other = helper.make_tensor("other", TensorProto.INT64, [2], [1, 2])
    column = helper.make_tensor("column", TensorProto.FLOAT, [2, 1], [1.0, 2.0])
    held = graph(node("Relu", "x", "y"), weights=[raw, typed, other, column, "large"]).initializers
    assert held["raw"].content == held["typed"].content is not None
    assert len({held[name].content for name in ("raw", "other", "column")}) == 3
    assert held["large"].content is None
    assert held["large"].shape == (64, 64)


def test_small_constants_of_every_kind_have_content() -> None:
    texts = TensorProto(name="texts", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"b"])
    joined = TensorProto(name="joined", data_type=TensorProto.STRING, dims=[1], string_data=[b"a\0b"])
    empty = TensorProto(name="empty", data_type=TensorProto.INT64, dims=[0])
    held = graph(node("Relu", "x", "y"), weights=[texts, joined, empty]).initializers
    assert None not in {item.content for item in held.values()}
    assert held["texts"].content != held["joined"].content


def test_external_data_is_never_looked_at() -> None:
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="nowhere.bin")
    assert graph(node("Relu", "x", "y"), weights=[outside]).initializers["w"].content is None


def test_a_constant_node_has_its_content() -> None:
    made = graph(
        node("Constant", "", "a", value=weight("", 1)),
        node("Constant", "", "b", value=weight("named", 1)),
        node("Constant", "", "c", domain="other", value=weight("", 1)),
    )
    contents = [item.constant for item in made.nodes]
    assert contents[0] == contents[1] is not None
    assert contents[2] is None


@pytest.mark.parametrize(
    ("attribute", "numbers"),
    [
        ({"value_float": 2.5}, np.float32(2.5)),
        ({"value_floats": [2.5, 1]}, np.array([2.5, 1], np.float32)),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3, 4]}, np.array([3, 4])),
    ],
)
def test_numbers_in_any_attribute_of_a_constant_are_the_same_content(
    attribute: dict[str, Any], numbers: np.ndarray
) -> None:
    tensor = onnx.numpy_helper.from_array(np.asarray(numbers))
    one, other = graph(node("Constant", "", "a", **attribute), node("Constant", "", "b", value=tensor)).nodes
    assert one.constant == other.constant is not None


def test_what_holds_no_numbers_has_no_content() -> None:
    (text,) = graph(node("Constant", "", "a", value_string="word")).nodes
    assert text.constant is None


def test_attributes_compare_without_regard_to_order() -> None:
    first, second = node("Gemm", "x w", "y", alpha=1.0, beta=2.0), node("Gemm", "x w", "y")
    second.attribute.extend(reversed(first.attribute))
    assert graph(first).nodes[0].attributes == graph(second).nodes[0].attributes
    assert graph(first).nodes[0].attributes != graph(node("Gemm", "x w", "y", alpha=1.0)).nodes[0].attributes


def test_metadata_of_a_tensor_inside_a_node_is_no_attribute() -> None:
    tensor = weight("", 1)
    set_metadata(tensor, {"key": "value"})
    dressed = graph(node("Constant", "", "y", value=tensor), node("Cases", "y", "z", values=[tensor, tensor]))
    plain = graph(
        node("Constant", "", "y", value=weight("", 1)), node("Cases", "y", "z", values=[weight("", 1), weight("", 1)])
    )
    assert [item.attributes for item in dressed.nodes] == [item.attributes for item in plain.nodes]


def test_names_and_metadata_do_not_change_the_fingerprint() -> None:
    plain, dressed = branching(), branching()
    for _, item in walk_nodes(dressed):
        item.name = f"other {item.name}"
        set_metadata(item, {"key": "value"})
    set_metadata(dressed, {"key": "value"})
    assert index_model(plain).fingerprint == index_model(dressed).fingerprint


def _rename_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = "t"


def _swap_inputs(proto: onnx.ModelProto) -> None:
    branch = proto.graph.node[1].attribute[0].g
    branch.node[0].input[:] = reversed(branch.node[0].input)


def _set_attribute(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute.append(helper.make_attribute("axis", 1))


def _reshape_weight(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].attribute[0].g.initializer[0].dims[:] = [1, 1]


def _remove_node(proto: onnx.ModelProto) -> None:
    del proto.functions[0].node[0]


@pytest.mark.parametrize("change", [_rename_output, _swap_inputs, _set_attribute, _reshape_weight, _remove_node])
def test_everything_else_changes_the_fingerprint(change: object) -> None:
    assert callable(change)
    proto = branching()
    change(proto)
    assert index_model(proto).fingerprint != index_model(branching()).fingerprint


def test_axes_that_stayed_open_are_found() -> None:
    proto = model(node("Relu", "x", "y"))
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3]))
    wanted = {"x": {0: "batch", 1: "width"}, "unknown": {0: "batch"}}
    assert dynamic_axes_of(proto, wanted) == {"x": {0: "batch"}}
    assert dynamic_axes_of(proto, {"x": {1: "width"}}) == {}


def test_a_node_without_outputs_and_name_is_around_nothing() -> None:
    """Its key is empty, as that of no owner is."""
    proto = with_bodies()
    proto.graph.node.add()
    index = index_model(proto)
    assert list(index.enclosing_nodes(index.by_key[""])) == []
    inner = next(each for each in index.nodes if each.name == "/head/loop/Add")
    assert [each.op_type for each in index.enclosing_nodes(inner)] == ["Loop", "If"]
