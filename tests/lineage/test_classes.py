"""Which values mean the same, whatever a tool did around them."""

from __future__ import annotations

import onnx
from hypothesis import given
from onnx import TensorProto, helper
from tests.support.building import body, graph, node, weight
from tests.support.graphs import models

from modelexport.graph.index import index_model
from modelexport.lineage.value_classes import NOTHING, Classes

SCALE = [weight("scale", 0.5), helper.make_tensor("zero", TensorProto.UINT8, [], [0])]


def test_equal_work_makes_equal_values() -> None:
    found = Classes(graph(node("Relu", "x", "a"), node("Relu", "x", "b"), node("Add", "a b", "y")))
    assert found.of["a"] == found.of["b"] != found.of["x"]
    assert [one.key for one in found.nodes] == ["a", "y"]
    assert [one.key for one in found.twins["a"]] == ["a", "b"]
    assert [one.key for one in found.readers_of(found.of["x"])] == ["a"]


def test_twins_of_twins_are_twins() -> None:
    found = Classes(
        graph(
            node("Relu", "x", "a"),
            node("Relu", "x", "b"),
            node("Neg", "a", "c"),
            node("Neg", "b", "d"),
            node("Add", "c d", "y"),
        )
    )
    assert found.of["c"] == found.of["d"]


def test_the_order_of_a_sum_does_not_matter_and_that_of_a_difference_does() -> None:
    made = graph(
        *(node("Add", "x z", "a"), node("Add", "z x", "b"), node("Sub", "x z", "c"), node("Sub", "z x", "d")),
        *(node("MatMul", "x z", "e"), node("MatMul", "z x", "f")),
        inputs="x z",
        outputs="a",
    )
    found = Classes(made).of
    assert found["a"] == found["b"]
    assert found["c"] != found["d"]
    assert found["e"] != found["f"]


def test_attributes_domains_and_bodies_tell_nodes_apart() -> None:
    inner = body(node("Neg", "x", "t"), outputs="t")
    made = graph(
        *(node("Concat", "x", "a", axis=0), node("Concat", "x", "b", axis=1)),
        *(node("Gelu", "x", "c"), node("Gelu", "x", "d", domain="com.microsoft")),
        *(node("If", "x", "e", then_branch=inner), node("If", "x", "f", then_branch=inner)),
        outputs="a",
    )
    found = Classes(made).of
    assert len({found[name] for name in "abcdef"}) == 6


def test_what_is_drawn_is_equal_to_itself_alone() -> None:
    found = Classes(graph(node("RandomNormalLike", "x", "a"), node("RandomNormalLike", "x", "b"), outputs="a"))
    assert found.of["a"] != found.of["b"]
    assert len(found.nodes) == 2


def test_a_cast_hands_on() -> None:
    found = Classes(
        graph(
            node("Relu", "x", "h"), node("Cast", "h", "c", to=10), node("Cast", "c", "d", to=1), node("Neg", "d", "y")
        )
    )
    assert found.of["h"] == found.of["c"] == found.of["d"]
    assert [one.key for one in found.passing] == ["c", "d"]
    assert [one.key for one in found.readers_of(found.of["h"])] == ["y"]
    maker = found.makers[found.of["d"]]
    assert maker.key == "h"


def test_quantizing_and_back_hands_on() -> None:
    found = Classes(
        graph(
            node("Relu", "x", "h"),
            node("QuantizeLinear", "h scale zero", "q"),
            node("DequantizeLinear", "q scale zero", "d"),
            node("Neg", "d", "y"),
            weights=SCALE,
        )
    )
    assert found.of["h"] == found.of["q"] == found.of["d"]


def test_a_quantizer_that_finds_its_scale_makes_that_as_well() -> None:
    found = Classes(
        graph(
            node("DynamicQuantizeLinear", "x", "q scale zero"), node("MatMulInteger", "q w _ zero", "y"), weights=["w"]
        )
    )
    assert found.of["q"] == found.of["x"]
    assert len({found.of[name] for name in ("x", "scale", "zero")}) == 3
    assert found.makers[found.of["scale"]].key == "q"


def test_a_view_makes_another_value_of_the_same_numbers() -> None:
    made = graph(node("Reshape", "x s", "a"), node("Unsqueeze", "a s", "b"), node("Neg", "b", "y"), inputs="x s")
    found = Classes(made)
    assert len({found.of[name] for name in "xaby"}) == 4
    reshape = made.by_key["a"]
    assert found.content(reshape) == [found.of["x"]]
    assert len(found.data_inputs(reshape)) == 2


def test_constants_by_content_wherever_they_are() -> None:
    made = graph(
        node("Constant", "", "held", value=weight("", 1, 2)),
        node("Constant", "", "other", value=weight("", 3)),
        node("Add", "x held", "a"),
        node("Add", "x same", "b"),
        node("Add", "x large", "y"),
        weights=[weight("same", 1, 2), "large", "larger"],
    )
    found = Classes(made)
    assert found.of["held"] == found.of["same"] != found.of["other"]
    assert found.of["large"] != found.of["larger"]
    assert found.constants[found.of["large"]] is None
    assert found.of["a"] == found.of["b"]
    assert [one.key for one in found.literals] == ["held", "other"]
    assert (found.size(found.of["same"]), found.size(found.of["large"])) == (2, 64 * 64)


def test_a_left_out_input_is_no_value() -> None:
    made = graph(node("Clip", "x _ w", "y"), weights=["w"])
    found = Classes(made)
    assert found.inputs(made.nodes[0])[1] == NOTHING
    assert found.data_inputs(made.nodes[0]) == [found.of["x"]]
    assert found.constant_inputs(made.nodes[0]) == [found.of["w"]]
    assert found.readers_of(NOTHING) == []


@given(models())
def test_every_value_has_a_class_and_every_node_a_place(proto: onnx.ModelProto) -> None:
    made = index_model(proto)
    found = Classes(made)
    placed = [one.key for twins in found.twins.values() for one in twins]
    placed += [one.key for one in (*found.passing, *found.literals)]
    assert sorted(placed) == sorted(one.key for one in made.nodes)
    assert {output for one in made.nodes for output in one.outputs if output} <= found.of.keys()
    assert all(found.twins[one.key][0] is one for one in found.nodes)
