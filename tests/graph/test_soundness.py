from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from hypothesis import given
from onnx import helper
from tests.support.building import body, graph, model, node, weight
from tests.support.graphs import models

from modelexport.errors import FileUnreadable
from modelexport.graph.index import index_model
from modelexport.graph.soundness import ensure_sound, find_cycle


def check(proto: onnx.ModelProto) -> None:
    ensure_sound(proto, index_model(proto), "a.onnx")


@given(models())
def test_a_sound_graph_passes(proto: onnx.ModelProto) -> None:
    check(proto)


def test_what_is_odd_and_allowed_passes() -> None:
    sparse = helper.make_sparse_tensor(
        weight("sparse", 1), helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0]), [4]
    )
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 20)]
    )
    proto = model(
        node("Add", "x sparse", "h"),
        node("Add", "w x", "unread"),  # and it is out of order
        node("Loop", "_ _ late", "l", body=body(node("Neg", "s", "t"), inputs="i k s", outputs="k t")),
        node("Relu", "h", "late"),
        node("Clip", "l _ w", "c"),
        node("Twice", "c", "y", domain="local"),
        inputs="x w",  # a weight that may be given
        weights=["w"],
        functions=[function],
    )
    proto.graph.sparse_initializer.append(sparse)
    check(proto)


def two_of_a_name() -> onnx.ModelProto:
    return model(node("Add", "x w", "y"), weights=[weight("w", 1), weight("w", 2)])


WRONG: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "a value made twice": (
        lambda: model(node("Relu", "x", "h"), node("Neg", "x", "h"), node("Abs", "h", "y")),
        "2 nodes make the value 'h'",
    ),
    "two weights of a name": (two_of_a_name, "2 initializers named 'w'"),
    "an input that is made": (
        lambda: model(node("Relu", "x", "x"), outputs="x"),
        "makes the value 'x', which is given",
    ),
    "a weight that is made": (
        lambda: model(node("Relu", "x", "w"), outputs="w", weights=["w"]),
        "makes the value 'w', which is given",
    ),
    "a value from nowhere": (
        lambda: model(node("Add", "x nowhere", "y")),
        "the Add that makes 'y' reads 'nowhere', which nobody makes",
    ),
    "a value from nowhere in a body": (
        lambda: model(node("If", "x", "y", then_branch=body(node("Neg", "none", "t"), outputs="t"))),
        "the Neg that makes 't' in 'y|then_branch' reads 'none'",
    ),
    "a result from nowhere": (lambda: model(node("Relu", "x", "h")), "it returns 'y', which nobody makes"),
    "no nodes": (model, "it returns 'y', which nobody makes"),
    "no result": (lambda: model(node("Relu", "x", "h"), outputs=""), "it returns nothing"),
    "a circle": (
        lambda: model(node("Add", "x c", "b"), node("Neg", "b", "c"), outputs="c"),
        "nodes read each other in a circle: 'b', 'c'",
    ),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said(make: Callable[[], onnx.ModelProto], message: str) -> None:
    with pytest.raises(FileUnreadable) as caught:
        check(make())
    assert caught.value.message.startswith("a.onnx is not a valid ONNX graph: ")
    assert message in caught.value.message
    assert caught.value.hint


def test_a_circle_is_named() -> None:
    made = graph(node("Relu", "x", "a"), node("Add", "a d", "b"), node("Neg", "b", "c"), node("Abs", "c", "d"))
    assert set(find_cycle(made)) == {"b", "c", "d"}


def test_a_node_that_reads_itself() -> None:
    assert find_cycle(graph(node("Add", "x y", "y"))) == ("y",)


def test_a_circle_through_a_body() -> None:
    inner = body(node("Neg", "z", "t"), outputs="t")
    proto = model(node("If", "x", "y", then_branch=inner), node("Relu", "y", "z"), outputs="z")
    assert set(find_cycle(index_model(proto))) == {"y", "z"}
