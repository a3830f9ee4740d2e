"""Which values mean the same, whatever a tool did around them."""

from __future__ import annotations

import onnx
from hypothesis import given
from onnx import TensorProto, helper
from tests.support.building import body, graph, node, weight
from tests.support.graphs import models

from modelexport.graph.index import index_model
from modelexport.lineage.value_classes import NO_CLASS, ValueClasses

SCALE = [weight("scale", 0.5), helper.make_tensor("zero", TensorProto.UINT8, [], [0])]


def test_equal_work_makes_equal_values() -> None:
    classes = ValueClasses(graph(node("Relu", "x", "a"), node("Relu", "x", "b"), node("Add", "a b", "y")))
    assert classes.class_of["a"] == classes.class_of["b"] != classes.class_of["x"]
    assert [node_.key for node_ in classes.nodes] == ["a", "y"]
    assert [node_.key for node_ in classes.congruent["a"]] == ["a", "b"]
    assert [node_.key for node_ in classes.readers_of(classes.class_of["x"])] == ["a"]


def test_congruence_goes_on_from_congruent_inputs() -> None:
    classes = ValueClasses(
        graph(
            node("Relu", "x", "a"),
            node("Relu", "x", "b"),
            node("Neg", "a", "c"),
            node("Neg", "b", "d"),
            node("Add", "c d", "y"),
        )
    )
    assert classes.class_of["c"] == classes.class_of["d"]


def test_the_order_of_a_sum_does_not_matter_and_that_of_a_difference_does() -> None:
    made = graph(
        *(node("Add", "x z", "a"), node("Add", "z x", "b"), node("Sub", "x z", "c"), node("Sub", "z x", "d")),
        *(node("MatMul", "x z", "e"), node("MatMul", "z x", "f")),
        inputs="x z",
        outputs="a",
    )
    class_of = ValueClasses(made).class_of
    assert class_of["a"] == class_of["b"]
    assert class_of["c"] != class_of["d"]
    assert class_of["e"] != class_of["f"]


def test_operators_of_an_unknown_domain_do_what_nobody_knows() -> None:
    made = graph(
        *(node("Identity", "x", "a"), node("Identity", "x", "b", domain="my.domain")),
        *(node("Add", "x z", "c"), node("Add", "z x", "d")),
        *(node("Add", "x z", "e", domain="my.domain"), node("Add", "z x", "f", domain="my.domain")),
        inputs="x z",
        outputs="a",
    )
    class_of = ValueClasses(made).class_of
    assert class_of["a"] == class_of["x"] != class_of["b"]
    assert class_of["c"] == class_of["d"]
    assert class_of["e"] != class_of["f"]


def test_attributes_domains_and_bodies_tell_nodes_apart() -> None:
    inner = body(node("Neg", "x", "t"), outputs="t")
    made = graph(
        *(node("Concat", "x", "a", axis=0), node("Concat", "x", "b", axis=1)),
        *(node("Gelu", "x", "c"), node("Gelu", "x", "d", domain="com.microsoft")),
        *(node("If", "x", "e", then_branch=inner), node("If", "x", "f", then_branch=inner)),
        outputs="a",
    )
    class_of = ValueClasses(made).class_of
    assert len({class_of[name] for name in "abcdef"}) == 6


def test_what_is_drawn_is_equal_to_itself_alone() -> None:
    classes = ValueClasses(graph(node("RandomNormalLike", "x", "a"), node("RandomNormalLike", "x", "b"), outputs="a"))
    assert classes.class_of["a"] != classes.class_of["b"]
    assert len(classes.nodes) == 2


def test_a_cast_hands_on() -> None:
    classes = ValueClasses(
        graph(
            node("Relu", "x", "h"), node("Cast", "h", "c", to=10), node("Cast", "c", "d", to=1), node("Neg", "d", "y")
        )
    )
    assert classes.class_of["h"] == classes.class_of["c"] == classes.class_of["d"]
    assert [node_.key for node_ in classes.pass_through] == ["c", "d"]
    assert [node_.key for node_ in classes.readers_of(classes.class_of["h"])] == ["y"]
    producer = classes.producers[classes.class_of["d"]]
    assert producer.key == "h"


def test_quantizing_and_back_hands_on() -> None:
    classes = ValueClasses(
        graph(
            node("Relu", "x", "h"),
            node("QuantizeLinear", "h scale zero", "q"),
            node("DequantizeLinear", "q scale zero", "d"),
            node("Neg", "d", "y"),
            weights=SCALE,
        )
    )
    assert classes.class_of["h"] == classes.class_of["q"] == classes.class_of["d"]


def test_a_quantizer_that_finds_its_scale_makes_that_as_well() -> None:
    classes = ValueClasses(
        graph(
            node("DynamicQuantizeLinear", "x", "q scale zero"), node("MatMulInteger", "q w _ zero", "y"), weights=["w"]
        )
    )
    assert classes.class_of["q"] == classes.class_of["x"]
    assert len({classes.class_of[name] for name in ("x", "scale", "zero")}) == 3
    assert classes.producers[classes.class_of["scale"]].key == "q"


def test_a_view_makes_another_value_of_the_same_numbers() -> None:
    made = graph(node("Reshape", "x s", "a"), node("Unsqueeze", "a s", "b"), node("Neg", "b", "y"), inputs="x s")
    classes = ValueClasses(made)
    assert len({classes.class_of[name] for name in "xaby"}) == 4
    reshape = made.by_key["a"]
    assert classes.content_inputs(reshape) == (classes.class_of["x"],)
    assert len(classes.data_inputs(reshape)) == 2


def test_constants_by_content_wherever_they_are() -> None:
    made = graph(
        node("Constant", "", "held", value=weight("", 1, 2)),
        node("Constant", "", "other", value=weight("", 3)),
        node("Add", "x held", "a"),
        node("Add", "x same", "b"),
        node("Add", "x large", "y"),
        weights=[weight("same", 1, 2), "large", "larger"],
    )
    classes = ValueClasses(made)
    assert classes.class_of["held"] == classes.class_of["same"] != classes.class_of["other"]
    assert classes.class_of["large"] != classes.class_of["larger"]
    assert classes.constants[classes.class_of["large"]] is None
    assert classes.class_of["a"] == classes.class_of["b"]
    assert [node_.key for node_ in classes.literals] == ["held", "other"]
    assert (classes.size(classes.class_of["same"]), classes.size(classes.class_of["large"])) == (2, 64 * 64)


def test_a_left_out_input_is_no_value() -> None:
    made = graph(node("Clip", "x _ w", "y"), weights=["w"])
    classes = ValueClasses(made)
    assert classes.inputs(made.nodes[0])[1] == NO_CLASS
    assert classes.data_inputs(made.nodes[0]) == (classes.class_of["x"],)
    assert classes.constant_inputs(made.nodes[0]) == (classes.class_of["w"],)
    assert classes.readers_of(NO_CLASS) == []


@given(models())
def test_every_value_has_a_class_and_every_node_a_place(proto: onnx.ModelProto) -> None:
    made = index_model(proto)
    classes = ValueClasses(made)
    placed = [node_.key for nodes in classes.congruent.values() for node_ in nodes]
    placed += [node_.key for node_ in (*classes.pass_through, *classes.literals)]
    assert sorted(placed) == sorted(node_.key for node_ in made.nodes)
    assert {output for node_ in made.nodes for output in node_.outputs if output} <= classes.class_of.keys()
    assert all(classes.congruent[node_.key][0] is node_ for node_ in classes.nodes)
